"""The requests under a line of the bill, added up anew: what makes a line checkable by hand.

The bill is made of the hourly roll-up wherever it can be; this goes through the single requests and
prices them by the same rule, so the two must say the same.
"""

from bisect import bisect_right
from collections.abc import Iterator
from datetime import datetime

import msgspec
from sqlalchemy import select

from ledger.clock import from_us, to_us
from ledger.events import BUCKETS, Event
from ledger.folds.book import Book, price_at
from ledger.folds.cost import Cost, cost_of
from ledger.folds.requests import RequestRow
from ledger.folds.usage import ZERO, Totals, contribution
from ledger.sql import tables
from ledger.sql.bill import (
    DAY_US,
    BillLine,
    Group,
    Sum,
    add_usage,
    bill,
    grouped,
    line_of,
    load_prices,
    month_range,
    order,
    pieces,
)
from ledger.sql.explain import events_of
from ledger.sql.names import key_names
from ledger.sql.rows import request_of
from ledger.sql.session import ReadSession

RUN = 5000
"""Requests held in memory at a time."""


class LineOf(msgspec.Struct, frozen=True, kw_only=True):
    """Which line of the bill of `month`; null: told apart by that no more than a bill without it.

    `day` is a UTC date within the month, `2026-11-29`.
    """

    month: str
    key_id: str | None = None
    model: str | None = None
    day: str | None = None
    basis: str | None = None

    @property
    def by(self) -> tuple[str, ...]:
        """What the bill is to be grouped by to have this line."""
        named = (("key", self.key_id), ("model", self.model), ("day", self.day))
        return tuple(group for group, value in named if value is not None)

    def has(self, line: BillLine) -> bool:
        """True if `line`, of a bill grouped by `by`, is this one."""
        return (
            (line.key_id, line.model, line.day) == (self.key_id, self.model, self.day)
        ) and self.basis in (None, line.basis)


class Under(msgspec.Struct, frozen=True):
    """One request under a line: its row, its cost, and the event that put it there (null if the
    ledger does not hold it)."""

    request: RequestRow
    cost: Cost
    ended: Event | None


class UnderLine(msgspec.Struct, frozen=True):
    """`said` is what the bill says and `added` what the requests add up to, line by line, since a
    line splits by currency and where a price is missing. `requests` are a page of `total`."""

    said: list[BillLine]
    added: list[BillLine]
    requests: list[Under]
    total: int

    @property
    def equal(self) -> bool:
        """True if both say the same."""
        return self.said == self.added


def under_line(read: ReadSession, wanted: LineOf, *, skip: int = 0, limit: int = 100) -> UnderLine:
    """The line `wanted`, its requests from the `skip`th on in the order of their acceptance, and
    the sums of all of them. Raises `BadQuery` for a month that is none."""
    first, after = (to_us(moment) for moment in month_range(wanted.month))
    book = Book(prices=load_prices(read))
    begins = [piece.start for piece in pieces(book.prices, first, after)]
    totals: dict[tuple[int, str, str, str, int], Totals] = {}
    page: list[RequestRow] = []
    total = 0
    for row in _rows(read, wanted, (first, after)):
        counted = contribution(row)
        assert counted is not None and row.accepted_at is not None, "only ended ones are read"
        at, cell = to_us(row.accepted_at), counted[0]
        start = begins[bisect_right(begins, at) - 1]
        name = (start, cell.key_id, cell.model, cell.basis, at - at % DAY_US)
        totals[name] = totals.get(name, ZERO).plus(counted[1])
        if skip <= total < skip + limit:
            page.append(row)
        total += 1
    sums: dict[Group, Sum] = {}
    for (start, key_id, model, basis, day_us), used in totals.items():
        price = price_at(book, model, from_us(start))
        add_usage(sums, grouped(wanted.by, key_id, model, day_us), basis, price, used)
    named = key_names(read)
    return UnderLine(
        said=[line for line in bill(read, wanted.month, wanted.by) if wanted.has(line)],
        added=sorted((line_of(group, sum_, named) for group, sum_ in sums.items()), key=order),
        requests=[_under(read, row, book) for row in page],
        total=total,
    )


def _under(read: ReadSession, row: RequestRow, book: Book) -> Under:
    assert row.model is not None and row.accepted_at is not None, "an end names both"
    price = price_at(book, row.model, row.accepted_at)
    cost = cost_of(dict(zip(BUCKETS, row.usage.counts(), strict=True)), price)
    ends = [e for e in events_of(read, row.request_id) if e.id.endswith(f"/{row.state}")]
    return Under(row, cost, ends[-1] if ends else None)


def _rows(read: ReadSession, wanted: LineOf, span: tuple[int, int]) -> Iterator[RequestRow]:
    table = tables.requests
    first, after = span
    if wanted.day is not None:
        begins = to_us(datetime.fromisoformat(f"{wanted.day}T00:00:00Z"))
        first, after = max(first, begins), min(after, begins + DAY_US)
    where = [table.c.accepted_us >= first, table.c.accepted_us < after, table.c.state != "open"]
    for column, value in (
        (table.c.key_id, wanted.key_id),
        (table.c.model, wanted.model),
        (table.c.basis, wanted.basis),
    ):
        if value is not None:
            where.append(column == value)
    statement = select(*table.columns).where(*where)
    ordered = statement.order_by(table.c.accepted_us, table.c.request_id)
    for part in read.stream(ordered, size=RUN):
        yield from (request_of(row) for row in part)
