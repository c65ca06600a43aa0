"""Keys as facts: what a command makes of the book, without any file."""

from datetime import UTC, datetime

import pytest

from gateway.cli.failure import Stop
from gateway.cli.keys import checked_name, find_key, issue, key_json, keys_table, revoke
from ledger.events import Draft, payload_of
from ledger.folds.book import Book, Refused, fold_book
from streams.codec import decode, encode

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)


def folded(book: Book, draft: Draft) -> Book:
    """`book` with `draft` as every reader of the registry log will see it."""
    event = decode(encode(draft, "/cli/test/1", 1, NOW))
    after = fold_book(book, event, payload_of(event))
    assert not isinstance(after, Refused), after
    return after


def with_keys(*ids: str) -> Book:
    book = Book()
    for key_id in ids:
        book = folded(book, issue(key_id, f"secret of {key_id}", None, NOW))
    return book


def test_an_issued_key_holds_a_hash_and_opens() -> None:
    draft = issue("k1", "sk-tb-secret", ("a", "b"), NOW)
    book = folded(Book(), draft)
    key = book.keys["k1"]
    assert key.models == ("a", "b") and key.revoked_at is None
    assert book.by_hash[key.hash] == key
    assert b"sk-tb-secret" not in encode(draft, "/cli/test/1", 1, NOW)


def test_what_is_shown_of_a_key_holds_no_hash() -> None:
    key = with_keys("k1").keys["k1"]
    shown = f"{key_json(key, {'k1': 'alice'})} {keys_table([key], {})}"
    assert key.hash not in shown and "secret" not in shown
    assert key_json(key, {"k1": "alice"})["name"] == "alice"


def test_a_key_is_found_by_id_or_name() -> None:
    book = with_keys("k1", "k2")
    names = {"k1": "alice", "k2": "bob"}
    assert find_key(book, names, "k2").key_id == "k2"
    assert find_key(book, names, "alice").key_id == "k1"


def test_a_name_of_two_keys_means_the_one_that_opens() -> None:
    book = with_keys("k1", "k2")
    names = {"k1": "alice", "k2": "alice"}
    with pytest.raises(Stop, match=r"2 keys are named 'alice'; .* k1, k2"):
        find_key(book, names, "alice")
    book = folded(book, revoke(book.keys["k1"], NOW))
    assert find_key(book, names, "alice").key_id == "k2"


def test_an_unknown_key_is_met_with_the_nearest() -> None:
    with pytest.raises(Stop, match="did you mean 'alice'"):
        find_key(with_keys("k1"), {"k1": "alice"}, "alicia")
    with pytest.raises(Stop, match="tollbook keys list"):
        find_key(Book(), {}, "alice")


def test_a_key_is_revoked_once() -> None:
    book = with_keys("k1")
    book = folded(book, revoke(book.keys["k1"], NOW))
    assert book.keys["k1"].revoked_at == NOW
    with pytest.raises(Stop, match="revoked at 2026-11-29 12:00:00 UTC already"):
        revoke(book.keys["k1"], NOW)


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "\x1b[31m", "x" * 201])
def test_a_name_fits_a_line_of_a_bill(name: str) -> None:
    with pytest.raises(Stop, match="is not a name for a key"):
        checked_name(name)
