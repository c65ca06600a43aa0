"""Live totals of one key, folded from its events with the guard inside. Pure.

The totals are those that the ledger gives for the same events. What the ledger finds out from its
table of events is here kept in the value itself and bounded: how far each source was heard, which
requests are open, and which abandoned ones could still be finished. Where a bound was hit so that
an event may be missing in the totals, `doubtful` counts it; the ledger is right then.
"""

from datetime import datetime
from typing import Final

import msgspec

from ledger.events import (
    Basis,
    Event,
    Payload,
    RequestAbandoned,
    RequestAccepted,
    RequestFinished,
    RequestRejected,
)

SOURCES_MAX: Final = 64
"""Incarnations of gateways that one key remembers; the one not heard for longest is given up."""
OPEN_MAX: Final = 4096
ABANDONED_MAX: Final = 256
OWED_MAX: Final = 64

Counts = tuple[int | None, int | None, int | None, int | None, int | None]


class Heard(msgspec.Struct):
    """How far one source was heard: its last sequence, the offset of that record, and when the
    newest request was accepted there."""

    sequence: int
    offset: int
    accepted_at: datetime | None = None


class Abandoned(msgspec.Struct, frozen=True):
    """What an abandoned request counts for, until it is finished after all."""

    chunks: int
    counts: Counts
    attempts: int
    backend_id: str | None
    basis: Basis
    offset: int


class KeyUsage(msgspec.Struct, kw_only=True):
    """Live totals of one key. Tokens and how many requests knew them stand by `BUCKETS`.

    `ended` counts requests with an end, which are those on a bill; `open` maps each one without an
    end to its deadline. `offset` is that of the last record that was folded in.
    """

    key_id: str
    accepted: int = 0
    rejected: int = 0
    ended: int = 0
    tokens: tuple[int, int, int, int, int] = (0, 0, 0, 0, 0)
    known: tuple[int, int, int, int, int] = (0, 0, 0, 0, 0)
    doubtful: int = 0
    offset: int = -1
    open: dict[str, datetime] = {}
    abandoned: dict[str, Abandoned] = {}
    heard: dict[str, Heard] = {}
    forgotten: str = ""
    owed: list[str] = []


_encoder = msgspec.json.Encoder(order="deterministic")
_decoder = msgspec.json.Decoder(KeyUsage)


def usage_bytes(usage: KeyUsage) -> bytes:
    """The value of `usage`: the same bytes for the same state."""
    return _encoder.encode(usage)


def usage_of(value: bytes) -> KeyUsage:
    """The totals in a value. Raises `msgspec.DecodeError` for bytes that are none."""
    return _decoder.decode(value)


def fold_usage(usage: KeyUsage, event: Event, payload: Payload, offset: int) -> bool:
    """Go on by one event of this key, in place; false if the totals are the same as before.

    A record that was folded in before, or one that was sent again, changes nothing.
    """
    if offset <= usage.offset:
        return False
    usage.offset = offset
    owed = event.name in usage.owed
    if owed:
        usage.owed.remove(event.name)
    elif not _is_new(usage, event, offset):
        return False
    match payload:
        case RequestAccepted():
            _accept(usage, event, payload, owed)
        case RequestFinished():
            _finish(usage, payload)
        case RequestAbandoned():
            return _abandon(usage, payload, offset) or owed
        case RequestRejected():
            usage.rejected += 1
        case _:
            return owed
    return True


def owe(usage: KeyUsage, event: Event, offset: int) -> bool:
    """Note an event whose data cannot be read: once it is mended and sent again it counts, although
    later ones of its source were heard by then. False if nothing changed."""
    if offset <= usage.offset or event.name in usage.owed:
        return False
    usage.offset = offset
    usage.owed.append(event.name)
    if len(usage.owed) > OWED_MAX:
        usage.owed.pop(0)
        usage.doubtful += 1
    return True


def incarnation_of(source: str) -> str:
    """The last part of a source's name, a UUIDv7: later processes sort behind earlier ones."""
    return source.rpartition("/")[2]


def _is_new(usage: KeyUsage, event: Event, offset: int) -> bool:
    heard = usage.heard.get(event.source)
    if heard is not None:
        if event.sequence <= heard.sequence:
            return False
        heard.sequence, heard.offset = event.sequence, offset
        return True
    if incarnation_of(event.source) <= usage.forgotten:
        usage.doubtful += 1
        return False
    usage.heard[event.source] = Heard(event.sequence, offset)
    if len(usage.heard) > SOURCES_MAX:
        oldest = min(usage.heard, key=lambda source: usage.heard[source].offset)
        del usage.heard[oldest]
        usage.forgotten = max(usage.forgotten, incarnation_of(oldest))
    return True


def _accept(usage: KeyUsage, event: Event, said: RequestAccepted, owed: bool) -> None:
    usage.accepted += 1
    heard = usage.heard.get(event.source)
    if heard is not None and (heard.accepted_at is None or event.time > heard.accepted_at):
        heard.accepted_at = event.time
    if owed or said.request_id in usage.abandoned:
        # It has its end already, or may have: one that was owed comes long after its time.
        return
    usage.open[said.request_id] = said.deadline
    if len(usage.open) > OPEN_MAX:
        del usage.open[min(usage.open, key=lambda name: (usage.open[name], name))]
        usage.doubtful += 1


def _finish(usage: KeyUsage, said: RequestFinished) -> None:
    usage.open.pop(said.request_id, None)
    before = usage.abandoned.pop(said.request_id, None)
    if before is not None:
        _count(usage, before.counts, -1)
    _count(usage, said.usage.counts(), 1)


def _abandon(usage: KeyUsage, said: RequestAbandoned, offset: int) -> bool:
    """An abandoned request counts once, however often its spool is adopted, and not at all if it
    was finished."""
    before = usage.abandoned.get(said.request_id)
    now = Abandoned(
        said.chunks, said.usage.counts(), said.attempts, said.backend_id, said.basis, offset
    )
    if before is not None:
        if _further(now) <= _further(before):
            return False
        _count(usage, before.counts, -1)
    elif usage.open.pop(said.request_id, None) is None and _was_heard(usage, said):
        return False
    _count(usage, now.counts, 1)
    usage.abandoned[said.request_id] = now
    if len(usage.abandoned) > ABANDONED_MAX:
        oldest = min(usage.abandoned, key=lambda name: (usage.abandoned[name].offset, name))
        del usage.abandoned[oldest]
    return True


def _was_heard(usage: KeyUsage, said: RequestAbandoned) -> bool:
    """True if the acceptance of this request, which is not open, has been folded in: then it has
    ended already. False if the gateway's own records of it are still to come."""
    heard = usage.heard.get(said.abandoned_source)
    if heard is None:
        return incarnation_of(said.abandoned_source) <= usage.forgotten
    return heard.accepted_at is not None and said.accepted_at <= heard.accepted_at


def _further(one: Abandoned) -> tuple[object, ...]:
    """The order of `fold_request`, so that the ledger keeps the same one of two."""
    shown = [-1 if count is None else count for count in one.counts]
    total = sum(count or 0 for count in one.counts)
    return one.chunks, total, one.attempts, one.backend_id or "", one.basis, shown


def _count(usage: KeyUsage, counts: Counts, sign: int) -> None:
    usage.ended += sign
    a, b, c, d, e = (t + sign * (n or 0) for t, n in zip(usage.tokens, counts, strict=True))
    usage.tokens = (a, b, c, d, e)
    a, b, c, d, e = (k + sign * (n is not None) for k, n in zip(usage.known, counts, strict=True))
    usage.known = (a, b, c, d, e)
