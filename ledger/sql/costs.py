"""Rated usage by parts of UTC time, across months: what the costs API tells. It only reads.

Each part of a closed month is rated by the prices that it was closed with, and what lands in a
month from an earlier one stands at that month's first instant: so the parts of a month add up to
its bill, whatever the parts are.
"""

from collections.abc import Iterator, Sequence

import msgspec

from ledger.clock import to_us
from ledger.folds.book import Book
from ledger.folds.rating import Rated, split
from ledger.sql.adjust import adjustments
from ledger.sql.rated import frame_of, rated
from ledger.sql.session import ReadSession
from ledger.zones import month_of, month_span


class _Month(msgspec.Struct, frozen=True):
    """A month of the books, half open in microseconds UTC, and the registry that it is rated by."""

    name: str
    first: int
    after: int
    book: Book


def costs(
    read: ReadSession, book: Book, parts: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, Rated]]:
    """What was used in each of `parts` (half open, one behind the other) with its rate and what
    corrects it, under the part's start. Times are microseconds UTC. The same usage may come as
    several `Rated`."""
    if not parts:
        return
    for month in _months(book, parts[0][0], parts[-1][1]):
        extra = [part for one in adjustments(read, book, month.name) for part in split(one)]
        for start, end in parts:
            first, after = max(start, month.first), min(end, month.after)
            if first >= after:
                continue
            for one in rated(read, month.book, first, after, step="span"):
                yield start, one
            for one in extra:
                if first <= _lands(one, month) < after:
                    yield start, one


def open_from(book: Book) -> int | None:
    """The instant from which on months are open; null if all of them are."""
    return to_us(book.periods[-1].end) if book.periods else None


def _lands(one: Rated, month: _Month) -> int:
    return one.start_us if month.first <= one.start_us < month.after else month.first


def _months(book: Book, first: int, after: int) -> Iterator[_Month]:
    """The months that the span touches: closed ones as they were frozen, others by the zone of the
    books, where no closed one is."""
    at = first
    while at < after:
        month = _month_at(book, at)
        yield month
        at = month.after


def _month_at(book: Book, at: int) -> _Month:
    for period in book.periods:
        if to_us(period.start) <= at < to_us(period.end):
            frame = frame_of(book, period.month)
            return _Month(period.month, frame.first_us, frame.after_us, frame.book)
    name = month_of(at, book.rules.zone)
    first, after = month_span(name, book.rules.zone)
    # Months are closed in a row, so what has no closing lies before all of them or behind.
    for period in book.periods:
        start, end = to_us(period.start), to_us(period.end)
        first = max(first, end) if end <= at else first
        after = min(after, start) if start > at else after
    return _Month(name, first, after, frame_of(book, name).book)
