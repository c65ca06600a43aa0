"""What the ledger knows of a source: whether it is closed, how far it got, what it left open.

For whoever adopts a dead source's spool, and for an operator. It reads, and writes nothing.
"""

from datetime import datetime

import msgspec
from sqlalchemy import func, select

from ledger.clock import from_us
from ledger.folds.requests import RequestRow
from ledger.sql import tables
from ledger.sql.rows import request_of
from ledger.sql.session import ReadSession


class SourceState(msgspec.Struct, frozen=True, kw_only=True):
    """One source: its first and last mark, by whom it was closed and when, the last sequence of
    each topic, and how many of its requests have no end. Null is what nothing told of yet."""

    source: str
    first_mark: datetime | None = None
    last_mark: datetime | None = None
    closed_at: datetime | None = None
    closed_by: str | None = None
    last: dict[str, int] = {}
    open: int = 0


def source_states(read: ReadSession) -> list[SourceState]:
    """Every source that the ledger has heard of, in the order of their names."""
    table, topics, requests = tables.sources, tables.source_topics, tables.requests
    told = {row.source: row for row in read.rows(select(table))}
    last: dict[str, dict[str, int]] = {}
    for row in read.rows(select(topics).order_by(topics.c.source, topics.c.topic)):
        last.setdefault(row.source, {})[row.topic] = row.last_sequence
    counted = select(requests.c.source, func.count()).where(requests.c.state == "open")
    open_now: dict[str, int] = dict(read.rows(counted.group_by(requests.c.source)))

    def moment(source: str, column: str) -> datetime | None:
        us = getattr(told.get(source), column, None)
        return None if us is None else from_us(us)

    return [
        SourceState(
            source=source,
            first_mark=moment(source, "first_us"),
            last_mark=moment(source, "last_mark_us"),
            closed_at=moment(source, "closed_us"),
            closed_by=getattr(told.get(source), "closed_by", None),
            last=last.get(source, {}),
            open=open_now.get(source, 0),
        )
        for source in sorted(told.keys() | last.keys())
    ]


def closed_by(read: ReadSession, source: str) -> str | None:
    """Who closed `source` (`itself`, or its adopter); null if nobody has."""
    found: str | None = read.value(
        select(tables.sources.c.closed_by).where(tables.sources.c.source == source)
    )
    return found


def last_sequences(read: ReadSession, source: str) -> dict[str, int]:
    """The last sequence of each topic that the ledger has seen of `source`."""
    topics = tables.source_topics
    wanted = select(topics.c.topic, topics.c.last_sequence).where(topics.c.source == source)
    return {row.topic: row.last_sequence for row in read.rows(wanted)}


def last_heard(read: ReadSession, source: str) -> datetime | None:
    """When the last event that is stored of `source` happened; null if there is none."""
    events = tables.events
    found: int | None = read.value(
        select(events.c.time_us)
        .where(events.c.source == source)
        .order_by(events.c.time_us.desc())
        .limit(1)
    )
    return None if found is None else from_us(found)


def open_requests(read: ReadSession, source: str) -> list[RequestRow]:
    """The requests that `source` accepted and that have no end, oldest first."""
    requests = tables.requests
    rows = read.rows(
        select(*requests.columns)
        .where(requests.c.source == source, requests.c.state == "open")
        .order_by(requests.c.accepted_us, requests.c.request_id)
    )
    return [request_of(row) for row in rows]
