"""Compressed bodies: whole whatever way they are split, bounded, and never taken for what they are
not."""

import gzip
import itertools
import tracemalloc
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.wire.codings import (
    MEMBERS_MAX,
    PIECE_BYTES,
    CodingError,
    Inflater,
    UnknownCodingError,
    is_plain,
)


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


WAYS: dict[str, tuple[bytes, Callable[[bytes], bytes]]] = {
    "gzip": (b"gzip", gzip.compress),
    "x-gzip": (b"X-GZIP", gzip.compress),
    "stored gzip": (b" gzip ", lambda data: gzip.compress(data, 0)),
    "two members": (b"gzip", lambda data: gzip.compress(data[:9]) + gzip.compress(data[9:])),
    "deflate": (b"deflate", zlib.compress),
    "bare deflate": (b"deflate", raw_deflate),
}


def inflated(coding: bytes, parts: list[bytes]) -> bytes:
    inflater = Inflater(coding)
    pieces = [piece for part in parts for piece in inflater.pieces(part)]
    inflater.end()
    assert all(0 < len(piece) <= PIECE_BYTES for piece in pieces)
    return b"".join(pieces)


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=40)
@given(data=st.binary(max_size=3000), cuts=st.lists(st.integers(0, 3000), max_size=8))
def test_a_body_is_whole_however_it_is_split(way: str, data: bytes, cuts: list[int]) -> None:
    coding, pack = WAYS[way]
    packed = pack(data)
    places = [0, *sorted(min(cut, len(packed)) for cut in cuts), len(packed)]
    parts = [packed[start:end] for start, end in itertools.pairwise(places)]
    assert inflated(coding, parts) == data


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [PIECE_BYTES - 1, PIECE_BYTES, 3 * PIECE_BYTES, 5_000_003])
def test_a_large_body_comes_in_pieces(way: str, size: int) -> None:
    coding, pack = WAYS[way]
    data = (b"abc" * (size // 3 + 1))[:size]
    assert inflated(coding, [pack(data)]) == data


@pytest.mark.parametrize("way", WAYS)
def test_every_place_to_break_off_is_noticed(way: str) -> None:
    coding, pack = WAYS[way]
    packed = pack(b"0123456789" * 20)
    first = len(pack(b"012345678")) - len(pack(b"")) // 2 if way == "two members" else 0
    for end in range(1, len(packed)):
        inflater = Inflater(coding)
        list(inflater.pieces(packed[:end]))
        if end == first:
            inflater.end()  # the first of two members is a body of its own
            continue
        with pytest.raises(CodingError, match="breaks off in the middle"):
            inflater.end()


def test_an_empty_body_is_whole_in_any_coding() -> None:
    for coding, _ in WAYS.values():
        assert inflated(coding, [b""]) == b""


def test_what_is_flushed_can_be_read_at_once() -> None:
    packer = zlib.compressobj(wbits=16 + zlib.MAX_WBITS)
    inflater = Inflater(b"gzip")
    for number in range(50):
        event = b'data: {"n": %d}\n\n' % number
        packed = packer.compress(event) + packer.flush(zlib.Z_SYNC_FLUSH)
        assert b"".join(inflater.pieces(packed)) == event
    assert b"".join(inflater.pieces(packer.flush())) == b""
    inflater.end()


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        (b"gzip", b'{"model": "m"}'),
        (b"gzip", zlib.compress(b"x")),
        (b"deflate", gzip.compress(b"x")),
        (b"gzip", gzip.compress(b"x") + b"garbage"),
        (b"gzip", gzip.compress(b"x")[:-8] + b"\0" * 8),
        (b"deflate", zlib.compress(b"x") + b"!"),
        (b"deflate", zlib.compress(b"x")[:-4] + b"\0" * 4),
        (b"gzip", gzip.compress(b"") * (MEMBERS_MAX + 1)),
    ],
)
def test_what_is_not_what_it_says_is_refused(coding: bytes, body: bytes) -> None:
    with pytest.raises(CodingError, match=r"is not the|goes on behind the end"):
        inflated(coding, [body])


@given(body=st.binary(min_size=1, max_size=200), coding=st.sampled_from([b"gzip", b"deflate"]))
def test_garbage_raises_nothing_else(body: bytes, coding: bytes) -> None:
    try:
        inflated(coding, [body])
    except CodingError:
        return


@pytest.mark.parametrize("coding", [b"br", b"zstd", b"gzip, gzip", b"\xff", b"a" * 500])
def test_a_coding_that_is_not_read_is_named(coding: bytes) -> None:
    with pytest.raises(UnknownCodingError, match="only gzip and deflate") as refused:
        Inflater(coding)
    assert len(str(refused.value)) < 160


def test_a_bomb_costs_one_piece_at_a_time() -> None:
    bomb = gzip.compress(b"\0" * (200 * PIECE_BYTES))
    assert len(bomb) < PIECE_BYTES
    tracemalloc.start()
    inflater = Inflater(b"gzip")
    for number, _ in enumerate(inflater.pieces(bomb)):
        if number == 100:
            break
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * PIECE_BYTES


@pytest.mark.parametrize(
    ("coding", "plain"),
    [(None, True), (b"", True), (b"identity", True), (b" Identity ", True), (b"gzip", False)],
)
def test_identity_is_no_coding(coding: bytes | None, plain: bool) -> None:
    assert is_plain(coding) is plain
