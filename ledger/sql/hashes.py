"""One hash per projection: equal exactly if two ledgers say the same, however they came to it.

Nothing that depends on arrival is hashed: no offset, no time of writing, no automatic id. Running
totals of open requests are left out as well, since the events they come from are not kept.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Table, not_, select

from ledger.events import BUCKETS
from ledger.sql import tables
from ledger.sql.projections import MAIN, Projection
from ledger.sql.session import ReadSession

RUNNING = ("chunks", "basis", *BUCKETS)
"""Columns of `requests` that running totals move while a request is open."""


def only_running(table: Table) -> ColumnElement[bool]:
    """Rows of `requests` that nothing but running totals told of so far: no kept event has them."""
    return (table.c.state == "open") & table.c.accepted_us.is_(None) & (table.c.attempts == 0)


def projection_hash(read: ReadSession, of: Projection = MAIN) -> dict[str, str]:
    """The SHA-256 of each projection, by the name of its table."""
    return {
        "requests": _hash(read, of.requests, not_(only_running(of.requests)), mask=RUNNING),
        "usage_hourly": _hash(read, of.usage_hourly),
        "keys": _hash(read, of.keys),
        "prices": _hash(read, of.prices),
        "sources": _hash(read, of.sources),
        "source_topics": _hash(
            read, of.source_topics, of.source_topics.c.topic.not_in(tables.NOT_KEPT_TOPICS)
        ),
        "attempts": _hash(read, of.attempts),
        "counters": _hash(read, of.counters),
        "late": _hash(read, of.late),
    }


def _hash(
    read: ReadSession, table: Table, *where: ColumnElement[bool], mask: Sequence[str] = ()
) -> str:
    """The hash of every row as a JSON array, one a line, in the order of the primary key."""
    digest = sha256()
    encode = msgspec.json.Encoder().encode
    state = [c.name for c in table.columns].index("state") if mask else -1
    masked = [n for n, c in enumerate(table.columns) if c.name in mask]
    statement = select(table).where(*where).order_by(*table.primary_key.columns)
    for part in read.stream(statement):
        for row in part:
            values: list[Any] = list(row)
            if mask and values[state] == "open":
                for place in masked:
                    values[place] = None
            digest.update(encode(values) + b"\n")
    return digest.hexdigest()
