"""Applies facts to the projections: the same code for the writer and for a rebuild.

It is handed facts that are new to the ledger and never asks whether they are; it reads what it
needs of the projections, folds with `ledger.folds`, and writes the result in the caller's
transaction.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, TypeVar

import msgspec
from sqlalchemy import (
    ColumnElement,
    Select,
    Table,
    Text,
    bindparam,
    case,
    column,
    delete,
    func,
    insert,
    select,
)
from sqlalchemy.dialects import postgresql

from ledger.clock import to_us
from ledger.events import (
    BackendCounted,
    Event,
    Payload,
    RequestAccepted,
    RequestAttempted,
    SourceClosed,
    SourceMark,
)
from ledger.folds.attempts import merged, told_by
from ledger.folds.book import Book, BookFold
from ledger.folds.requests import REQUEST_TYPES, RequestRow, Telling, fold_told
from ledger.folds.usage import changes
from ledger.sql import tables
from ledger.sql.rows import (
    attempt_cells,
    counters_params,
    key_params,
    price_params,
    request_cells,
    request_of,
    usage_params,
)
from ledger.sql.session import ReadSession, WriteSession
from ledger.sql.upsert import upsert

Item = TypeVar("Item")

LOOKUP_MAX = 900
"""Values in one IN list: SQLite before 3.32 takes 999 parameters, and long lists gain nothing."""


class Fact(msgspec.Struct, frozen=True, gc=False):
    """An event with its decoded payload, and its data as the text that is stored."""

    event: Event
    payload: Payload
    data: str


class Projection(msgspec.Struct, frozen=True):
    """The tables that facts are applied to: the real ones, or the shadows of a rebuild."""

    requests: Table
    usage_hourly: Table
    keys: Table
    prices: Table
    sources: Table
    source_topics: Table
    attempts: Table
    counters: Table
    late: Table


MAIN = Projection(*tables.PROJECTIONS)


class Reach(msgspec.Struct):
    """What a batch adds to the knowledge of one source and topic: its last, and how many new."""

    last: int
    received: int


def runs(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """`items` in lists of at most `size`."""
    rest = iter(items)
    while run := list(islice(rest, size)):
        yield run


def project_requests(tx: WriteSession, to: Projection, facts: Sequence[Fact]) -> None:
    """Fold the facts of requests into `requests`, and the difference into `usage_hourly`."""
    by_request: dict[str, list[Telling]] = {}
    new: list[str] = []
    for fact in facts:
        said = fact.payload
        if isinstance(said, REQUEST_TYPES):
            by_request.setdefault(said.request_id, []).append((fact.event, said))
            if isinstance(said, RequestAccepted):
                new.append(said.request_id)
    if not by_request:
        return
    before = _rows_before(tx, to, _may_be_there(tx, to, by_request, new))
    pairs: list[tuple[RequestRow | None, RequestRow]] = []
    for request_id, told in by_request.items():
        old = before.get(request_id)
        row = fold_told(old, told)
        if row != old:
            pairs.append((old, row))
    if pairs:
        rows = [request_cells(row) for _, row in pairs]
        tx.insert_cells(upsert(tx.dialect, to.requests), rows)
        project_usage(tx, to, pairs)


def _may_be_there(
    tx: WriteSession, of: Projection, ids: Collection[str], new: Collection[str]
) -> list[str]:
    """Those of `ids` that may have a row. `new` are accepted just now, and hardly any of them has:
    one look at the span that they lie in says so of all."""
    if len(new) < SPAN_MIN:
        return list(ids)
    span = {"low": min(new), "high": max(new), "most": len(new)}
    there = tx.ask(_in_span(of.requests), span)
    if len(there) == len(new):
        # An old clock may have made one of the ids, and then the span holds anything.
        return list(ids)
    without = set(new) - {row[0] for row in there}
    return [request_id for request_id in ids if request_id not in without]


def _rows_before(tx: WriteSession, of: Projection, ids: Sequence[str]) -> dict[str, RequestRow]:
    """As `request_rows`, the short way: with every batch some ended that were accepted before."""
    if not ids:
        return {}
    given = msgspec.json.encode(ids).decode() if tx.dialect == "sqlite" else list(ids)
    rows = tx.ask(_by_ids(tx.dialect, of.requests), {"ids": given})
    return {row[0]: request_of(row) for row in rows}


@lru_cache(maxsize=8)
def _by_ids(dialect: str, table: Table) -> Select[*tuple[Any, ...]]:
    """The rows of a table of requests, by one list of ids."""
    if dialect == "sqlite":
        ids = bindparam("ids", type_=Text)
        return select(*table.columns).where(
            table.c.request_id.in_(select(column("value")).select_from(func.json_each(ids)))
        )
    every = bindparam("ids", type_=postgresql.ARRAY(Text))
    return select(*table.columns).where(table.c.request_id == func.any(every))


SPAN_MIN = 8
"""So many look-ups cost as much as a look at a span."""


@lru_cache(maxsize=8)
def _in_span(table: Table) -> Select[*tuple[Any, ...]]:
    name = table.c.request_id
    within = name >= bindparam("low"), name <= bindparam("high")
    return select(name).where(*within).limit(bindparam("most"))


def project_attempts(tx: WriteSession, to: Projection, facts: Iterable[Fact]) -> None:
    """Put the attempts of requests together, each from the events that tell of it."""
    rows = merged(
        row
        for fact in facts
        if isinstance(fact.payload, RequestAttempted)
        for row in told_by(fact.event, fact.payload)
    )
    if rows:
        cells = [attempt_cells(row) for row in rows.values()]
        tx.insert_cells(upsert(tx.dialect, to.attempts, _known), cells)


def _known(table: Table, new: Mapping[str, ColumnElement[Any]]) -> dict[str, ColumnElement[Any]]:
    return {c.name: func.coalesce(c, new[c.name]) for c in table.columns if not c.primary_key}


def project_counters(tx: WriteSession, to: Projection, facts: Iterable[Fact]) -> None:
    """Store readings of engines' counters as they came."""
    rows = [
        counters_params(fact.event, fact.payload)
        for fact in facts
        if isinstance(fact.payload, BackendCounted)
    ]
    if rows:
        tx.insert(upsert(tx.dialect, to.counters), rows)


