"""Price lists: which entries may be published, which were made anew, and when a free instant is."""

from datetime import timedelta

from ledger.events import Draft, PriceListed, payload_of
from ledger.folds.book import Book, BookFold
from ledger.folds.price_lists import AHEAD, free_from, listed, publishable
from tests.support import events as say
from tests.support.events import START, Scribe, after
from tests.support.prices import entry, made

LATER = START + timedelta(days=30)
OUT = {"other_out": "1"}


def of_old(*names: str) -> Book:
    """Single prices, as they were published before there were lists."""
    fold, scribe = BookFold(Book()), Scribe("/cli/test/1")
    for number, model in enumerate(names):
        event = scribe.write(say.price(f"old-{number}", OUT, model, LATER))
        assert fold.take(event, payload_of(event)) is None
    return fold.book()


def test_the_place_of_a_single_price_of_old_is_taken_by_a_rerating_only() -> None:
    book = of_old("m", "*")
    for model in ("m", "*"):
        said = PriceListed(base=2, entries=[entry("new", LATER, model, per_unit=OUT)])
        refused = publishable(said, START, book.prices, None)
        assert isinstance(refused, str) and f"{model} has a price from 2026-12-03" in refused
        assert "--rerate" in refused and "--from" in refused
        # What a log holds already was taken, and stays so for every reader.
        assert isinstance(listed(said, START, book.prices, None), list)
        anew = PriceListed(base=2, entries=said.entries, rerate="a typing error")
        assert isinstance(publishable(anew, START, book.prices, None), list)


def test_a_pattern_does_not_stand_in_the_place_of_a_model_of_that_very_name() -> None:
    book = of_old("llama-*")
    said = PriceListed(base=1, entries=[entry("new", LATER, "llama-*", per_unit=OUT)])
    assert isinstance(publishable(said, START, book.prices, None), list)


def test_another_scope_or_instant_takes_no_place() -> None:
    book = of_old("m")
    entries = [
        entry("key", LATER, "m", per_unit=OUT, scope="key/k1"),
        entry("then", LATER + timedelta(microseconds=1), "m", per_unit=OUT),
        entry("off", LATER + timedelta(seconds=1), "m", discount="10"),
    ]
    said = PriceListed(base=1, entries=entries)
    assert isinstance(publishable(said, START, book.prices, None), list)


def test_the_reason_stands_with_the_prices_that_needed_it() -> None:
    fold, scribe = BookFold(of_old("m")), Scribe("/cli/test/2")
    entries = [
        entry("early", START + AHEAD - timedelta(microseconds=1), "a", per_unit=OUT),
        entry("in time", START + AHEAD, "a", per_unit=OUT),
        entry("in its place", LATER, "m", per_unit=OUT),
    ]
    plain = [entry("plain", LATER, "b", per_unit=OUT)]
    for number, (told, rerate) in enumerate(((entries, "it was wrong"), (plain, None))):
        payload = PriceListed(base=len(fold.book().prices), entries=told, rerate=rerate)
        event = scribe.write(Draft(f"list/{number}", "prices", START, payload))
        assert fold.take(event, payload_of(event)) is None
    assert fold.book().rerated == {"early": "it was wrong", "in its place": "it was wrong"}


def test_what_was_given_no_instant_begins_at_the_first_that_is_free() -> None:
    wanted = entry("new", LATER, "m", per_unit=OUT)
    second = timedelta(seconds=1)
    there = made(
        [
            entry("a", LATER, "m", per_unit=OUT),
            entry("b", LATER + second, "m", per_unit=OUT),
            entry("c", LATER + 2 * second, "m", per_unit=OUT, scope="key/k1"),
        ]
    )
    assert free_from(LATER, [wanted], []) == LATER
    assert free_from(LATER, [wanted], there) == LATER + 2 * second
    assert free_from(LATER, [entry("x", LATER, "other", per_unit=OUT)], there) == LATER
    named = entry("named", LATER + second, "m", per_unit=OUT)
    assert free_from(LATER, [named], there) == LATER, "it begins where it was said to"
    assert free_from(after(0), [], there) == after(0)
