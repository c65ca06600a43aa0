"""What the ledger knows of one source: whether it is closed, how far it got, what it left open.

For whoever adopts a dead source's spool. It reads, and writes nothing.
"""

from datetime import datetime

from sqlalchemy import select

from ledger.clock import from_us
from ledger.folds.requests import RequestRow
from ledger.sql import tables
from ledger.sql.rows import request_of
from ledger.sql.session import ReadSession


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
