"""A backend that closes a connection behind a stream though it said that it would keep it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from gateway.backends.http import HttpClient
from gateway.backends.port import BackendFailed
from gateway.wire.requests import Engine

BODY = b'{"stream":true}'
CLOSES_SECONDS = 0.2
"""So long the connection looks as if it were kept: whoever comes meanwhile takes it."""


class Place(msgspec.Struct):
    """A `Target`, and the heads of the first requests of the connections that were made to it."""

    url: str
    engine: Engine
    heads: list[bytes]
    backend_id: str = "b"
    authorization: str | None = None


@asynccontextmanager
async def closing_backend(engine: Engine) -> AsyncIterator[Place]:
    """As llama.cpp: it answers the first request of each connection, and closes a while later.

    It says `Connection: close` where it was asked to, and `Keep-Alive` else.
    """
    heads: list[bytes] = []
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())  # type: ignore[arg-type]
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        heads.append(head)
        await reader.readexactly(len(BODY))
        asked = b"connection: close" in head
        keeps = b"Connection: close" if asked else b"Keep-Alive: timeout=5, max=100"
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n" + keeps + b"\r\n"
            b"Transfer-Encoding: chunked\r\n\r\ne\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
        )
        await writer.drain()
        await asyncio.sleep(CLOSES_SECONDS)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield Place(url=f"http://127.0.0.1:{port}", engine=engine, heads=heads)
    finally:
        server.close()
        await asyncio.gather(*tasks)


async def ask(client: HttpClient, place: Place) -> bytes:
    answer = await client.open(place, "/v1/completions", BODY, {})
    said = await answer.read_all()
    answer.close()
    return said


async def test_one_request_behind_the_other_is_answered() -> None:
    async with closing_backend("llamacpp") as place:
        client = HttpClient(connect_seconds=5)
        for _ in range(3):
            assert await ask(client, place) == b"data: [DONE]\n\n"
        await client.close()
    assert len(place.heads) == 3, "each on a connection of its own"


async def test_to_other_engines_connections_are_kept() -> None:
    """This is what happens to a request on a connection that is kept and was not meant to be."""
    async with closing_backend("vllm") as place:
        client = HttpClient(connect_seconds=5)
        assert await ask(client, place) == b"data: [DONE]\n\n"
        with pytest.raises(BackendFailed, match="the connection broke"):
            await ask(client, place)
        await client.close()
    assert len(place.heads) == 1
