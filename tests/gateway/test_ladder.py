"""The ladder of probes over real sockets: each way of being away, told apart from the others."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from pathlib import Path

import pytest
import trustme

from gateway.backends import ladder as ladders
from gateway.backends.backend import Backend, Generated, Rung
from gateway.backends.http import HttpClient
from gateway.backends.ladder import ORDER, Ladder, Step
from gateway.backends.port import BackendFailed
from gateway.errors import Unauthorized
from ledger.clock import SystemClock
from tests.support.fake_backend import KEY, fake_backend

ALL: dict[Rung, bool | None] = {
    "name": True,
    "port": True,
    "tls": None,
    "key": True,
    "list": True,
    "model": True,
    "generation": True,
}


@asynccontextmanager
async def at_work(connect_seconds: float = 1.0) -> AsyncIterator[Ladder]:
    client = HttpClient(connect_seconds=connect_seconds)
    yield Ladder(client, SystemClock(), connect_seconds)
    await client.close()


def backend(url: str, *models: str, key: str | None = KEY) -> Backend:
    return Backend("b", url, key=key, engine=None, models=models or ("fake",), any_model=False)


async def page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Something that speaks HTTP and is no model server."""
    if (await reader.read(4096)).startswith(b"GET"):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nIt works!")
    else:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    writer.close()


async def made(_: str) -> Generated:
    return Generated("made", "a token came", 0.01)


def holds(steps: list[Step]) -> dict[Rung, bool | None]:
    return {step.rung: step.holds for step in steps}


def words(steps: list[Step]) -> str:
    (failed,) = [step.words for step in steps if step.holds is False]
    return failed


def free_port(host: str = "127.0.0.1") -> int:
    with closing(socket.create_server((host, 0))) as taken:
        return int(taken.getsockname()[1])


@pytest.fixture(autouse=True)
def _no_usual_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """What else runs on this machine is none of these tests' business."""
    monkeypatch.setattr(ladders, "USUAL_PORTS", {})


async def test_all_rungs_of_a_backend_that_lives_are_told_in_order() -> None:
    async with fake_backend() as fake, at_work() as ladder:
        said: list[Step] = []
        steps = await ladder.climb(backend(fake.url), made, said.append)
    assert holds(steps) == ALL
    assert [step.rung for step in said] == list(ORDER)
    assert all(step.words and step.seconds >= 0 for step in steps)


async def test_a_name_that_does_not_resolve() -> None:
    async with at_work() as ladder:
        steps = await ladder.climb(backend("http://no-such-host.invalid:8000"), made)
        found = await ladder.diagnose(backend("http://no-such-host.invalid:8000"))
    assert holds(steps) == dict.fromkeys(ORDER) | {"name": False}
    assert "does not resolve" in words(steps)
    assert found is not None and found[0] == "name"


async def test_a_port_that_refuses_and_nothing_of_ours_anywhere() -> None:
    async with at_work() as ladder:
        away = backend(f"http://127.0.0.1:{free_port()}")
        steps = await ladder.climb(away, made)
        assert await ladder.diagnose(away) == ("port", "the port refuses: nothing listens there")
    assert holds(steps) == dict.fromkeys(ORDER) | {"name": True, "port": False}


async def test_refused_here_and_listening_there_is_told_from_dead() -> None:
    """A server that was started for 127.0.0.1, called by another address of the same machine."""
    async with fake_backend() as fake, at_work() as ladder:
        wrong = backend(f"http://127.0.0.2:{fake.port}")
        steps = await ladder.climb(wrong, made)
        found = await ladder.diagnose(wrong)
        assert fake.counts.unauthorized == 2, "it is asked without the key of another server"
    assert f"a model server listens at {fake.url}" in words(steps)
    assert found is not None and "the loopback of this machine" in found[1]
    assert "127.0.0." not in found[1], "an event and /health/ready tell no address"


async def test_listening_at_the_port_that_its_engine_takes_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with fake_backend(key="") as fake, at_work() as ladder:
        monkeypatch.setattr(ladders, "USUAL_PORTS", {fake.port: "vLLM"})
        found = await ladder.diagnose(backend(f"http://127.0.0.1:{free_port()}"))
    assert found is not None
    assert f"port {fake.port} of the same host, where vLLM listens by itself" in found[1]


