"""What the audit asks the ledger: stored rows side by side, counts made anew. It never judges."""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from sqlalchemy import Table, func, literal_column, select, union
from sqlalchemy.types import BigInteger

from ledger.clock import to_us
from ledger.events import BackendCounted, Event
from ledger.folds.requests import RequestRow
from ledger.folds.usage import HOUR_US, Cell, Rolled
from ledger.sql import tables
from ledger.sql.hashes import only_running
from ledger.sql.intake import Name
from ledger.sql.projections import LOOKUP_MAX, MAIN, Reach, request_rows, runs
from ledger.sql.replay import counted_facts, load_book
from ledger.sql.rows import (
    EVENT_COLUMNS,
    counters_params,
    event_of,
    hourly_of,
    key_params,
    price_params,
    sums_of_requests,
)
from ledger.sql.session import ReadSession


class Stretch(msgspec.Struct, frozen=True):
    """What the ledger knows of one source and topic between two sequences, by sequence."""

    stored: dict[int, Event]
    renamed: dict[int, str]
    aside: frozenset[int]


def set_aside(read: ReadSession) -> Iterator[tuple[Name, str, str]]:
    """The name, id and reason of every event that was set aside."""
    table = tables.conflicts
    columns = (table.c.source, table.c.topic, table.c.sequence, table.c.id, table.c.reason)
    for part in read.stream(select(*columns).order_by(*table.primary_key.columns)):
        for source, topic, sequence, event_id, reason in part:
            yield (source, topic, sequence), event_id, reason


def poisoned(read: ReadSession) -> Iterator[tuple[str, int, str]]:
    """The log, offset and reason of every record that was no event."""
    table = tables.poison
    columns = (table.c.log, table.c.log_offset, table.c.reason)
    for part in read.stream(select(*columns).order_by(*table.primary_key.columns)):
        yield from ((log, offset, reason) for log, offset, reason in part)


def stretch(read: ReadSession, source: str, topic: str, low: int, high: int) -> Stretch:
    """All that is stored or noted of `source` and `topic` from `low` to `high`, both included."""

    def rows(table: Table, *columns: Any) -> Any:
        return read.rows(
            select(*columns).where(
                table.c.source == source,
                table.c.topic == topic,
                table.c.sequence.between(low, high),
            )
        )

    renamed, aside = tables.duplicates, tables.conflicts
    events = [event_of(row) for row in rows(tables.events, *EVENT_COLUMNS)]
    return Stretch(
        stored={event.sequence: event for event in events},
        renamed=dict(rows(renamed, renamed.c.sequence, renamed.c.id)),
        aside=frozenset(row[0] for row in rows(aside, aside.c.sequence)),
    )


def event_with_id(read: ReadSession, event_id: str) -> Event | None:
    """The stored event of that id."""
    found = read.rows(select(*EVENT_COLUMNS).where(tables.events.c.id == event_id))
    return event_of(found[0]) if found else None


def reaches(read: ReadSession) -> dict[tuple[str, str], Reach]:
    """How far each source and topic is known, as the projection says."""
    table = tables.source_topics
    columns = (table.c.source, table.c.topic, table.c.last_sequence, table.c.received)
    return {
        (source, topic): Reach(last, received or 0)
        for source, topic, last, received in read.rows(select(*columns))
    }


def gaps(read: ReadSession, source: str, topic: str, *, most: int) -> list[tuple[int, int]]:
    """The first and last sequence of each gap, at most `most` of them."""
    known = union(
        *(
            select(table.c.sequence).where(table.c.source == source, table.c.topic == topic)
            for table in (tables.events, tables.duplicates, tables.conflicts)
        )
    ).subquery()
    before = func.lag(known.c.sequence, 1, 0).over(order_by=known.c.sequence)
    pairs = select(before.label("before"), known.c.sequence.label("here")).subquery()
    found = select(pairs.c.before, pairs.c.here).where(pairs.c.here > pairs.c.before + 1)
    rows = read.rows(found.order_by(pairs.c.here).limit(most))
    return [(before + 1, here - 1) for before, here in rows]


