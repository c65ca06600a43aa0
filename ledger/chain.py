"""The hash chain of each source and topic, and the one hash over all of them. Pure.

A link is the SHA-256 of the link before it (32 zero bytes at the start) and the event's own JSON,
as its source wrote it but without `recordedtime`, which says who noted it when and not what
happened. So a chain follows from the events alone: whoever holds them makes the same heads.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Final

import msgspec

START: Final = bytes(32)
"""The head of a chain without links."""

UNCHAINED_TOPICS: Final = frozenset({"tokens", "backends"})
"""What the ledger does not keep cannot be proven by it."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _Linked(msgspec.Struct, frozen=True):
    """What of an event is hashed. The order of the fields is that of a record of a log."""

    specversion: str
    id: str
    source: str
    topic: str
    sequence: int
    type: str
    subject: str
    time: datetime
    data: msgspec.Raw


_encode = msgspec.json.Encoder().encode


def link(
    head: bytes,
    source: str,
    topic: str,
    sequence: int,
    id: str,
    type: str,
    subject: str,
    time_us: int,
    data: bytes,
) -> bytes:
    """The head behind an event, 32 bytes: `head` is the one before it, `data` its data's bytes and
    `time_us` its time in microseconds since 1970 UTC."""
    time = _EPOCH + timedelta(microseconds=time_us)
    return link_event(head, source, topic, sequence, id, type, subject, time, msgspec.Raw(data))


def link_event(
    head: bytes,
    source: str,
    topic: str,
    sequence: int,
    id: str,
    type: str,
    subject: str,
    time: datetime,
    data: msgspec.Raw,
) -> bytes:
    """`link` for an event that was read and is still whole; `time` is in UTC."""
    linked = _Linked("1.0", id, source, topic, sequence, type, subject, time, data)
    return sha256(head + _encode(linked)).digest()


def link_record(head: bytes, record: bytes) -> bytes:
    """`link` for an event as `streams.codec` wrote it, without reading it."""
    # Within a JSON text a quote is escaped, so these can only be the names of the two fields.
    time = record.index(b',"recordedtime":')
    return sha256(head + record[:time] + record[record.index(b',"data":', time) :]).digest()


def root_of(heads: Mapping[tuple[str, str], tuple[int, str]]) -> str:
    """The one hash over the heads of many chains, 64 hex digits. `heads` maps a source and topic to
    a sequence and the head there, in hex digits; the order does not matter."""
    hashed = sha256()
    for (source, topic), (sequence, head) in sorted(heads.items()):
        hashed.update(_encode((source, topic, sequence, head)) + b"\n")
    return hashed.hexdigest()
