"""A request as a server sees it on the wire, and what becomes of its connection."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest
import trustme
from aiohttp import connector

from gateway.backends.exchange import HeaderError
from gateway.backends.http import HttpClient
from gateway.backends.port import BackendFailed
from gateway.wire.requests import Engine

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
LARGE = bytes(range(256)) * (32 * 1024)
"""8 MiB: more than any socket's buffers take."""

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Place(msgspec.Struct):
    """A `Target`, and what came to it: the number of connections, and requests as they are."""

    url: str
    engine: Engine = "openai"
    backend_id: str = "b"
    authorization: str | None = "Bearer sk-server"
    connections: int = 0
    requests: list[tuple[bytes, bytes]] = []


@asynccontextmanager
async def serving(
    serve: Serve, tls: ssl.SSLContext | None = None, **more: object
) -> AsyncIterator[tuple[Place, HttpClient]]:
    """A server that gives each connection to `serve`, and a client."""
    tasks: set[asyncio.Task[object]] = set()

    async def counted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        place.connections += 1
        try:
            await serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(counted, "127.0.0.1", 0, ssl=tls)
    scheme = "http" if tls is None else "https"
    place = Place(f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}", **more)  # type: ignore[arg-type]
    client = HttpClient(connect_seconds=5)
    try:
        yield place, client
    finally:
        await client.close()
        server.close()
        await asyncio.wait_for(asyncio.gather(*tasks), 5)


