"""Usage with the rate that holds for each part of it: what every bill, export and API is made of.

Whole hours come from the hourly roll-up. Where a rate changes within an hour, that hour is cut at
the change and its parts come from the single requests. It only reads.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, Literal

import msgspec
from sqlalchemy import BigInteger, ColumnElement, Table, func, literal_column, select

from ledger.clock import to_us
from ledger.folds.book import Book
from ledger.folds.months import standing_of
from ledger.folds.rating import Rated, RateName, Sheet, charged_only, split
from ledger.folds.requests import RequestRow
from ledger.folds.usage import HOUR_US, Rolled, contribution
from ledger.sql import tables
from ledger.sql.adjust import adjustments
from ledger.sql.rows import rolled_of, sums_of_requests
from ledger.sql.session import ReadSession
from ledger.zones import band_edges, day_start, local, month_span

Step = Literal["hour", "day", "span"]
"""How finely usage is told apart by time: by UTC hour, by day of the books' zone, or not at all."""

OWN_MAX: Final = 500
"""Keys that one statement leaves out. Beyond it the requests of that hour are gone through singly.
"""

RUN: Final = 5000


def local_time(zone: str, us: int) -> tuple[int, int]:
    """The weekday and minute of the day in `zone`, as `Sheet.rate` asks for them."""
    return local(us, zone)


class Frame(msgspec.Struct, frozen=True):
    """A month: its first instant, that of the next one, its zone, and the registry as far as it
    counts for it: a month that is closed keeps the prices that it was closed with, and one that was
    settled with it the same."""

    first_us: int
    after_us: int
    zone: str
    book: Book


def frame_of(book: Book, month: str) -> Frame:
    """What `month` is by `book`. Raises `BadQuery` for a month that is none."""
    standing = standing_of(book.periods, month)
    period = standing.period
    if period is None:
        return Frame(*month_span(month, book.rules.zone), book.rules.zone, book)
    frozen = msgspec.structs.replace(
        book,
        prices=book.prices[: period.prices],
        rules=msgspec.structs.replace(period.rules, zone=period.zone),
    )
    span = to_us(period.start), to_us(period.end)
    if standing.own is None:
        first, after = month_span(month, period.zone)
        span = first, min(after, span[0])
    return Frame(*span, period.zone, frozen)


def month_lines(read: ReadSession, book: Book, month: str, *, step: Step) -> Iterator[Rated]:
    """Everything that the bill of `month` holds, in its order: what was used, and what lands there.

    A month that is closed is rated by the prices that it was closed with, and holds what was known
    at its cut. Raises `BadQuery` for a month that is none.
    """
    frame = frame_of(book, month)
    extra = [
        msgspec.structs.replace(one, start_us=cell_of(one.start_us, frame, step))
        for one in adjustments(read, book, month)
    ]
    usual = rated(read, frame.book, frame.first_us, frame.after_us, step=step)
    yield from merged((*usual, *extra)) if extra else usual


