"""The framing of every log on disk: what one append becomes as bytes, and how it is read back.

A frame is 4 bytes big-endian length, 4 bytes CRC-32, then the records of one append, one to a line
(JSON escapes line ends, so a record never holds one). One checksum over the whole append makes it
all or nothing: neither a kill nor a full disk can leave half of it for a reader to see. Pure: this
module opens no file.
"""

import struct
import sys
import zlib
from collections.abc import Sequence
from typing import Final, NamedTuple

_HEADER: Final = struct.Struct(">II")
HEADER_BYTES: Final = _HEADER.size

FRAME_BYTES_MAX: Final = 1 << 20
"""Payload of one frame. Records are about 500 bytes; the bound keeps a flipped length from being
taken for a frame of gigabytes that "has not arrived yet"."""

_RECORD_START: Final = b'{"specversion":'
"""How every record that `streams.codec` writes begins: lets a search for whole frames behind broken
bytes jump, where trying every offset of a segment would take seconds."""


class Frame(NamedTuple):
    """One whole frame: where its header starts in the scanned bytes, and its payload."""

    start: int
    payload: bytes


class Scan(NamedTuple):
    """The whole frames from the front of some bytes; `end` is where the last of them ends."""

    frames: list[Frame]
    end: int


def frame(records: Sequence[bytes]) -> bytes:
    """The bytes that one append of `records` writes. Records hold no line end.

    Raises `ValueError` for no records at all or more than `FRAME_BYTES_MAX` bytes of them.
    """
    payload = b"\n".join(records)
    if not 0 < len(payload) <= FRAME_BYTES_MAX:
        raise ValueError(f"an append of {len(payload)} bytes; it takes 1 to {FRAME_BYTES_MAX}")
    return _HEADER.pack(len(payload), zlib.crc32(payload)) + payload


def records(payload: bytes) -> list[tuple[int, bytes]]:
    """The records of a frame with their offsets from the frame's header on."""
    found = []
    at = HEADER_BYTES
    for record in payload.split(b"\n"):
        found.append((at, record))
        at += len(record) + 1
    return found


def scan(data: bytes, start: int = 0, most: int = sys.maxsize) -> Scan:
    """The whole frames of `data` from `start` on, `most` of them, up to bytes that are none.

    Any bytes give a value. What stands behind `end` is torn, has not arrived yet, or is broken:
    `next_frame` tells the last from the others.
    """
    frames: list[Frame] = []
    size = len(data)
    while (body := start + HEADER_BYTES) <= size and len(frames) < most:
        length, checksum = _HEADER.unpack_from(data, start)
        end = body + length
        # No length of 0: a hole of zeros, as a power cut leaves it, has a valid CRC-32 of 0.
        if not 0 < length <= FRAME_BYTES_MAX or end > size:
            break
        payload = data[body:end]
        if zlib.crc32(payload) != checksum:
            break
        frames.append(Frame(start, payload))
        start = end
    return Scan(frames, start)


def next_frame(data: bytes, start: int) -> int | None:
    """Where the first whole frame begins at or after `start`; null if there is none.

    A writer only ever adds to the end, so a whole frame behind broken bytes proves that those bytes
    were whole once: corruption, not a torn tail.
    """
    found = data.find(_RECORD_START, start + HEADER_BYTES)
    while found >= 0:
        if scan(data, found - HEADER_BYTES, most=1).frames:
            return found - HEADER_BYTES
        found = data.find(_RECORD_START, found + 1)
    return None