async def test_what_listens_there_and_is_no_model_server_is_not_taken_for_one() -> None:
    server = await asyncio.start_server(page, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, at_work() as ladder:
        steps = await ladder.climb(backend(f"http://127.0.0.2:{port}"), made)
        there = await ladder.climb(backend(f"http://127.0.0.1:{port}"), made)
    assert "listens at" not in words(steps)
    assert holds(there)["list"] is False, "a port that accepts and is something else"


async def test_a_gateway_of_ours_is_not_taken_for_the_engine_that_is_looked_for() -> None:
    """It may well stand at a port that an engine takes by itself, and wants a key too."""

    async def gateway(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(4096)
        body = Unauthorized("no key").body()
        head = b"HTTP/1.1 401 X\r\nContent-Length: %d\r\n\r\n" % len(body)
        writer.write(head + body)
        writer.close()

    server = await asyncio.start_server(gateway, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, at_work() as ladder:
        found = await ladder.diagnose(backend(f"http://127.0.0.2:{port}"))
    assert found == ("port", "the port refuses: nothing listens there")


@contextmanager
def silent_port() -> Iterator[int]:
    """A port whose queue is full: the kernel drops whoever comes next, as a firewall does."""
    with ExitStack() as stack:
        full = stack.enter_context(closing(socket.socket()))
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(2):
            one = stack.enter_context(closing(socket.socket()))
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        yield int(full.getsockname()[1])


async def test_a_port_that_answers_nobody_is_a_firewall_and_not_a_refusal() -> None:
    with silent_port() as port:
        async with at_work(0.3) as ladder:
            found = await ladder.diagnose(backend(f"http://127.0.0.1:{port}"))
    assert found is not None and found[0] == "port" and "does not answer within 0.3 s" in found[1]


async def test_a_request_has_a_limit_of_its_own_for_the_connection() -> None:
    """Nothing listens to it, so that its backend is set aside at once."""
    client = HttpClient(connect_seconds=0.3)
    with silent_port() as port, pytest.raises(BackendFailed) as failed:
        async with asyncio.timeout(3):
            await client.open(backend(f"http://127.0.0.1:{port}"), "/v1/completions", b"{}", {})
    await client.close()
    assert (failed.value.reason, str(failed.value)) == ("unreachable", "no connection within 0.3 s")


async def test_plain_http_behind_an_address_that_says_https() -> None:
    server = await asyncio.start_server(page, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, at_work() as ladder:
        found = await ladder.diagnose(backend(f"https://127.0.0.1:{port}"))
    assert found == ("tls", "it speaks no TLS; write http://")


async def test_a_certificate_that_nobody_vouches_for(tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    server = await asyncio.start_server(lambda _, w: w.close(), "127.0.0.1", 0, ssl=context)
    async with server, at_work() as ladder:
        port = server.sockets[0].getsockname()[1]
        found = await ladder.diagnose(backend(f"https://127.0.0.1:{port}"))
    assert found is not None and found[0] == "tls" and "its certificate is not good" in found[1]


@pytest.mark.parametrize("learned", [False, True])
async def test_a_model_that_is_missing_beside_others_is_told(learned: bool) -> None:
    """Also of an engine to which no request for it would go."""
    async with fake_backend(engine="vllm", models=("a", "b")) as fake, at_work() as ladder:
        one = backend(fake.url, "a", "lora")
        if learned:
            one.learn(200, b'{"data":[{"id":"a","owned_by":"vllm"}]}')
        steps = await ladder.climb(one, made)
    assert holds(steps)["model"] is False and words(steps) == "it has a, b, and not lora"


async def test_a_key_that_is_refused_and_models_that_are_not_there() -> None:
    async with fake_backend(models=("other", "more")) as fake, at_work() as ladder:
        key = await ladder.climb(backend(fake.url, key="wrong"), made)
        model = await ladder.climb(backend(fake.url, "mine", "other"), made)
    assert holds(key) == dict.fromkeys(ORDER) | {"name": True, "port": True, "key": False}
    assert words(model) == "it has other, more, and not mine"
    assert holds(model)["list"] and holds(model)["generation"] is None


@pytest.mark.parametrize(
    ("became", "rung", "holding"),
    [
        (Generated("failed", "it answered 500", 0.1), "generation", False),
        (Generated("failed", "it refuses the server key (401)", 0.1, "key"), "key", False),
        (Generated("refused", "it answered 404", 0.1), "generation", None),
        (None, "generation", None),
    ],
)
async def test_the_last_rung_is_one_real_token(
    became: Generated | None, rung: Rung, holding: bool | None
) -> None:
    """A server that gives its list to anybody, as llama.cpp does, shows a wrong key only here."""

    async def token(_: str) -> Generated | None:
        return became

    async with fake_backend() as fake, at_work() as ladder:
        steps = await ladder.climb(backend(fake.url), token)
    assert holds(steps) == ALL | {"generation": None} | {rung: holding}
