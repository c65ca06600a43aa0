"""What a gateway knows from compacted topics, in one file: for a start with Kafka away.

One JSON value a line: a header with the SHA-256 of all behind it, then topic, key and value
(base64) of each entry. One wrong bit could open a door that was closed, so a file that is not as it
was written is of no use. A whole file takes the place of the last one, so that a kill at any moment
leaves either.
"""

import asyncio
import hashlib
import itertools
import os
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from ledger.events.envelope import Instant
from streams.errors import LogError

VERSION: Final = 1
ENTRIES_AT_ONCE: Final = 500
"""Entries that are encoded before other tasks of the loop get their turn."""

Values = Mapping[str, Mapping[str, bytes]]
"""Values by topic and key."""


class Header(msgspec.Struct, frozen=True):
    """The first line. `as_of` is when Kafka was last heard of; `sha256` is of all behind it."""

    snapshot: int
    prefix: str
    as_of: Instant
    sha256: str


class Snapshot(msgspec.Struct, frozen=True):
    """A snapshot that was read."""

    as_of: datetime
    values: dict[str, dict[str, bytes]]


_numbers = itertools.count()
_encoder = msgspec.json.Encoder()
_header_decoder = msgspec.json.Decoder(Header)
_entry_decoder = msgspec.json.Decoder(tuple[str, str, bytes])


async def save(path: Path, prefix: str, as_of: datetime, values: Values) -> None:
    """Write `values` to `path`, readable by its owner only.

    The loop is never held for longer than a few entries; the disk is written on a thread. Raises
    `LogError` if the disk refuses; what was there before still is.
    """
    entries = [(topic, key, value) for topic in values for key, value in values[topic].items()]
    lines: list[bytes] = []
    for start in range(0, len(entries), ENTRIES_AT_ONCE):
        lines += [_encoder.encode(entry) for entry in entries[start : start + ENTRIES_AT_ONCE]]
        await asyncio.sleep(0)
    try:
        await asyncio.to_thread(_replace, path, prefix, as_of, lines)
    except OSError as wrong:
        raise LogError(f"the snapshot {path} could not be written: {wrong.strerror}") from wrong


def load(path: Path, prefix: str) -> Snapshot | None:
    """The snapshot at `path` of the installation `prefix`; null if there is none.

    Raises `LogError` for a file that is broken or of another version; it is of no use then. Blocks.
    """
    try:
        first, _, rest = path.read_bytes().partition(b"\n")
    except FileNotFoundError:
        return None
    except OSError as wrong:
        raise LogError(f"the snapshot {path} cannot be read: {wrong.strerror}") from wrong
    try:
        header = _header_decoder.decode(first)
        if header.snapshot != VERSION or header.prefix != prefix:
            raise LogError(
                f"the snapshot {path} is of version {header.snapshot} and prefix {header.prefix!r},"
                f" not of {VERSION} and {prefix!r}; it is not used"
            )
        if hashlib.sha256(rest).hexdigest() != header.sha256:
            raise LogError(f"the snapshot {path} is not as it was written, and not used")
        entries = _entry_decoder.decode_lines(rest)
    except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
        raise LogError(f"the snapshot {path} is broken and not used: {wrong}") from wrong
    values: dict[str, dict[str, bytes]] = {}
    for topic, key, value in entries:
        values.setdefault(topic, {})[key] = value
    return Snapshot(header.as_of, values)


def _replace(path: Path, prefix: str, as_of: datetime, lines: list[bytes]) -> None:
    rest = b"".join(line + b"\n" for line in lines)
    header = Header(VERSION, prefix, as_of, hashlib.sha256(rest).hexdigest())
    new = path.with_name(f"{path.name}.new-{os.getpid()}-{next(_numbers)}")
    try:
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(_encoder.encode(header) + b"\n")
            file.write(rest)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except OSError:
        new.unlink(missing_ok=True)
        raise
