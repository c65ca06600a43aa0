"""Prices as facts: what a command makes of the book and of words, without any file."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cli.price_entries import (
    begin_of,
    days_text,
    entry_of,
    named_prices,
    parse_band,
    parse_days,
    parse_hours,
    set_entry,
)
from gateway.cli.price_words import per_million, prices_table, standing
from gateway.cli.prices import listing
from ledger.events import BUCKETS, PriceEntry, payload_of
from ledger.events.money import Band
from ledger.folds.book import Book, Refused, fold_book
from ledger.folds.prices import Price
from streams.codec import decode, encode

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)


def put(
    book: Book,
    price_id: str,
    prices: dict[str, str],
    currency: str | None = None,
    begin: datetime = NOW,
    bands: tuple[Band, ...] = (),
    zone: str | None = None,
) -> Book:
    """`book` after `prices set` as every reader of the registry log will see it."""
    said = PriceEntry(
        price_id=price_id,
        model="m",
        currency="USD",
        effective_from=begin,
        per_unit=prices,
        bands=list(bands),
        zone=zone,
    )
    entry = set_entry(book, said, currency, bands_given=bool(bands))
    event = decode(encode(listing(book, [entry], "a test", NOW), "/cli/test/1", 1, NOW))
    after = fold_book(book, event, payload_of(event))
    assert not isinstance(after, Refused), after
    return after


def test_a_side_stands_for_its_kinds() -> None:
    given = (("in", "1"), ("out", "2"), ("cached_in", "0.1"))
    assert named_prices(given) == {
        "uncached_in": "1",
        "cached_in": "0.1",
        "cache_write_in": "1",
        "reasoning_out": "2",
        "other_out": "2",
    }
    assert named_prices(()) == {}


def test_a_bucket_that_there_is_not_is_named_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="'uncachd_in'; did you mean uncached_in"):
        named_prices([("uncachd_in", "1")])
    with pytest.raises(ValueError, match="cached_in is given twice"):
        named_prices([("cached_in", "1"), ("cached_in", "2")])


def test_a_price_keeps_what_is_not_given() -> None:
    night = parse_band("night:daily:22:00-06:00:out=1")
    book = put(Book(), "p1", {"other_out": "2", "request": "0.001"}, bands=night, zone="UTC")
    book = put(book, "p2", {"uncached_in": "1"}, begin=NOW + timedelta(days=1))
    new = book.prices[-1]
    assert per_million(new) == {"uncached_in": "1", "other_out": "2"}
    assert new.charges == {"request": 1_000_000_000}
    assert (new.bands, new.zone) == (book.prices[0].bands, "UTC") and len(new.bands) == 2
    assert [price.version for price in book.prices] == [1, 2]


def test_a_price_before_all_others_keeps_nothing() -> None:
    book = put(Book(), "p1", {"other_out": "2"}, "EUR")
    book = put(book, "p2", {"uncached_in": "1"}, begin=NOW - timedelta(days=1))
    assert per_million(book.prices[-1]) == {"uncached_in": "1"}
    assert book.prices[-1].currency == "USD"


def test_another_currency_carries_no_amount_over() -> None:
    book = put(Book(), "p1", {"other_out": "2"}, "EUR")
    kept = put(book, "p2", {"uncached_in": "1"})
    assert (kept.prices[-1].currency, len(kept.prices[-1].pico)) == ("EUR", 2)
    book = put(book, "p2", {"uncached_in": "1"}, "USD")
    assert per_million(book.prices[-1]) == {"uncached_in": "1"}


def test_which_price_stands() -> None:
    def price(price_id: str, version: int, days: int, scope: str | None = None) -> Price:
        return Price(
            price_id=price_id,
            model="m",
            version=version,
            currency="USD",
            effective_from=NOW + timedelta(days=days),
            pico={},
            scope=scope,
        )

    prices = [price("a", 1, -2), price("b", 2, -1), price("c", 3, -1), price("d", 4, 1)]
    prices.append(price("e", 5, -9, "key/k"))
    states = standing(prices, NOW)
    assert states == {"a": "past", "b": "past", "c": "now", "d": "later", "e": "now"}
    assert len(prices_table(prices, states, {}).rows) == 5


def test_a_price_begins_in_a_minute_unless_it_rerates() -> None:
    assert begin_of(None, "reason", NOW) == NOW
    odd = NOW + timedelta(microseconds=1)
    assert timedelta(seconds=60) < begin_of(None, None, odd) - odd <= timedelta(seconds=61)
    assert begin_of(NOW, None, odd) == NOW


def test_a_band_over_midnight_is_two() -> None:
    late, early = parse_band("night:fri-sat:22:00-06:00:in=0.05,other_out=0.2")
    assert (late.days, late.start, late.end) == ([5, 6], 22 * 60, 24 * 60)
    assert (early.days, early.start, early.end) == ([6, 7], 0, 6 * 60)
    assert (
        late.per_unit
        == early.per_unit
        == {
            "uncached_in": "0.05",
            "cached_in": "0.05",
            "cache_write_in": "0.05",
            "other_out": "0.2",
        }
    )
    (until,) = parse_band("late:daily:22:00-24:00:in=1")
    assert until.end == 24 * 60


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("night", "is no band"),
        ("night:mon-fri:22-24:in=1", "is no band|are no hours"),
        ("night:mon-fry:22:00-24:00:in=1", "'fry' is no weekday; did you mean fri"),
        ("night:daily:22:00-25:00:in=1", "no hours of a day"),
        ("night:daily:22:00-22:00:in=1", "no hours of a day"),
        ("night:daily:22:60-23:00:in=1", "no hours of a day"),
        ("night:daily:22:00-24:00:inn=1", "no bucket 'inn'; did you mean in"),
        ("night:daily:22:00-24:00:in", "no price of a band"),
    ],
)
def test_what_is_no_band_is_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_band(text)


@given(st.sets(st.integers(1, 7), min_size=1))
def test_weekdays_come_back_from_their_words(days: set[int]) -> None:
    assert parse_days(days_text(sorted(days))) == sorted(days)


def test_days_go_round_the_week() -> None:
    assert parse_days("fri-mon") == [1, 5, 6, 7]
    assert parse_hours("00:00-24:00") == (0, 1440)


@given(
    st.dictionaries(
        st.sampled_from(BUCKETS),
        st.decimals(min_value=0, max_value=10**6, places=6).map(lambda price: f"{price:f}"),
        min_size=1,
    ),
)
def test_a_published_price_is_shown_exactly(given_: dict[str, str]) -> None:
    first = put(Book(), "p1", given_).prices[0]
    shown = per_million(first)
    assert put(Book(), "p1", shown).prices[0].pico == first.pico
    assert set(shown) == set(given_)
    assert set(entry_of(first).per_unit.values()) == set(shown.values())
