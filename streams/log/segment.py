"""The framing of every log on disk: what one append becomes as bytes, and how it is read back.

A frame is 4 bytes big-endian length, 4 bytes CRC-32, then the records of one append, one to a line
(JSON escapes line ends, so a record never holds one). One checksum over the whole append makes it
all or nothing: neither a kill nor a full disk can leave half of it for a reader to see. Pure: this
module opens no file.
"""

import struct
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


def scan(data: bytes, start: int = 0) -> Scan:
    """All whole frames of `data` from `start` on, up to the first bytes that are not one.

    Any bytes give a value. What stands behind `end` is torn, has not arrived yet, or is broken:
    `next_frame` tells the last from the others.
    """
    frames = []
    while (payload := _payload(data, start)) is not None:
        frames.append(Frame(start, payload))
        start += HEADER_BYTES + len(payload)
    return Scan(frames, start)


def next_frame(data: bytes, start: int) -> int | None:
    """Where the first whole frame begins at or after `start`; null if there is none.

    A writer only ever adds to the end, so a whole frame behind broken bytes proves that those bytes
    were whole once: corruption, not a torn tail.
    """
    found = data.find(_RECORD_START, start + HEADER_BYTES)
    while found >= 0:
        if _payload(data, found - HEADER_BYTES) is not None:
            return found - HEADER_BYTES
        found = data.find(_RECORD_START, found + 1)
    return None


def _payload(data: bytes, start: int) -> bytes | None:
    """The payload of the frame at `start`, or null if the bytes there are not a whole frame."""
    body = start + HEADER_BYTES
    if body > len(data):
        return None
    length, checksum = _HEADER.unpack_from(data, start)
    # A length of 0 is refused: a hole of zeros, as a power cut leaves it, has a valid CRC-32 of 0.
    if not 0 < length <= FRAME_BYTES_MAX or body + length > len(data):
        return None
    payload = data[body : body + length]
    return payload if zlib.crc32(payload) == checksum else None
