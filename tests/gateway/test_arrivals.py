"""Request bodies that come compressed: freed of it within the limit, or refused in words."""

import asyncio
import gzip
import json
import zlib
from collections.abc import Callable

import pytest

from gateway.errors import ApiError, BadRequest, TooLarge, TooLate, WrongCoding
from gateway.http.arrivals import Arrivals, ClientGoneError
from gateway.wire.codings import PIECE_BYTES
from tests.streams.builders import FakeClock

BODY = json.dumps({"model": "m", "messages": ["x" * 500]}).encode()
LIMIT = 8 * PIECE_BYTES


async def arrived(coding: bytes | None, *parts: bytes, limit: int = LIMIT) -> bytes:
    """The body that comes by `parts`, at the door of a gateway that takes `limit` bytes."""
    left = list(parts)

    async def receive() -> dict[str, object]:
        if not left:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    task = asyncio.current_task()
    assert task is not None
    length = b"%d" % sum(map(len, parts))
    return await Arrivals(FakeClock(), limit).body(task, receive, length, 0.0, coding)


@pytest.mark.parametrize(
    ("coding", "pack"),
    [
        (None, bytes),
        (b"identity", bytes),
        (b"", bytes),
        (b"gzip", gzip.compress),
        (b"GZIP", gzip.compress),
        (b"deflate", zlib.compress),
    ],
)
async def test_a_body_is_freed_of_its_coding(
    coding: bytes | None, pack: Callable[[bytes], bytes]
) -> None:
    packed = pack(BODY)
    assert await arrived(coding, packed) == BODY
    assert await arrived(coding, packed[:20], b"", packed[20:]) == BODY


@pytest.mark.parametrize("coding", [b"br", b"zstd", b"gzip, gzip", b"compress"])
async def test_another_coding_is_refused_before_the_body_is_read(coding: bytes) -> None:
    with pytest.raises(WrongCoding, match=r"only gzip and deflate are read\. Send it uncompressed"):
        await arrived(coding)  # nobody would be there to send it


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        (b"gzip", BODY),
        (b"gzip", zlib.compress(BODY)),
        (b"gzip", gzip.compress(BODY)[:-1]),
        (b"deflate", zlib.compress(BODY)[:10]),
        (b"deflate", zlib.compress(BODY) + b"more"),
    ],
)
async def test_a_body_that_is_not_in_its_coding_is_refused(coding: bytes, body: bytes) -> None:
    with pytest.raises(BadRequest, match="Send it again, or uncompressed") as refused:
        await arrived(coding, body)
    assert refused.value.code == "invalid_content_encoding"


async def test_the_limit_holds_for_what_a_body_inflates_to() -> None:
    assert len(await arrived(b"gzip", gzip.compress(b"x" * LIMIT))) == LIMIT
    with pytest.raises(TooLarge, match=r"gateway\.body_bytes_max"):
        await arrived(b"gzip", gzip.compress(b"x" * (LIMIT + 1)))


async def test_the_limit_holds_for_a_body_as_it_comes() -> None:
    stored = gzip.compress(b"x" * 100, 0)
    with pytest.raises(TooLarge):
        await arrived(b"gzip", stored, limit=len(stored) - 1)


async def test_a_client_that_leaves_within_a_packed_body_is_gone() -> None:
    async def receive() -> dict[str, object]:
        return {"type": "http.disconnect"}

    task = asyncio.current_task()
    assert task is not None
    with pytest.raises(ClientGoneError):
        await Arrivals(FakeClock(), LIMIT).body(task, receive, None, 0.0, b"gzip")


async def test_others_get_their_turn_while_a_large_body_is_inflated() -> None:
    arrivals, clock = Arrivals(FakeClock(), LIMIT), FakeClock()
    packed = gzip.compress(b"x" * LIMIT)

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": packed}

    async def read() -> None:
        task = asyncio.current_task()
        assert task is not None
        await arrivals.body(task, receive, None, 0.0, b"gzip")

    task = asyncio.create_task(read())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not task.done()
    arrivals.refuse_late(-clock.monotonic() - 1)
    with pytest.raises(ApiError) as refused:
        await task
    assert isinstance(refused.value, TooLate)
