"""How far one spool has been relayed, and what it had open there: a small file beside its segments.

It is replaced whole after the brokers' acks. Should it be older than the truth, records go out
again, which changes nothing; so it is never forced to disk. It holds the open requests themselves,
because the spool may lose, in a power cut, records that Kafka has already.
"""

import os
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from streams.adoption import OpenRequest, SpoolLife

CURSOR: Final = "relayed.json"


class Cursor(msgspec.Struct, frozen=True, kw_only=True):
    """Everything below the logical offset `position` is in Kafka; the rest is a `SpoolLife`."""

    position: int = 0
    source: str | None = None
    last: dict[str, int] = {}
    last_time: datetime | None = None
    closed_itself: bool = False
    open: list[OpenRequest] = []


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Cursor)


def cursor_of(position: int, life: SpoolLife) -> Cursor:
    """What is to be kept at `position`."""
    return Cursor(
        position=position,
        source=life.source,
        last=life.last,
        last_time=life.last_time,
        closed_itself=life.closed_itself,
        open=list(life.open.values()),
    )


def life_of(cursor: Cursor) -> SpoolLife:
    """What the spool's records up to the cursor had said."""
    life = SpoolLife()
    life.source, life.last_time = cursor.source, cursor.last_time
    life.last = dict(cursor.last)
    life.closed_itself = cursor.closed_itself
    life.open = {request.row.request_id: request for request in cursor.open}
    return life


def load(directory: Path) -> Cursor | None:
    """The cursor of the spool in `directory`; null if there is none that can be read.

    Raises `OSError` for a disk that cannot be read.
    """
    try:
        return _decoder.decode((directory / CURSOR).read_bytes())
    except FileNotFoundError:
        return None
    except msgspec.DecodeError:
        # A power cut left half a file. The spool is relayed again from what is left of it.
        return None


def save(directory: Path, cursor: Cursor) -> None:
    """Replace the cursor of the spool in `directory`. Raises `OSError`; then the old one stands."""
    replace(directory / CURSOR, _encoder.encode(cursor))


def replace(path: Path, data: bytes) -> None:
    """Give the file `path` the content `data`, whole or not at all."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_bytes(data)
    os.replace(fresh, path)
