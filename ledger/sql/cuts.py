"""How far a month is known: which sources have told all of it, and the cut behind which it is late.

A gateway has told a month when it is closed, or has a mark past the month's end, and everything up
to there has come. A cut never reaches over a gap: what fills one later is then outside it.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec
from sqlalchemy import func, select

from ledger.clock import from_us
from ledger.events import RequestAccepted, SourceClosed, SourceMark, payload_of
from ledger.folds.money import Period
from ledger.sql import tables
from ledger.sql.checks import gaps
from ledger.sql.rows import EVENT_COLUMNS, event_of
from ledger.sql.session import ReadSession
from ledger.words import counted

TOPIC = RequestAccepted.TOPIC
Cut = dict[str, dict[str, int]]


class Blocker(msgspec.Struct, frozen=True):
    """A source that keeps a month from being closed, and why in words."""

    source: str
    words: str


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A gateway that was at work: when it began, its last mark, and whether it is closed."""

    source: str
    began_us: int
    last_mark_us: int | None
    closed_us: int | None


def whole(read: ReadSession) -> Cut:
    """By source and topic the last sequence up to which nothing is missing."""
    table = tables.source_topics
    found: Cut = {}
    for row in read.rows(select(*table.columns).order_by(table.c.source, table.c.topic)):
        if row.topic in tables.NOT_KEPT_TOPICS:
            continue
        upto = row.last_sequence
        if row.received != upto:
            missing = gaps(read, row.source, row.topic, most=1)
            upto = missing[0][0] - 1 if missing else upto
        if upto:
            found.setdefault(row.source, {})[row.topic] = upto
    return found


def blockers(
    read: ReadSession, end_us: int, known: Mapping[str, Mapping[str, int]]
) -> Iterator[Blocker]:
    """The gateways that were at work before an instant and have not told all up to there, by name.

    `known` is what `whole` gives.
    """
    for one in _gateways(read):
        if one.began_us >= end_us:
            continue
        claimed = _claimed(read, one, end_us)
        if claimed is None:
            seen = (
                "no mark" if one.last_mark_us is None else f"its last at {shown(one.last_mark_us)}"
            )
            words = (
                f"it has no mark at or after {shown(end_us)} ({seen}) and is not closed, so it "
                "may hold what has not come; let it run and send, or close it by `tollbook sources "
                "close` if it never comes back"
            )
            yield Blocker(one.source, words)
            continue
        has = known.get(one.source, {}).get(TOPIC, 0)
        if has < claimed:
            what = "of the events that it wrote"
            words = (
                f"{counted(claimed - has, f'{what} has', f'{what} have')} not come: {has:,} of "
                f"{claimed:,} are here without a gap; let it send them"
            )
            yield Blocker(one.source, words)


def cut_of(
    read: ReadSession,
    periods: Sequence[Period],
    start_us: int,
    known: Mapping[str, Mapping[str, int]],
) -> Cut:
    """The part of `known` that a month from `start_us` on is cut by: the sources that told anything
    since the month before was closed, or that may have told of this one."""
    closed = {one.source: one.closed_us for one in _gateways(read)}
    found: Cut = {}
    for source, topics in sorted(known.items()):
        new = any(
            upto > max((p.cut.get(source, {}).get(topic, 0) for p in periods), default=0)
            for topic, upto in topics.items()
        )
        ended = closed.get(source, 0)
        if new or ended is None or ended >= start_us:
            found[source] = dict(sorted(topics.items()))
    return found


def unknown(read: ReadSession, sources: Collection[str]) -> list[str]:
    """Those of `sources` that are no gateway that the ledger knows."""
    known = {one.source for one in _gateways(read)}
    return sorted(set(sources) - known)


def gateways(read: ReadSession) -> list[str]:
    """The names of all sources that served."""
    return [one.source for one in _gateways(read)]


def _gateways(read: ReadSession) -> list[Source]:
    """The sources that marked or accepted requests. Commands and adopters do neither; what they
    tell of others has come when they say that it is closed."""
    table, requests = tables.sources, tables.requests
    found: dict[str, Source] = {}
    for row in read.rows(select(*table.columns).order_by(table.c.source)):
        if row.first_us is not None:
            found[row.source] = Source(
                source=row.source,
                began_us=row.first_us,
                last_mark_us=row.last_mark_us,
                closed_us=row.closed_us,
            )
    closed = {row.source: row.closed_us for row in read.rows(select(*table.columns))}
    topics = tables.source_topics
    writers = select(topics.c.source).where(topics.c.topic == TOPIC).order_by(topics.c.source)
    for (source,) in read.rows(writers):
        if source in found:
            continue
        began = select(func.min(requests.c.accepted_us)).where(requests.c.source == source)
        began_us = read.value(began)
        if began_us is not None:
            found[source] = Source(
                source=source,
                began_us=int(began_us),
                last_mark_us=None,
                closed_us=closed.get(source),
            )
    return [found[name] for name in sorted(found)]


def _claimed(read: ReadSession, one: Source, end_us: int) -> int | None:
    """How many events of requests the source says that it wrote up to the end of the month; null if
    it has not said."""
    if one.closed_us is not None:
        return _closed_at(read, one.source)
    table = tables.events
    mark = (
        select(*EVENT_COLUMNS)
        .where(
            table.c.source == one.source,
            table.c.topic == SourceMark.TOPIC,
            table.c.time_us >= end_us,
            table.c.type == SourceMark.TYPE,
        )
        .order_by(table.c.sequence)
        .limit(1)
    )
    for row in read.rows(mark):
        payload = payload_of(event_of(row))
        if isinstance(payload, SourceMark):
            return payload.last.get(TOPIC, 0)
    return None


def _closed_at(read: ReadSession, source: str) -> int:
    """The last sequence that a closing of `source` names; the highest of several."""
    table = tables.events
    name = f"{source}/closed"
    said = select(*EVENT_COLUMNS).where(
        table.c.id >= name, table.c.id < f"{name}0", table.c.type == SourceClosed.TYPE
    )
    payloads = [payload_of(event_of(row)) for row in read.rows(said)]
    return max(
        (
            payload.last.get(TOPIC, 0)
            for payload in payloads
            if isinstance(payload, SourceClosed) and payload.closed_source == source
        ),
        default=0,
    )


def shown(us: int) -> str:
    """An instant for a person, `2026-11-01T00:00:00Z`."""
    return from_us(us).isoformat(timespec="seconds").replace("+00:00", "Z")
