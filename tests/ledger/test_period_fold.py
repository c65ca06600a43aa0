"""The fold of closed months: which closings and corrections the registry takes; without ledgers."""

from datetime import UTC, datetime

import msgspec
import pytest

from ledger.events import BooksSet, Draft, PeriodClosed, payload_of
from ledger.folds.book import Book, Refused, fold_book
from ledger.folds.late import period_at
from streams.codec import decode, encode
from tests.support import events as say

NOW = datetime(2026, 12, 1, 9, tzinfo=UTC)
CUT = {say.SOURCE: {"requests": 3}}


def taken(book: Book, draft: Draft) -> Book | Refused:
    event = decode(encode(draft, "/cli/test/1", 1, NOW))
    return fold_book(book, event, payload_of(event))


def closed_twice() -> Book:
    book: Book | Refused = Book()
    for base, month in enumerate(("2026-10", "2026-11")):
        assert isinstance(book, Book)
        book = taken(book, say.period_closed(CUT, month, base))
    assert isinstance(book, Book)
    return book


def test_months_follow_one_another_without_a_gap() -> None:
    book = closed_twice()
    assert [(one.month, one.number) for one in book.periods] == [("2026-10", 1), ("2026-11", 2)]
    assert book.periods[0].end == book.periods[1].start
    for month in ("2026-11", "2027-01", "2026-09"):
        refused = taken(book, say.period_closed(CUT, month, 2))
        assert (
            isinstance(refused, Refused) and "does not begin where 2026-11 ends" in refused.reason
        )


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"base": 1, "version": 2}, "is at version 2 by now"),
        ({"prices": 1}, "a price was published since"),
        ({"corrections": 1}, "a request was corrected since"),
        ({"zone": "Europe/Berlin"}, "the books are kept in the zone UTC"),
    ],
)
def test_a_closing_of_an_older_state_is_refused(change: dict[str, object], why: str) -> None:
    draft = say.period_closed(CUT, "2026-12", 2)
    assert isinstance(draft.payload, PeriodClosed)
    wrong = msgspec.structs.replace(draft.payload, **change)
    refused = taken(closed_twice(), Draft(draft.id, draft.subject, draft.time, wrong))
    assert isinstance(refused, Refused) and why in refused.reason


def test_the_zone_stays_once_a_month_is_closed() -> None:
    other = BooksSet(base=0, version=1, zone="Europe/Berlin")
    refused = taken(closed_twice(), Draft("books/1", "books", NOW, other))
    assert isinstance(refused, Refused) and "closed in the zone UTC already" in refused.reason
    same = BooksSet(base=0, version=1, zone="UTC", rounding="down")
    assert isinstance(taken(closed_twice(), Draft("books/1", "books", NOW, same)), Book)


def test_no_price_reaches_into_a_closed_month() -> None:
    for start, fits in ((NOW.replace(hour=0), True), (datetime(2026, 11, 30, tzinfo=UTC), False)):
        after = taken(closed_twice(), say.price("p", {"other_out": "1"}, start=start))
        assert isinstance(after, Book) == fits


def test_a_correction_knows_how_many_months_were_closed_before_it() -> None:
    book = taken(closed_twice(), say.corrected("r1", None, f"{say.SOURCE}:2"))
    assert isinstance(book, Book) and book.corrections[0].periods == 2
    again = taken(book, say.corrected("r1", None, f"{say.SOURCE}:2"))
    assert (
        isinstance(again, Refused) and "corrections of request r1 is at version 1" in again.reason
    )
    assert isinstance(taken(book, say.corrected("r1", None, f"{say.SOURCE}:2", base=1)), Book)


def test_an_instant_belongs_to_the_month_that_ends_behind_it() -> None:
    periods = closed_twice().periods
    at = [
        period_at(periods, moment)
        for moment in (
            datetime(2026, 1, 1, tzinfo=UTC),  # older than the first: closed with it
            periods[0].start,
            periods[0].end,
            periods[1].end,
        )
    ]
    assert at == [0, 0, 1, 2]
