"""Reads the book of record back as facts, in bounded memory: for a rebuild and for the audit."""

from collections.abc import Iterator

from sqlalchemy import Select, func, select, union

from ledger.events import BackendCounted, payload_of
from ledger.folds.book import Book, BookFold
from ledger.sql import tables
from ledger.sql.intake import REGISTRY
from ledger.sql.projections import Fact, Reach
from ledger.sql.rows import EVENT_COLUMNS, event_of
from ledger.sql.session import ReadSession

RUN = 5000
"""Events held in memory at a time."""


def count_events(read: ReadSession) -> int:
    """How many events the ledger holds."""
    return int(read.value(select(func.count()).select_from(tables.events)))


def stored_facts(read: ReadSession) -> Iterator[list[Fact]]:
    """Every stored event but those of the registry, in runs. The order is that of their ids, so
    the events of one request stand together."""
    table = tables.events
    yield from _facts(
        read, select(*EVENT_COLUMNS).where(table.c.topic != REGISTRY).order_by(table.c.id)
    )


def counted_facts(read: ReadSession) -> Iterator[list[Fact]]:
    """The stored readings of engines' counters, in runs, each source's in its order."""
    table = tables.events
    statement = select(*EVENT_COLUMNS).where(table.c.topic == BackendCounted.TOPIC)
    yield from _facts(read, statement.order_by(table.c.source, table.c.sequence))


def registry_facts(read: ReadSession, *, before: int | None = None) -> Iterator[list[Fact]]:
    """The stored events of the registry in its one order, in runs; only those before a place."""
    place = tables.events.c.place
    statement = select(*EVENT_COLUMNS).where(place.is_not(None)).order_by(place)
    yield from _facts(read, statement if before is None else statement.where(place < before))


def load_book(read: ReadSession, *, before: int | None = None) -> Book:
    """The registry folded from the stored events, or only from those before a place."""
    fold = BookFold(Book())
    for facts in registry_facts(read, before=before):
        for fact in facts:
            fold.take(fact.event, fact.payload)
    return fold.book()


def counted_reaches(read: ReadSession) -> dict[tuple[str, str], Reach]:
    """How far each source and kept topic is known, counted anew from what was stored or noted."""
    seen = union(
        *(
            select(table.c.source, table.c.topic, table.c.sequence).where(
                table.c.topic.not_in(tables.NOT_KEPT_TOPICS)
            )
            for table in (tables.events, tables.duplicates, tables.conflicts)
        )
    ).subquery()
    by_topic = select(
        seen.c.source, seen.c.topic, func.max(seen.c.sequence), func.count()
    ).group_by(seen.c.source, seen.c.topic)
    return {
        (source, topic): Reach(last, received)
        for source, topic, last, received in read.rows(by_topic)
    }


def _facts(read: ReadSession, statement: Select[*tuple[object, ...]]) -> Iterator[list[Fact]]:
    for part in read.stream(statement, size=RUN):
        facts = []
        for row in part:
            event = event_of(row)
            facts.append(Fact(event, payload_of(event), row.data))
        yield facts
