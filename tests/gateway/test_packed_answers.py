"""Answers and small documents that a backend compressed, over sockets, by the real HTTP client."""

import asyncio
import contextlib
import gzip
import zlib
from collections.abc import AsyncIterator, Callable

import pytest

from gateway.backends import http
from gateway.backends.http import HttpAnswer, HttpClient, PackedAnswer
from gateway.backends.pool import Backend
from gateway.backends.port import BackendFailed
from gateway.wire.codings import PIECE_BYTES

BODY = b'{"usage":{"prompt_tokens":3,"completion_tokens":4}}'


def packed_by(coding: str, body: bytes) -> bytes:
    return gzip.compress(body) if coding == "gzip" else zlib.compress(body)


@contextlib.asynccontextmanager
async def serving(
    coding: str, *parts: bytes, cut: int = 0
) -> AsyncIterator[tuple[HttpClient, Backend]]:
    """A server that answers everything with `parts`, one chunk each; its length is announced as
    `cut` more, so that the connection breaks before its end."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await reader.readuntil(b"\r\n\r\n")
            length = sum(map(len, parts)) + cut
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: "
                b"%b\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (coding.encode(), length)
            )
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0.01)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    client = HttpClient(connect_seconds=5)
    target = Backend("b", url, key=None, engine=None, models=None, any_model=True)
    try:
        yield client, target
    finally:
        await client.close()
        server.close()
        await asyncio.sleep(0.02)  # what was broken off is noticed


async def opened(client: HttpClient, target: Backend) -> HttpAnswer:
    return await client.open(target, "/v1/embeddings", b"{}", {})


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_a_packed_answer_is_whole_and_does_not_say_that_it_was_packed(coding: str) -> None:
    async with serving(coding, packed_by(coding, BODY)) as (client, target):
        answer = await opened(client, target)
        assert await answer.read_all() == BODY
        assert [name for name, _ in answer.headers] == [b"content-type"]
        answer.close()


@pytest.mark.parametrize("coding", ["", "identity"])
async def test_a_plain_answer_goes_the_plain_way(coding: str) -> None:
    async with serving(coding, BODY) as (client, target):
        answer = await opened(client, target)
        assert not isinstance(answer, PackedAnswer)
        assert await answer.read_all() == BODY
        answer.close()


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_each_event_of_a_packed_stream_is_read_when_it_comes(coding: str) -> None:
    packer = zlib.compressobj(wbits=zlib.MAX_WBITS + (16 if coding == "gzip" else 0))
    events = [b"data: %d\n\n" % number for number in range(4)]
    parts = [packer.compress(event) + packer.flush(zlib.Z_SYNC_FLUSH) for event in events]
    async with serving(coding, *parts, packer.flush()) as (client, target):
        answer = await opened(client, target)
        seen = []
        while data := await answer.read():
            seen.append(data)
        assert b"".join(seen) == b"".join(events)
        assert len(seen) > 1
        answer.close()


@pytest.mark.parametrize(
    ("coding", "spoil", "said"),
    [
        ("gzip", lambda body: body[:-3], "breaks off in the middle of its gzip"),
        ("deflate", lambda body: body[:-3], "breaks off in the middle of its deflate"),
        ("gzip", lambda body: BODY, "is not the gzip that it says it is"),
        ("deflate", lambda body: b"\x00" + body, "is not the deflate that it says it is"),
    ],
)
async def test_a_spoilt_answer_is_a_lost_one(
    coding: str, spoil: Callable[[bytes], bytes], said: str
) -> None:
    async with serving(coding, spoil(packed_by(coding, BODY))) as (client, target):
        answer = await opened(client, target)
        with pytest.raises(BackendFailed, match=said) as failed:
            await answer.read_all()
        assert failed.value.reason == "lost"
        answer.close()


async def test_a_connection_that_breaks_within_a_packed_answer_is_a_lost_one() -> None:
    async with serving("gzip", gzip.compress(BODY), cut=5) as (client, target):
        answer = await opened(client, target)
        with pytest.raises(BackendFailed, match="the connection broke"):
            await answer.read_all()
        answer.close()


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, br"])
async def test_a_coding_that_is_not_read_is_no_answer(coding: str) -> None:
    async with serving(coding, b"\x00") as (client, target):
        with pytest.raises(BackendFailed, match="only gzip and deflate are read"):
            await opened(client, target)
        with pytest.raises(BackendFailed, match="only gzip and deflate are read"):
            await client.fetch(target, "/v1/models", seconds=5)


async def test_a_small_document_may_be_packed_too() -> None:
    async with serving("gzip", gzip.compress(BODY)) as (client, target):
        assert await client.fetch(target, "/v1/models", seconds=5) == (200, BODY)


async def test_a_bomb_is_stopped_where_it_must_be_held_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "INFLATED_BYTES_MAX", 10 * PIECE_BYTES)
    monkeypatch.setattr(http, "FETCHED_BYTES_MAX", 10 * PIECE_BYTES)
    async with serving("gzip", gzip.compress(b"\0" * (11 * PIECE_BYTES))) as (client, target):
        answer = await opened(client, target)
        with pytest.raises(BackendFailed, match="inflates to over"):
            await answer.read_all()
        answer.close()
        with pytest.raises(BackendFailed, match="has over"):
            await client.fetch(target, "/metrics", seconds=5)
    async with serving("gzip", gzip.compress(b"\0" * (10 * PIECE_BYTES))) as (client, target):
        answer = await opened(client, target)
        assert len(await answer.read_all()) == 10 * PIECE_BYTES
        answer.close()


async def test_a_packed_stream_gives_back_its_memory_piece_by_piece() -> None:
    async with serving("gzip", gzip.compress(b"\0" * (8 * PIECE_BYTES))) as (client, target):
        answer = await opened(client, target)
        sizes = []
        while data := await answer.read():
            sizes.append(len(data))
        assert sizes == [PIECE_BYTES] * 8
        answer.close()