@pytest.fixture
def tls(monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """A server's side of TLS, in whose certificate clients trust."""
    authority = trustme.CA()
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    monkeypatch.setattr(connector, "_SSL_CONTEXT_VERIFIED", trusting)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(serving)
    return serving


async def request_of(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    at = head.lower().index(b"content-length: ") + 16
    return head, await reader.readexactly(int(head[at : head.index(b"\r", at)]))


async def ask(client: HttpClient, place: Place, body: bytes = b"{}", **headers: str) -> bytes:
    answer = await client.open(place, "/v1/completions", body, headers)
    said = await answer.read_all()
    answer.close()
    return said


@pytest.mark.parametrize("engine", ["openai", "llamacpp"])
async def test_a_request_on_the_wire(engine: Engine) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            place.requests.append(await request_of(reader))
            writer.write(OK)

    async with serving(serve, engine=engine) as (place, client):
        for _ in range(2):
            headers = {"content-type": "a/b; c=\u00fc", "x-request-id": "r-1"}
            assert await ask(client, place, b'{"model":"m"}', **headers) == b"{}"
    closes = engine == "llamacpp"
    for head, body in place.requests:
        line, *lines = head[:-4].split(b"\r\n")
        said = [tuple(line.split(b": ", 1)) for line in lines]
        names = [name.lower() for name, _ in said]
        assert line == b"POST /v1/completions HTTP/1.1"
        assert len(names) == len(set(names)), "no header is said twice"
        found = {name.lower(): value for name, value in said}
        assert found.pop(b"user-agent").startswith(b"Python/")
        assert found == {
            b"host": place.url.removeprefix("http://").encode(),
            b"accept": b"*/*",
            b"accept-encoding": b"identity",
            b"authorization": b"Bearer sk-server",
            b"content-type": "a/b; c=\u00fc".encode("latin-1"),
            b"x-request-id": b"r-1",
            b"content-length": b"13",
            **({b"connection": b"close"} if closes else {}),
        }
        assert body == b'{"model":"m"}'
    assert place.connections == (2 if closes else 1)


async def test_a_small_document_is_asked_for_without_a_body() -> None:
    heads = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(OK)
        await reader.read()

    async with serving(serve) as (place, client):
        place.url += "/below"
        assert await client.fetch(place, "/v1/models?x=1", seconds=5) == (200, b"{}")
    assert heads[0].startswith(b"GET /below/v1/models?x=1 HTTP/1.1\r\n")
    assert b"content-length" not in heads[0].lower()
    assert b"content-type" not in heads[0].lower()


async def test_a_kept_connection_that_ends_just_then_is_no_fault_of_the_server() -> None:
    """A document is asked for once more; a request that a server may have begun with is not."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        await reader.readuntil(b"\r\n\r\n")

    async with serving(serve) as (place, client):
        for _ in range(4):
            assert await client.fetch(place, "/v1/models", seconds=5) == (200, b"{}")
        assert place.connections == 4
        with pytest.raises(BackendFailed, match="the connection failed"):
            await client.fetch(place, "/tokenize", seconds=5, body=b"{}")
        assert place.connections == 4


async def test_interim_answers_are_passed_over() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.write(OK)
        await reader.read()

    async with serving(serve) as (place, client):
        assert await ask(client, place) == b"{}"


async def test_a_large_body_arrives_whole_at_a_server_that_reads_slowly() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.1)
        place.requests.append(await request_of(reader))
        writer.write(OK)
        await reader.read()

    async with serving(serve) as (place, client):
        assert await ask(client, place, LARGE) == b"{}"
    assert place.requests[0][1] == LARGE


async def test_over_tls_a_connection_is_used_again(tls: ssl.SSLContext) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            place.requests.append(await request_of(reader))
            writer.write(OK)

    async with serving(serve, tls) as (place, client):
        assert [await ask(client, place, body) for body in (b"{}", LARGE, b"{}")] == [b"{}"] * 3
    assert [body for _, body in place.requests] == [b"{}", LARGE, b"{}"]
    assert place.connections == 1


@pytest.mark.parametrize("secured", [False, True], ids=["plain", "TLS"])
@pytest.mark.parametrize("early", [True, False], ids=["answered early", "given up"])
async def test_who_has_not_read_all_of_a_request_gets_no_more_of_it(
    early: bool, secured: bool, tls: ssl.SSLContext
) -> None:
    """An answer that came before the server had read the body passes; the rest is not sent, and
    the next request goes on a connection of its own. So does one that was given up."""
    huge = LARGE * 4
    taken, go_on = [], asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"content-length: 2\r\n" in head.lower():
            writer.write(OK)
            return
        if early:
            writer.write(OK.replace(b"200 OK", b"413 Too Large"))
        await go_on.wait()
        size = 0
        try:
            while data := await reader.read(1 << 20):
                size += len(data)
        finally:
            taken.append(size)

    async with serving(serve, tls if secured else None) as (place, client):
        if early:
            assert await ask(client, place, huge) == b"{}"
        else:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(ask(client, place, huge), 0.2)
        assert await asyncio.wait_for(ask(client, place), 5) == b"{}"
        go_on.set()
    assert place.connections == 2
    assert taken and taken[0] < len(huge)


@pytest.mark.parametrize(
    "said",
    [b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", b"HTTP/1.1 20", b""],
    ids=["no HTTP", "no length", "half a head", "nothing"],
)
async def test_an_answer_that_is_none_is_a_lost_one(said: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(said)

    async with serving(serve) as (place, client):
        with pytest.raises(BackendFailed, match="the connection broke") as failed:
            await ask(client, place)
        assert failed.value.reason == "lost"
        with pytest.raises(BackendFailed, match="the connection failed"):
            await client.fetch(place, "/x", seconds=5, body=b"{}")


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
async def test_an_answer_without_a_body_leaves_its_connection_for_the_next(status: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await request_of(reader)
            writer.write(b"HTTP/1.1 " + status + b"\r\n\r\n")

    async with serving(serve) as (place, client):
        assert [await ask(client, place) for _ in range(3)] == [b"", b"", b""]
    assert place.connections == 1


async def test_an_answer_that_ends_with_its_connection() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nall of it")

    async with serving(serve) as (place, client):
        assert [await ask(client, place) for _ in range(2)] == [b"all of it"] * 2
    assert place.connections == 2


async def test_a_stream_that_was_not_read_to_its_end_ends_its_connection() -> None:
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head + b"5\r\nfirst\r\n")
        assert await reader.read() == b""
        gone.set()

    async with serving(serve) as (place, client):
        answer = await client.open(place, "/v1/completions", b"{}", {})
        assert await answer.read() == b"first"
        answer.close()
        answer.close()
        await asyncio.wait_for(gone.wait(), 5)


@pytest.mark.parametrize("value", ["a\r\nx-more: b", "a\nb", "a\rb", "a\0b"])
async def test_no_header_can_begin_another(value: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise AssertionError("nothing is sent")

    async with serving(serve) as (place, client):
        with pytest.raises(HeaderError):
            await client.open(place, "/v1/completions", b"{}", {"x-request-id": value})
        place.authorization = value
        with pytest.raises(ValueError, match="header"):
            await ask(client, place)
    assert place.connections == 0


@pytest.mark.parametrize("host", ["mod\u00adel", "model..internal", "m" * 64 + ".internal"])
async def test_an_address_that_is_none_is_a_broken_one(host: str) -> None:
    client = HttpClient(connect_seconds=5)
    nowhere = Place(f"http://{host}:8000")
    with pytest.raises(BackendFailed):
        await ask(client, nowhere)
    with pytest.raises(BackendFailed, match="its address is none"):
        await client.fetch(nowhere, "/health", seconds=5)
    await client.close()


async def test_nobody_listens(free_tcp_port: int) -> None:
    client = HttpClient(connect_seconds=5)
    with pytest.raises(BackendFailed, match="refused") as failed:
        await ask(client, Place(f"http://127.0.0.1:{free_tcp_port}"))
    assert failed.value.reason == "unreachable"
    await client.close()
