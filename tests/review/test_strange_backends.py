"""What a review of the gateway found: backends whose answers are legal or broken in rare ways."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec
import pytest

from gateway.backends.http import HttpClient
from gateway.backends.port import BackendFailed
from gateway.wire.requests import Engine


class Somewhere(msgspec.Struct):
    url: str
    backend_id: str = "b-1"
    engine: Engine = "openai"
    authorization: str | None = None


@contextlib.asynccontextmanager
async def answering(data: bytes) -> AsyncIterator[Somewhere]:
    """A server that answers each connection's first request with `data` and closes."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(data)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield Somewhere(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")


@contextlib.asynccontextmanager
async def client() -> AsyncIterator[HttpClient]:
    made = HttpClient(connect_seconds=5)
    try:
        yield made
    finally:
        await made.close()


async def test_a_content_type_is_known_in_any_case() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: Text/Event-Stream\r\nConnection: close\r\n\r\n"
    async with answering(head) as server, client() as http:
        answer = await http.open(server, "/v1/completions", b"{}", {})
        assert answer.content_type == "text/event-stream", "else a stream is not metered as one"
        answer.close()


async def test_no_header_tells_where_the_backend_is() -> None:
    data = (
        b"HTTP/1.1 404 Not Found\r\nLocation: http://10.1.2.3:8000/v1\r\n"
        b"Content-Location: http://10.1.2.3:8000/\r\nContent-Length: 0\r\n\r\n"
    )
    async with answering(data) as server, client() as http:
        answer = await http.open(server, "/v1/completions", b"{}", {})
        assert not [name for name, value in answer.headers if b"10.1.2.3" in value]
        answer.close()


async def test_a_switch_of_protocols_is_no_answer() -> None:
    data = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"
    async with answering(data) as server, client() as http:
        with pytest.raises(BackendFailed, match="101"):
            await http.open(server, "/v1/completions", b"{}", {})