def request_rows(
    read: ReadSession, of: Projection, request_ids: Iterable[str]
) -> dict[str, RequestRow]:
    """The rows that there are for `request_ids`, by id."""
    wanted = _by_request_id(of.requests)
    found: dict[str, RequestRow] = {}
    for ids in runs(request_ids, LOOKUP_MAX):
        for row in read.rows(wanted, {"ids": ids}):
            found[row[0]] = request_of(row)
    return found


# Kept, because building it costs as much as a look-up; the bound is for the tables of rebuilds.
@lru_cache(maxsize=8)
def _by_request_id(table: Table) -> Select[*tuple[Any, ...]]:
    return select(*table.columns).where(table.c.request_id.in_(bindparam("ids", expanding=True)))


def project_usage(
    tx: WriteSession, to: Projection, pairs: Iterable[tuple[RequestRow | None, RequestRow]]
) -> None:
    """Move the roll-up by the difference between old and new rows of requests."""
    moved = changes(pairs)
    if not moved:
        return
    rows = [usage_params(cell, rolled) for cell, rolled in moved.items()]
    tx.insert(upsert(tx.dialect, to.usage_hourly, _added), rows)
    shrunk = [
        row for row, rolled in zip(rows, moved.values(), strict=True) if rolled.totals.requests < 0
    ]
    if shrunk:
        # A cell that nothing counts in any more would not be there after a rebuild.
        cell = [c == bindparam(f"was_{c.name}") for c in to.usage_hourly.primary_key.columns]
        emptied = delete(to.usage_hourly).where(*cell, to.usage_hourly.c.requests == 0)
        names = [c.name for c in to.usage_hourly.primary_key.columns]
        tx.execute(emptied, [{f"was_{name}": row[name] for name in names} for row in shrunk])