class Sheets:
    """The price book as it counts at each instant: in a closed month, that of its closing, and
    before the first of them that of the first."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._ends = [to_us(period.end) for period in book.periods]
        self._sheets: dict[int, Sheet] = {}

    def at(self, us: int) -> Sheet:
        """What to rate a request by that was accepted at that instant."""
        place = bisect_right(self._ends, us)
        closed = place < len(self._ends)
        count = self._book.periods[place].prices if closed else len(self._book.prices)
        found = self._sheets.get(count)
        if found is None:
            found = self._sheets[count] = Sheet(self._book.prices[:count], self._book.members)
        return found


def rated_request(row: RequestRow, sheet: Sheet) -> Rated | None:
    """One request with its rate, from the instant of its acceptance; null while it has no end."""
    counted = contribution(row)
    if counted is None or row.accepted_at is None:
        return None
    cell, rolled = counted
    at_us = to_us(row.accepted_at)
    one = Rated(
        key_id=cell.key_id,
        project_id=sheet.project(cell.key_id, at_us),
        model=cell.model,
        basis=cell.basis,
        start_us=at_us,
        totals=rolled.totals,
        failed_attempts=rolled.failed_attempts,
        busy_us=rolled.busy,
        rate=sheet.rate(cell.key_id, cell.model, at_us, local_time),
    )
    return charged_only(one)


def rated(
    read: ReadSession, book: Book, first_us: int, after_us: int, *, step: Step
) -> Iterator[Rated]:
    """The usage of a span, a line for each part, key, project, model, basis and rate, in this
    order. A part that begins before the span begins with it."""
    sheet = Sheet(book.prices, book.members)
    days = book.rules.zone if step == "day" else None
    held: dict[Name, Rated] = {}
    start: int | None = None
    for piece in _pieces(sheet, _clamped(read, first_us, after_us), days):
        for used in _usage(read, piece, hourly=step == "hour"):
            begins = _start(used.at_us, first_us, piece, days, step)
            if begins != start:
                yield from _in_order(held)
                held, start = {}, begins
            _add(held, _priced(used, begins, sheet))
    yield from _in_order(held)


def merged(parts: Iterable[Rated]) -> Iterator[Rated]:
    """`parts` in the order of lines; of those with one name the sum, of what comes to nothing
    nothing. Tokens without a price stand beside the rest, as `folds.rating.split` says."""
    held: dict[Name, Rated] = {}
    for one in parts:
        _add(held, one)
    for one in _in_order(held):
        if not one.totals.nothing or one.failed_attempts or one.busy_us:
            yield one


Name = tuple[int, str, str, str, str, RateName | None, str | None, str]
"""What tells lines apart, in their order."""


def name_of(one: Rated) -> Name:
    """Where `one` stands among others: by time, project, key, model, basis, rate, correction."""
    rate = None if one.rate is None else one.rate.name
    project = "" if one.project_id is None else one.project_id
    return one.start_us, project, one.key_id, one.model, one.basis, rate, one.corrects, one.kind


def _order(name: Name) -> tuple[object, ...]:
    *plain, rate, corrects, kind = name
    return *plain, *(part or "" for part in rate or ("", "", "")), corrects or "", kind


class _Piece(msgspec.Struct, frozen=True):
    """A part of time from `start` up to, not including, `end`, within which no rate changes but for
    the keys of `own`."""

    start: int
    end: int
    whole_hours: bool
    own: frozenset[str]


class _Used(msgspec.Struct, frozen=True):
    """What one key used of one model from `at_us` on, before it is priced."""

    at_us: int
    key_id: str
    model: str
    basis: str
    rolled: Rolled


def _clamped(read: ReadSession, first: int, after: int) -> tuple[int, int]:
    """The part of the span that can hold usage: bands are looked for nowhere else."""
    hour = tables.usage_hourly.c.hour_us
    lowest = read.value(select(func.min(hour)).where(hour > first - HOUR_US, hour < after))
    highest = read.value(select(func.max(hour)).where(hour > first - HOUR_US, hour < after))
    if lowest is None:
        return first, first
    return max(first, lowest), min(after, highest + HOUR_US)


def rate_edges(sheet: Sheet, first: int, after: int) -> set[int]:
    """The instants within the span, its first left out, at which a price or a band of one begins.
    Between two of them only a key that changes its project gets another rate."""
    found = set(sheet.starts(first, after))
    for price in sheet.standing(first, after):
        if price.bands and price.zone is not None:
            begins = max(first, to_us(price.effective_from))
            found |= set(band_edges(price.zone, price.bands, begins, after))
    return found


def _pieces(sheet: Sheet, span: tuple[int, int], days: str | None) -> Iterator[_Piece]:
    first, after = span
    if first >= after:
        return
    cuts = {first, after, *rate_edges(sheet, first, after)}
    if days is not None:
        at = first
        while (at := _next_day(at, days)) < after:
            cuts.add(at)
    own: dict[int, set[str]] = {}
    for key_id, moves in sheet.moves(first, after).items():
        for move in moves:
            hour = move - move % HOUR_US
            own.setdefault(hour, set()).add(key_id)
            cuts |= {at for at in (hour, hour + HOUR_US) if first < at < after}
    for start, end in pairwise(sorted(cuts)):
        moved = frozenset(own.get(start - start % HOUR_US, ()))
        if moved:
            yield _Piece(start, end, False, moved)
        else:
            yield from _split(start, end)


def _split(start: int, end: int) -> Iterator[_Piece]:
    """The whole hours of a part, and what is before and behind them."""
    none: frozenset[str] = frozenset()
    first_hour = -(-start // HOUR_US) * HOUR_US
    last_hour = end // HOUR_US * HOUR_US
    if first_hour > last_hour:
        yield _Piece(start, end, False, none)
        return
    if start < first_hour:
        yield _Piece(start, first_hour, False, none)
    if first_hour < last_hour:
        yield _Piece(first_hour, last_hour, True, none)
    if last_hour < end:
        yield _Piece(last_hour, end, False, none)


def _next_day(us: int, zone: str) -> int:
    # No local day is longer than 28 hours, and none shorter than 20, but one that never was.
    return day_start(day_start(us, zone) + 30 * HOUR_US, zone)


def _start(at_us: int, first: int, piece: _Piece, days: str | None, step: Step) -> int:
    if step == "span":
        return first
    begins = day_start(piece.start, days) if days is not None else at_us - at_us % HOUR_US
    return max(first, begins)


def cell_of(at_us: int, frame: Frame, step: Step) -> int:
    """The part that a correction of what began at `at_us` belongs to, also of an earlier month."""
    if step == "span":
        return frame.first_us
    begins = day_start(at_us, frame.zone) if step == "day" else at_us - at_us % HOUR_US
    return max(frame.first_us, begins) if frame.first_us <= at_us < frame.after_us else begins


def _priced(used: _Used, start_us: int, sheet: Sheet) -> Rated:
    return Rated(
        key_id=used.key_id,
        project_id=sheet.project(used.key_id, used.at_us),
        model=used.model,
        basis=used.basis,
        start_us=start_us,
        totals=used.rolled.totals,
        failed_attempts=used.rolled.failed_attempts,
        busy_us=used.rolled.busy,
        rate=sheet.rate(used.key_id, used.model, used.at_us, local_time),
    )


def _add(held: dict[Name, Rated], one: Rated) -> None:
    one = charged_only(one)
    name = name_of(one)
    before = held.get(name)
    if before is not None:
        one = msgspec.structs.replace(
            before,
            totals=before.totals.plus(one.totals),
            failed_attempts=before.failed_attempts + one.failed_attempts,
            busy_us=_both(before.busy_us, one.busy_us),
        )
    held[name] = one


def _both(one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else one + other


def _in_order(held: dict[Name, Rated]) -> Iterator[Rated]:
    for name in sorted(held, key=_order):
        yield from split(held[name])


def _usage(read: ReadSession, piece: _Piece, *, hourly: bool) -> Iterator[_Used]:
    """What was used in `piece`, by time if `hourly`."""
    if piece.own:
        yield from _singly(read, piece)
        if len(piece.own) <= OWN_MAX:
            yield from _from_requests(read, piece, hourly)
    elif piece.whole_hours:
        yield from _from_hours(read, piece, hourly)
    else:
        yield from _from_requests(read, piece, hourly)


def _from_hours(read: ReadSession, piece: _Piece, hourly: bool) -> Iterator[_Used]:
    table = tables.usage_hourly
    counts = [func.sum(column) for column in table.columns if not column.primary_key]
    at = table.c.hour_us if hourly else None
    yield from _summed(read, table, table.c.hour_us, counts, piece, at)


def _from_requests(read: ReadSession, piece: _Piece, hourly: bool) -> Iterator[_Used]:
    table = tables.requests
    when = table.c.accepted_us
    # A literal: with a parameter Postgres would not see that it groups by what is selected.
    at = when - when % literal_column(str(HOUR_US), BigInteger) if hourly else None
    where = [table.c.state != "open"]
    if piece.own:
        where.append(table.c.key_id.not_in(sorted(piece.own)))
    yield from _summed(read, table, when, sums_of_requests(), piece, at, *where)


def _singly(read: ReadSession, piece: _Piece) -> Iterator[_Used]:
    """The requests of keys that change their project within this hour, instant by instant."""
    table = tables.requests
    when = table.c.accepted_us
    where = [table.c.state != "open"]
    if len(piece.own) <= OWN_MAX:
        where.append(table.c.key_id.in_(sorted(piece.own)))
    yield from _summed(read, table, when, sums_of_requests(), piece, when, *where)


def _summed(
    read: ReadSession,
    table: Table,
    when: ColumnElement[int],
    counts: Sequence[ColumnElement[int]],
    piece: _Piece,
    at: ColumnElement[int] | None,
    *conditions: ColumnElement[bool],
) -> Iterator[_Used]:
    """The sums of `counts` over `piece`, in the order of `at` and told apart by it; null: by no
    time."""
    group: list[ColumnElement[Any]] = [table.c.key_id, table.c.model, table.c.basis]
    if at is not None:
        group.insert(0, at)
    # No instant of the piece is in the text: so it is compiled once for all of hundreds of pieces.
    statement = (
        select(*group, *counts)
        .where(when >= piece.start, when < piece.end, *conditions)
        .group_by(*group)
    )
    if at is not None:
        statement = statement.order_by(at)
    for part in read.stream(statement, size=RUN):
        for row in part:
            at_us = piece.start if at is None else max(int(row[0]), piece.start)
            key_id, model, basis, *numbers = row if at is None else row[1:]
            yield _Used(at_us, key_id, model, basis, rolled_of(numbers))