def known_requests(read: ReadSession, request_ids: list[str]) -> dict[str, RequestRow]:
    """The rows that there are for `request_ids`, by id."""
    return request_rows(read, MAIN, request_ids)


def request_ids(read: ReadSession) -> Iterator[str]:
    """The id of every request that the ledger has a row for, but those of running totals only."""
    table = tables.requests
    statement = select(table.c.request_id).where(~only_running(table)).order_by(table.c.request_id)
    for part in read.stream(statement):
        for (request_id,) in part:
            yield request_id


def has_events(read: ReadSession, request_id: str) -> bool:
    """True if any stored event is of that request."""
    column = tables.events.c.id
    within = (column > f"{request_id}/", column < f"{request_id}0")
    return read.value(select(column).where(*within).limit(1)) is not None


ReadingName = tuple[str, int, str]
"""Backend, microseconds since 1970, and source of one reading of an engine's counters."""


def told_counters(read: ReadSession) -> Iterator[dict[ReadingName, dict[str, object]]]:
    """What the stored events say that the rows of readings hold, in runs."""
    for facts in counted_facts(read):
        yield {
            (said.backend_id, to_us(event.time), event.source): counters_params(event, said)
            for event, said in ((fact.event, fact.payload) for fact in facts)
            if isinstance(said, BackendCounted)
        }


def known_counters(
    read: ReadSession, names: Iterable[ReadingName]
) -> dict[ReadingName, dict[str, object]]:
    """The rows of the readings `names`."""
    table = tables.counters
    at: dict[tuple[str, str], list[int]] = {}
    for backend_id, at_us, source in names:
        at.setdefault((backend_id, source), []).append(at_us)
    found: dict[ReadingName, dict[str, object]] = {}
    for (backend_id, source), moments in at.items():
        for some in runs(moments, LOOKUP_MAX):
            wanted = (table.c.backend_id == backend_id, table.c.source == source)
            for row in read.rows(select(table).where(*wanted, table.c.at_us.in_(some))):
                found[backend_id, row.at_us, source] = row._asdict()
    return found


def count_counters(read: ReadSession) -> int:
    """How many readings the ledger has rows of."""
    return int(read.value(select(func.count()).select_from(tables.counters)))


def rolled_up(read: ReadSession) -> Iterator[tuple[Cell, Rolled]]:
    """Every cell of the hourly roll-up, as the projection says."""
    table = tables.usage_hourly
    for part in read.stream(select(table)):
        yield from (hourly_of(row) for row in part)


def added_up(read: ReadSession) -> Iterator[tuple[Cell, Rolled]]:
    """Every cell of the hourly roll-up, added up anew from the requests."""
    table = tables.requests
    # A literal: with a parameter Postgres would not see that it groups by what is selected.
    hour = table.c.accepted_us - table.c.accepted_us % literal_column(str(HOUR_US), BigInteger)
    group = (hour, table.c.key_id, table.c.model, table.c.basis)
    billed = select(*group, *sums_of_requests()).where(table.c.state != "open")
    for part in read.stream(billed.group_by(*group)):
        yield from (hourly_of(row) for row in part)


def registry_rows(read: ReadSession) -> tuple[dict[str, object], dict[str, object]]:
    """Keys and prices by id: as the projections say, and as folded anew from the events."""
    stored: dict[str, object] = {}
    for table in (tables.keys, tables.prices):
        for row in read.rows(select(table)):
            stored[f"{table.name} {row[0]}"] = row._asdict()
    book = load_book(read)
    folded: dict[str, object] = {f"keys {k.key_id}": key_params(k) for k in book.keys.values()}
    folded |= {f"prices {p.price_id}": price_params(p) for p in book.prices}
    return stored, folded
