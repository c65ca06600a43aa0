"""What lands in a month without having happened in it: late ends and corrections. It only reads."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ledger.clock import to_us
from ledger.folds.book import Book
from ledger.folds.money import Period
from ledger.sql.session import ReadSession
from ledger.zones import month_of

if TYPE_CHECKING:
    from ledger.folds.rating import Rated


def adjustments(read: ReadSession, book: Book, month: str) -> "Iterator[Rated]":
    """Lines that land in `month` and name what they correct; their counts may be below zero."""
    yield from ()


def period_of(book: Book, month: str) -> Period | None:
    """The closed month called `month`; null if it is open."""
    return next((one for one in book.periods if one.month == month), None)


def open_month(book: Book, us: int) -> str:
    """The month in which what comes at `us` lands: its own, or the first that is not closed."""
    if book.periods and us < to_us(book.periods[-1].end):
        us = to_us(book.periods[-1].end)
    return month_of(us, book.rules.zone)
