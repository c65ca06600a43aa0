"""The book as entries of a compacted topic: it comes back whole, and its bytes follow from it."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.clock import to_us
from ledger.errors import MalformedEvent
from ledger.events import Draft, payload_of
from ledger.folds.book import Book, BookFold
from ledger.folds.book_entries import BookPages, book_of, entries_of
from ledger.folds.rating import Sheet
from ledger.sql.rated import local_time
from tests.support import events
from tests.support.events import START, Scribe, after


def folded(*drafts: Draft) -> Book:
    fold, scribe = BookFold(Book()), Scribe()
    for draft in drafts:
        event = scribe.write(draft)
        assert fold.take(event, payload_of(event)) is None
    return fold.book()


def some_book() -> Book:
    return folded(
        events.key_issued("key-1", models=["gemma", "llama"]),
        events.key_issued("key-2"),
        events.price("p1", {"other_out": "0.6"}),
        events.price("p2", {"other_out": "9"}, model="*"),
        events.price("p3", {"other_out": "0.7", "uncached_in": "0.1"}, start=after(60), base=1),
        events.key_revoked("key-1", at=after(5)),
        events.backend_registered("gpu-1", key="env:K", models=["m"], weight=5),
        events.backend_registered("gpu-2"),
        events.backend_removed("gpu-2", at=after(5)),
    )


def test_a_book_comes_back_from_its_entries() -> None:
    book = some_book()
    entries = entries_of(book)
    names = ["backend/gpu-1", "backend/gpu-2", "key/key-1", "key/key-2", "price/*", "price/m"]
    assert sorted(entries) == names
    again = book_of(entries)
    assert again.keys == book.keys and again.by_hash == book.by_hash
    assert again.backends == book.backends
    assert sorted(again.prices, key=str) == sorted(book.prices, key=str)
    for model in ("m", "other"):
        for moment in (START, after(120)):
            question = "key-1", model, to_us(moment), local_time
            found = Sheet(again.prices).rate(*question)
            assert found is not None and found == Sheet(book.prices).rate(*question)


@given(st.randoms())
def test_the_bytes_follow_from_the_book_alone(dice: Any) -> None:
    entries = entries_of(some_book())
    names = list(entries)
    dice.shuffle(names)
    assert entries_of(book_of({name: entries[name] for name in names})) == entries


def test_a_field_of_a_later_version_is_read_over() -> None:
    entries = entries_of(some_book())
    for name, value in entries.items():
        entries[name] = msgspec.json.encode(msgspec.json.decode(value) | {"offset": 17})
    assert book_of(entries) == book_of(entries_of(some_book()))


def test_a_key_without_an_entry_any_more_opens_nothing() -> None:
    pages = BookPages()
    for name, value in entries_of(some_book()).items():
        pages.put(name, value)
    before = pages.book()
    pages.put("key/key-2", None)
    pages.put("price/m", None)
    pages.put("backend/gpu-1", None)
    pages.put("key/never-there", None)
    after_it = pages.book()
    assert set(before.keys) == {"key-1", "key-2"} and set(after_it.keys) == {"key-1"}
    assert len(after_it.by_hash) == 1 and [price.model for price in after_it.prices] == ["*"]
    assert set(after_it.backends) == {"gpu-2"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("key/key-1", b"{}"),
        ("key/key-1", b"\xff"),
        ("key/key-1", b"["),
        ("key/key-1", entries_of(some_book())["key/key-2"]),
        ("price/gemma", entries_of(some_book())["price/m"]),
        ("price/m", b'{"prices":[{}]}'),
        ("usage/key-1", b"{}"),
        ("backend/gpu-1", b"{}"),
        ("backend/gpu-1", entries_of(some_book())["backend/gpu-2"]),
    ],
)
def test_what_is_no_entry_is_named_and_changes_nothing(name: str, value: bytes) -> None:
    pages = BookPages()
    for known, entry in entries_of(some_book()).items():
        pages.put(known, entry)
    with pytest.raises(MalformedEvent, match=name):
        pages.put(name, value)
    assert pages.book() == book_of(entries_of(some_book()))
