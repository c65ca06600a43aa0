"""What every export of a month begins with: which instants it is, and whether it is closed.

Needs neither DuckDB nor pyarrow, so that the audit can use it everywhere.
"""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from ledger.clock import from_us, to_us
from ledger.folds.book import Book
from ledger.folds.money import Period
from ledger.folds.months import Standing, State, standing_of
from ledger.folds.prices import Price
from ledger.sql.rated import frame_of
from ledger.sql.replay import load_book
from ledger.sql.session import ReadSession
from ledger.zones import month_of

Span = tuple[int, int]
"""First and first-after instant in microseconds since 1970."""


class Month(msgspec.Struct, frozen=True, kw_only=True):
    """A month of the books in the zone they are kept in. `standing` says whether it is open."""

    month: str
    zone: str
    span: Span
    book: Book
    standing: Standing

    @property
    def state(self) -> State:
        """Open, closed, or settled with the first month that was closed."""
        return self.standing.state

    @property
    def period(self) -> Period | None:
        """Its own closing; null if it has none."""
        return self.standing.own

    @property
    def root(self) -> str | None:
        """The root of the closed month's chains."""
        return None if self.period is None else self.period.root

    @property
    def prices(self) -> tuple[Price, ...]:
        """The prices that it is rated by, in the registry's order."""
        held = self.standing.period
        return self.book.prices if held is None else self.book.prices[: held.prices]

    @property
    def closed(self) -> Sequence[Period]:
        """The closed months whose cuts hold for it, the last one its own or the one that it was
        settled with; none if it is open."""
        held = self.standing.period
        return () if held is None else self.book.periods[: held.number]

    @property
    def start(self) -> str:
        return _instant(from_us(self.span[0]))

    @property
    def end(self) -> str:
        return _instant(from_us(self.span[1]))


def month_in(read: ReadSession, month: str) -> Month:
    """The `month`, `2026-11`, as the ledger has it. Raises `BadQuery` for no month."""
    book = load_book(read)
    frame = frame_of(book, month)
    return Month(
        month=month,
        zone=frame.zone,
        span=(frame.first_us, frame.after_us),
        book=msgspec.structs.replace(book, rules=frame.book.rules),
        standing=standing_of(book.periods, month),
    )


def current_month(read: ReadSession, now: datetime) -> str:
    """The month that `now` is in, in the zone of the books."""
    return month_of(to_us(now), load_book(read).rules.zone)


def prices_before(month: Month) -> list[str]:
    """The ids of all prices that begin before the month's end: those its bill was made with."""
    end = from_us(month.span[1])
    return sorted(price.price_id for price in month.prices if price.effective_from < end)


def _instant(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"
