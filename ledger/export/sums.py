"""What a month adds up to, by the ledger itself: by its roll-up, or by its single requests.

Needs neither DuckDB nor pyarrow, so that the audit can hold an export against it everywhere.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from ledger.events import BUCKETS
from ledger.export.facts import Month, Span
from ledger.folds.late import holds, steps
from ledger.folds.money import Period
from ledger.folds.usage import ZERO
from ledger.sql import tables
from ledger.sql.ends import ENDED_BY
from ledger.sql.late import told_of
from ledger.sql.rated import month_lines
from ledger.sql.rows import request_params
from ledger.sql.session import ReadSession

BATCH_ROWS = 5000
"""Rows read at a time. It also bounds the ids in one `IN (…)`: SQLite takes 32,766 parameters."""

ENDED = ("finished", "abandoned")
"""States of a request with an end; also the last part of the id of the event that ended it."""

EventName = tuple[str, int]
"""Source and sequence of an event."""

Columns = Mapping[str, Sequence[Any]]
"""Column name to one value a row."""


class Sums(msgspec.Struct, frozen=True):
    """Requests with an end, and per bucket the sum of tokens and the rows that knew the bucket."""

    requests: int
    tokens: dict[str, int]
    known: dict[str, int]


def by_roll_up(read: ReadSession, month: Month) -> Sums:
    """The sums of a month by the parts of its bill, but for what corrects other lines."""
    totals = ZERO
    for line in month_lines(read, month.book, month.month, step="span"):
        if line.kind == "usage":
            totals = totals.plus(line.totals)
    return Sums(
        requests=totals.requests,
        tokens=dict(zip(BUCKETS, totals.tokens, strict=True)),
        known=dict(zip(BUCKETS, totals.known, strict=True)),
    )


def by_request(read: ReadSession, span: Span, position: Mapping[str, int]) -> tuple[Sums, int]:
    """The sums of all requests of the span that ended at or before `position`, and how many of
    them ended after it. `position` maps a source to its last sequence."""
    requests = newer = 0
    tokens, known = dict.fromkeys(BUCKETS, 0), dict.fromkeys(BUCKETS, 0)
    for columns, ends in ended_requests(read, span, ("request_id", "state", *BUCKETS)):
        within = [end is None or end[1] <= position.get(end[0], 0) for end in ends]
        requests += sum(within)
        newer += len(within) - sum(within)
        for name in BUCKETS:
            counts = [n for n, counts in zip(columns[name], within, strict=True) if counts]
            known[name] += sum(1 for n in counts if n is not None)
            tokens[name] += sum(n for n in counts if n is not None)
    return Sums(requests, tokens, known), newer


def ended_requests(
    read: ReadSession, span: Span, names: Sequence[str], closed: Sequence[Period] = ()
) -> Iterator[tuple[Columns, list[EventName | None]]]:
    """The columns `names` (two of them `request_id` and `state`) of the requests of the span that
    have an end, by acceptance, in runs; beside each run the names of the events that ended them,
    null where the ledger does not hold that event. `closed` are the closed months up to this one,
    if it is closed: then every request stands as it was at the cut."""
    again = _repeated(read)
    requests = tables.requests
    statement = (
        requests.select()
        .with_only_columns(ENDED_BY, *(requests.c[name] for name in names))
        .where(requests.c.accepted_us >= span[0], requests.c.accepted_us < span[1])
        .where(requests.c.state.in_(ENDED))
        .order_by(requests.c.accepted_us, requests.c.request_id)
    )
    for part in read.stream(statement, size=BATCH_ROWS):
        told, *cells = zip(*part, strict=True)
        columns = dict(zip(names, cells, strict=True))
        ends = _ends(columns, told, again)
        yield _then(read, columns, ends, closed) if closed else (columns, ends)


def _then(
    read: ReadSession,
    columns: Columns,
    ends: list[EventName | None],
    closed: Sequence[Period],
) -> tuple[Columns, list[EventName | None]]:
    """`columns` and `ends` as they were at the cut of the last of `closed`: what ended outside it
    had no end then, or another."""
    outside = [
        request
        for request, end in zip(columns["request_id"], ends, strict=True)
        if end is not None and not holds(closed, [(end[0], "requests", end[1])])
    ]
    if not outside:
        return columns, ends
    told = told_of(read, outside)
    found: dict[str, list[Any]] = {name: [] for name in columns}
    ended: list[EventName | None] = []
    for row, end in zip(zip(*columns.values(), strict=True), ends, strict=True):
        cells = dict(zip(columns, row, strict=True))
        if cells["request_id"] in told:
            stood = steps(closed, len(closed) - 1, told[cells["request_id"]])[0]
            if stood.row is None or not stood.row.billed:
                continue
            cells = request_params(stood.row)
            end = None if stood.end is None else (stood.end[0], stood.end[2])
        ended.append(end)
        for name in found:
            found[name].append(cells[name])
    return found, ended


def _ends(
    columns: Columns, told: Sequence[str | None], again: Mapping[str, EventName]
) -> list[EventName | None]:
    """The names in `told`; where the fact came again under another one, the smaller of them. Which
    of two equal facts came first must not show in a file."""
    ends = [None if name is None else _named(name) for name in told]
    if again:
        pairs = zip(columns["request_id"], columns["state"], strict=True)
        for place, (request, state) in enumerate(pairs):
            other, end = again.get(f"{request}/{state}"), ends[place]
            if other is not None and end is not None:
                ends[place] = min(end, other)
    return ends


def _named(name: str) -> EventName:
    source, _, sequence = name.rpartition(":")
    return source, int(sequence)


def _repeated(read: ReadSession) -> dict[str, EventName]:
    """Event id to the smallest name under which the fact came again. Repetitions are few."""
    duplicates = tables.duplicates
    found: dict[str, EventName] = {}
    for row in read.rows(duplicates.select().where(duplicates.c.topic == "requests")):
        name = (row.source, row.sequence)
        found[row.id] = min(name, found.get(row.id, name))
    return found
