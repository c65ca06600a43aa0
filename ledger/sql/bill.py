"""The bill: usage by key, model and basis, priced by the time of acceptance. It only reads.

Whole hours come from the hourly roll-up. At every instant at which a price begins the month is cut,
and the two parts of that hour come from the single requests. Money is exact: integers in
`ledger.amounts`, decimal text outside.
"""

from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise

import msgspec
from sqlalchemy import BigInteger, ColumnElement, Table, func, literal_column, select

from ledger.amounts import decimal_text
from ledger.clock import from_us, to_us
from ledger.errors import BadQuery
from ledger.events import BUCKETS
from ledger.folds.book import Book, price_at
from ledger.folds.cost import cost_of
from ledger.folds.prices import Price
from ledger.folds.usage import ZERO, Totals, by_bucket
from ledger.sql import tables
from ledger.sql.names import key_names
from ledger.sql.rows import price_of
from ledger.sql.session import ReadSession

HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US
GROUPS = ("key", "model", "day")
"""What lines of a bill can be told apart by; the basis always is."""


class BillLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a bill. What it is not grouped by is null, as is a bucket nobody knew.

    `day` is the UTC date of acceptance, `2026-11-29`. `cost` is an exact decimal of `currency`, or
    null if no price applies or no count is known; `unpriced` names the buckets that hold tokens and
    have no price.
    """

    key_id: str | None
    name: str | None
    model: str | None
    day: str | None
    basis: str
    requests: int
    uncached_in: int | None
    cached_in: int | None
    cache_write_in: int | None
    reasoning_out: int | None
    other_out: int | None
    currency: str | None
    cost: str | None
    unpriced: tuple[str, ...] = ()

    @property
    def lacks_price(self) -> bool:
        """True if something was counted here and has no price; what nobody knows lacks none."""
        return self.cost is None and any(getattr(self, name) is not None for name in BUCKETS)


class Group(msgspec.Struct, frozen=True):
    """What a line is told apart by. `priced` keeps a null cost from swallowing a known one."""

    key_id: str | None
    model: str | None
    day_us: int | None
    basis: str
    currency: str | None
    priced: bool


class Sum(msgspec.Struct):
    """What a line adds up to so far."""

    totals: Totals = ZERO
    pico: int = 0
    unpriced: frozenset[str] = frozenset()


def month_range(month: str) -> tuple[datetime, datetime]:
    """The first instant of a UTC month, `2026-11`, and that of the next. Raises `BadQuery`."""
    year, dash, number = month.partition("-")
    right = dash and len(year) == 4 and len(number) == 2
    right = right and month.isascii() and (year + number).isdecimal()
    if not right or not 1 <= int(number) <= 12 or not 1970 <= int(year) < 9999:
        raise BadQuery(f"{month!r} is not a month; write year and month, such as 2026-11")
    first = datetime(int(year), int(number), 1, tzinfo=UTC)
    after = datetime(first.year + first.month // 12, first.month % 12 + 1, 1, tzinfo=UTC)
    return first, after


def bill(
    read: ReadSession, month: str | None, by: Collection[str] = ("key", "model")
) -> list[BillLine]:
    """The bill of a UTC month (null: of all time), a line per basis and what `by` names.

    Usage at different currencies, and usage with and without a price, stands on lines of its own.
    Raises `BadQuery` for a month or a group that there is none of.
    """
    strangers = sorted(set(by) - set(GROUPS))
    if strangers:
        raise BadQuery(f"a bill is grouped by {', '.join(GROUPS)}, not by {', '.join(strangers)}")
    span = None if month is None else tuple(to_us(moment) for moment in month_range(month))
    first, after = span or (0, to_us(datetime.max.replace(tzinfo=UTC)))
    book = Book(prices=load_prices(read))
    sums: dict[Group, Sum] = {}
    for piece in pieces(book.prices, first, after):
        start = piece.start
        for key_id, model, basis, day_us, totals in _usage(read, piece):
            # Priced by the day however it is grouped: coarse lines are the sums of fine ones.
            price = price_at(book, model, from_us(start))
            add_usage(sums, grouped(by, key_id, model, day_us), basis, price, totals)
    named = key_names(read)
    return sorted((line_of(group, total, named) for group, total in sums.items()), key=order)


def load_prices(read: ReadSession) -> tuple[Price, ...]:
    """Every price that the ledger knows, oldest version first."""
    table = tables.prices
    found = read.rows(select(table).order_by(table.c.model, table.c.version))
    return tuple(price_of(row._asdict()) for row in found)


class Piece(msgspec.Struct, frozen=True):
    """A part of time within which no price begins, from `start` up to, not including, `end`."""

    start: int
    end: int
    whole_hours: bool


def pieces(prices: Collection[Price], first: int, after: int) -> Iterator[Piece]:
    """The span cut at each instant at which any price begins, and where parts of hours meet whole
    ones. What a bucket lacks in price is judged piece by piece."""
    begins = {to_us(price.effective_from) for price in prices}
    cuts = [first, *sorted(cut for cut in begins if first < cut < after), after]
    for start, end in pairwise(cuts):
        first_hour = -(-start // HOUR_US) * HOUR_US
        last_hour = end // HOUR_US * HOUR_US
        if first_hour > last_hour:
            yield Piece(start, end, False)
            continue
        if start < first_hour:
            yield Piece(start, first_hour, False)
        if first_hour < last_hour:
            yield Piece(first_hour, last_hour, True)
        if last_hour < end:
            yield Piece(last_hour, end, False)


Usage = tuple[str, str, str, int, Totals]
"""Key, model, basis, start of the UTC day, and what was used."""


def _usage(read: ReadSession, piece: Piece) -> Iterator[Usage]:
    """Billed usage accepted in `piece`: whole hours rolled up, parts of hours by request."""
    source = _from_hours if piece.whole_hours else _from_requests
    return source(read, piece.start, piece.end)


def _from_hours(read: ReadSession, start: int, end: int) -> Iterator[Usage]:
    table = tables.usage_hourly
    sums = [table.c.requests, *(table.c[name] for name in BUCKETS)]
    sums += [table.c[f"{name}_known"] for name in BUCKETS]
    return _summed(read, table, table.c.hour_us, [func.sum(c) for c in sums], start, end)


def _from_requests(read: ReadSession, start: int, end: int) -> Iterator[Usage]:
    table = tables.requests
    counts = [func.count(), *(func.sum(table.c[name]) for name in BUCKETS)]
    counts += [func.count(table.c[name]) for name in BUCKETS]
    billed = table.c.state != "open"
    return _summed(read, table, table.c.accepted_us, counts, start, end, billed)


def _summed(
    read: ReadSession,
    table: Table,
    when: ColumnElement[int],
    sums: Sequence[ColumnElement[int]],
    start: int,
    end: int,
    *conditions: ColumnElement[bool],
) -> Iterator[Usage]:
    # A literal: with a parameter Postgres would not see that it groups by what is selected.
    day_us = when - when % literal_column(str(DAY_US), BigInteger)
    group = (table.c.key_id, table.c.model, table.c.basis, day_us)
    statement = select(*group, *sums).where(when >= start, when < end, *conditions).group_by(*group)
    for row in read.rows(statement):
        key_id, model, basis, day, *rest = row
        # Postgres sums to a decimal, and to null where every value is null.
        requests, a, b, c, d, e, *known = (int(value or 0) for value in rest)
        ka, kb, kc, kd, ke = known
        yield key_id, model, basis, day, Totals(requests, (a, b, c, d, e), (ka, kb, kc, kd, ke))


def add_usage(
    sums: dict[Group, Sum],
    group: tuple[str | None, str | None, int | None],
    basis: str,
    price: Price | None,
    totals: Totals,
) -> None:
    """Add usage at one price to the line that it belongs to."""
    tokens = by_bucket(totals)
    cost = cost_of(tokens, price)
    line = sums.setdefault(Group(*group, basis, cost.currency, cost.pico is not None), Sum())
    line.totals = line.totals.plus(totals)
    line.pico += cost.pico or 0
    line.unpriced |= frozenset(cost.unpriced)


def grouped(
    by: Collection[str], key_id: str, model: str, day_us: int
) -> tuple[str | None, str | None, int | None]:
    return (
        key_id if "key" in by else None,
        model if "model" in by else None,
        day_us if "day" in by else None,
    )


def line_of(group: Group, total: Sum, named: dict[str, str]) -> BillLine:
    """The line of `group`."""
    return BillLine(
        key_id=group.key_id,
        name=named.get(group.key_id) if group.key_id is not None else None,
        model=group.model,
        day=None if group.day_us is None else from_us(group.day_us).date().isoformat(),
        basis=group.basis,
        requests=total.totals.requests,
        currency=group.currency,
        cost=decimal_text(total.pico) if group.priced else None,
        unpriced=tuple(name for name in BUCKETS if name in total.unpriced),
        **by_bucket(total.totals),
    )


def order(line: BillLine) -> tuple[str, ...]:
    """Lines stand in this order whatever the database's own is."""
    parts = (line.key_id, line.model, line.day, line.basis, line.currency, line.cost)
    return tuple(part or "" for part in parts)