def _added(table: Table, new: Mapping[str, ColumnElement[int]]) -> dict[str, ColumnElement[int]]:
    return {c.name: c + new[c.name] for c in table.columns if not c.primary_key}


def project_reach(
    tx: WriteSession, to: Projection, reaches: Mapping[tuple[str, str], Reach]
) -> None:
    """Note how far each source and topic is known now."""
    rows = [
        {
            "source": source,
            "topic": topic,
            "last_sequence": reach.last,
            "received": None if topic in tables.NOT_KEPT_TOPICS else reach.received,
        }
        for (source, topic), reach in reaches.items()
    ]
    if rows:
        tx.insert(upsert(tx.dialect, to.source_topics, _reached), rows)


def _reached(table: Table, new: Mapping[str, ColumnElement[int]]) -> dict[str, ColumnElement[int]]:
    old, last = table.c.last_sequence, new["last_sequence"]
    return {
        "last_sequence": case((last > old, last), else_=old),
        "received": table.c.received + new["received"],
    }


def project_sources(tx: WriteSession, to: Projection, facts: Iterable[Fact]) -> None:
    """Fold marks and closings into `sources`: the earliest and latest mark, and the closing."""
    said = [f for f in facts if isinstance(f.payload, SourceMark | SourceClosed)]
    if not said:
        return
    named = {
        f.payload.closed_source if isinstance(f.payload, SourceClosed) else f.event.source
        for f in said
    }
    wanted = select(*to.sources.columns).where(
        to.sources.c.source.in_(bindparam("names", expanding=True))
    )
    nothing = {"first_us": None, "last_mark_us": None, "closed_us": None, "closed_by": None}
    rows: dict[str, dict[str, object]] = {name: {"source": name, **nothing} for name in named}
    for names in runs(sorted(named), LOOKUP_MAX):
        for row in tx.rows(wanted, {"names": names}):
            rows[row.source] = dict(row._mapping)
    for fact in said:
        _fold_source(rows, fact)
    tx.insert(upsert(tx.dialect, to.sources), list(rows.values()))


def _fold_source(rows: dict[str, dict[str, object]], fact: Fact) -> None:
    time_us = to_us(fact.event.time)
    if isinstance(fact.payload, SourceClosed):
        row = rows[fact.payload.closed_source]
        was, by = (row["closed_us"], row["closed_by"]), (time_us, fact.payload.by)
        if was[0] is None or _closing(was) < _closing(by):
            row["closed_us"], row["closed_by"] = by
        return
    row = rows[fact.event.source]
    first, last = row["first_us"], row["last_mark_us"]
    row["first_us"] = time_us if not isinstance(first, int) else min(first, time_us)
    row["last_mark_us"] = time_us if not isinstance(last, int) else max(last, time_us)


def _closing(said: tuple[object, object]) -> tuple[bool, int, str]:
    """Orders two closings of one source, so that which came first does not matter.

    What a source says of itself stands; else the adopter stands that had more of its records.
    """
    time_us, by = said
    assert isinstance(time_us, int) and isinstance(by, str), "a closing has both"
    return by == "itself", time_us, by


def project_book(tx: WriteSession, to: Projection, book: Book, facts: Iterable[Fact]) -> Book:
    """Fold facts of the registry, in its order, into `keys` and `prices`; the book afterwards.

    What the fold refuses has no effect, here as everywhere.
    """
    fold = BookFold(book)
    for fact in facts:
        fold.take(fact.event, fact.payload)
    after = fold.book()
    changed = [key for name, key in after.keys.items() if book.keys.get(name) != key]
    if changed:
        tx.execute(upsert(tx.dialect, to.keys), [key_params(key) for key in changed])
    added = after.prices[len(book.prices) :]
    if added:
        tx.execute(insert(to.prices), [price_params(price) for price in added])
    return after
