"""Makes the projections again from the book of record, and says whether they were what they are.

Everything happens in one write transaction: the replay goes into shadow tables, and the rows change
places at its end, so a reader sees the old projections or the new ones and a live runner waits.
Running totals of open requests come from events that are not kept; a rebuild leaves them alone.
"""

from collections.abc import Callable

import msgspec
from sqlalchemy import Column, MetaData, Table, delete, insert, select
from sqlalchemy.schema import CreateTable, DropTable

from ledger.folds.book import Book
from ledger.folds.requests import RequestRow
from ledger.sql import tables
from ledger.sql.hashes import projection_hash
from ledger.sql.late import ended_late, store_late
from ledger.sql.projections import (
    MAIN,
    Projection,
    project_attempts,
    project_book,
    project_counters,
    project_reach,
    project_requests,
    project_sources,
    request_rows,
)
from ledger.sql.replay import (
    count_events,
    counted_reaches,
    load_book,
    registry_facts,
    stored_facts,
)
from ledger.sql.rows import request_cells, request_of
from ledger.sql.session import Ledger, WriteSession
from ledger.sql.upsert import upsert

Progress = Callable[[int, int], None]
"""Told how many of how many events are done."""


class Rebuilt(msgspec.Struct, frozen=True):
    """What a rebuild did: the hash of each projection before and after, and the events replayed."""

    before: dict[str, str]
    after: dict[str, str]
    events: int

    @property
    def parted(self) -> tuple[str, ...]:
        """The projections that were not what the events say. Empty: nothing was wrong."""
        return tuple(name for name, now in self.after.items() if self.before[name] != now)


def rebuild(ledger: Ledger, *, progress: Progress = lambda done, total: None) -> Rebuilt:
    """Drop every projection and make it again from the events. Safe to repeat and to interrupt.

    Other writers wait until it is done, or report the ledger as locked and come again. Raises
    `LedgerUnavailable`; then the projections are what they were.
    """
    with ledger.write() as tx:
        before = projection_hash(tx)
        shadow = _shadows(tx)
        count = _replay(tx, shadow, progress)
        _carry_over(tx, shadow)
        after = projection_hash(tx, shadow)
        _swap(tx, shadow)
    return Rebuilt(before, after, count)


def _shadows(tx: WriteSession) -> Projection:
    made = []
    for table in tables.PROJECTIONS:
        columns = [
            Column(c.name, c.type, primary_key=c.primary_key, nullable=c.nullable)
            for c in table.columns
        ]
        shadow = Table(f"rebuilt_{table.name}", MetaData(), *columns, prefixes=["TEMPORARY"])
        tx.execute(CreateTable(shadow))
        made.append(shadow)
    return Projection(*made)


def _replay(tx: WriteSession, to: Projection, progress: Progress) -> int:
    total, done = count_events(tx), 0
    periods = load_book(tx).periods
    late: set[str] = set()
    for facts in stored_facts(tx):
        project_requests(tx, to, facts)
        project_attempts(tx, to, facts)
        project_counters(tx, to, facts)
        project_sources(tx, to, facts)
        late |= ended_late(periods, facts)
        done += len(facts)
        progress(done, total)
    book = Book()
    for facts in registry_facts(tx):
        book = project_book(tx, to, book, facts)
        done += len(facts)
        progress(done, total)
    project_reach(tx, to, counted_reaches(tx))
    store_late(tx, to, periods, late)
    return done


def _carry_over(tx: WriteSession, to: Projection) -> None:
    """Keep what only events that are not stored told: running totals, and how far they got."""
    old = tables.requests
    for part in tx.stream(select(old).where(old.c.state == "open")):
        running = [request_of(row) for row in part]
        known = request_rows(tx, to, [row.request_id for row in running])
        kept = [_with_running(known.get(row.request_id), row) for row in running]
        rows = [request_cells(row) for row in kept if row is not None]
        if rows:
            tx.insert_cells(upsert(tx.dialect, to.requests), rows)
    reached = select(tables.source_topics).where(
        tables.source_topics.c.topic.in_(tables.NOT_KEPT_TOPICS)
    )
    tx.execute(insert(to.source_topics).from_select(list(reached.selected_columns.keys()), reached))


def _with_running(rebuilt: RequestRow | None, old: RequestRow) -> RequestRow | None:
    if rebuilt is None:
        # Only running totals told of it so far. Anything else without an event was never true.
        told = old.accepted_at is None and old.attempts == 0
        return old if told else None
    if rebuilt.billed:
        return None
    return msgspec.structs.replace(rebuilt, chunks=old.chunks, basis=old.basis, usage=old.usage)


def _swap(tx: WriteSession, shadow: Projection) -> None:
    pairs = zip(msgspec.structs.astuple(MAIN), msgspec.structs.astuple(shadow), strict=True)
    for table, rebuilt in pairs:
        tx.execute(delete(table))
        tx.execute(insert(table).from_select([c.name for c in table.columns], select(rebuilt)))
        tx.execute(DropTable(rebuilt))
