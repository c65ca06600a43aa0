"""The registry's fold: who may call, at what price, where it goes, and which command lost."""

from datetime import datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.clock import to_us
from ledger.events import Draft, KeyIssued, KeyRevoked, payload_of
from ledger.folds.book import Book, Refused, fold_book
from ledger.folds.book_entries import book_of, entries_of
from ledger.folds.rating import Sheet
from ledger.sql.rated import local_time
from tests.support import events
from tests.support.events import (
    START,
    Scribe,
    after,
    backend_changed,
    backend_registered,
    backend_removed,
    hash_of,
    key_issued,
    key_revoked,
    price,
)


def folded(*drafts: Draft) -> tuple[Book, list[str]]:
    """The book after `drafts`, and why some of them did not count."""
    scribe, book, reasons = Scribe("/cli/test/1"), Book(), []
    for draft in drafts:
        event = scribe.write(draft)
        result = fold_book(book, event, payload_of(event))
        if isinstance(result, Refused):
            reasons.append(result.reason)
        else:
            book = result
    return book, reasons


def price_id(book: Book, model: str, moment: datetime) -> str | None:
    """The id of the price that a request of `model`, accepted at `moment`, is billed by."""
    rate = Sheet(book.prices).rate("k1", model, to_us(moment), local_time)
    return None if rate is None else rate.price.price_id


def rehashed(draft: Draft, hash_: str) -> Draft:
    """`draft` of a key, with another secret."""
    assert isinstance(draft.payload, KeyIssued | KeyRevoked)
    payload = msgspec.structs.replace(draft.payload, hash=hash_)
    return msgspec.structs.replace(draft, payload=payload)


def test_a_key_is_found_by_its_id_and_by_its_hash() -> None:
    book, reasons = folded(key_issued("k1", models=["a", "b"]))
    key = book.keys["k1"]
    assert book.by_hash[hash_of("k1")] is key and not reasons
    assert (key.version, key.models, key.issued_at, key.revoked_at) == (1, ("a", "b"), START, None)


def test_a_revoked_key_stays_in_the_book_with_the_time() -> None:
    book, reasons = folded(key_issued("k1"), key_revoked("k1", at=after(60)))
    key = book.by_hash[hash_of("k1")]
    assert key.revoked_at == after(60) and key.issued_at == START and key.version == 2
    assert not reasons


def test_a_new_secret_ends_the_old_one() -> None:
    change = rehashed(key_issued("k1", base=1), "f" * 64)
    book, reasons = folded(key_issued("k1"), change)
    assert not reasons and list(book.by_hash) == ["f" * 64]


def test_a_revocation_with_another_secret_leaves_nothing_that_opens() -> None:
    book, _ = folded(key_issued("k1"), rehashed(key_revoked("k1"), "f" * 64))
    assert [key.revoked_at for key in book.by_hash.values()] == [START]


def test_a_stale_base_is_refused_and_says_what_to_do() -> None:
    book, reasons = folded(key_issued("k1"), key_revoked("k1"), key_revoked("k1"))
    assert book.keys["k1"].version == 2
    assert "k1 is at version 2 by now" in reasons[0] and "repeat the command" in reasons[0]


def test_a_secret_belongs_to_one_key() -> None:
    book, reasons = folded(key_issued("k1"), rehashed(key_issued("k2"), hash_of("k1")))
    assert list(book.keys) == ["k1"] and "already that of key k1" in reasons[0]


def test_an_event_of_another_topic_is_refused() -> None:
    book, reasons = folded(events.accepted("r1"))
    assert book == Book() and "does not belong" in reasons[0]


@pytest.mark.parametrize(
    ("per_million", "why"),
    [
        ({"input": "1"}, "no such token bucket"),
        ({"uncached_in": "cheap"}, "plain decimal"),
        ({"uncached_in": "0.0000001"}, "more than 6 decimals"),
    ],
)
def test_a_price_that_cannot_be_charged_is_refused(per_million: dict[str, str], why: str) -> None:
    book, reasons = folded(price("p1", per_million))
    assert book == Book() and why in reasons[0]


def test_a_price_with_a_stale_base_is_refused() -> None:
    book, reasons = folded(price("p1", {"other_out": "1"}), price("p2", {"other_out": "2"}))
    assert [p.price_id for p in book.prices] == ["p1"] and "version 1 by now" in reasons[0]


def test_the_price_is_the_latest_that_had_begun() -> None:
    book, _ = folded(
        price("p1", {"other_out": "1"}, start=START),
        price("p2", {"other_out": "2"}, start=after(100), base=1),
    )
    chosen = [price_id(book, "m", after(s)) for s in (-1, 0, 99, 100, 10**6)]
    assert chosen == [None, "p1", "p1", "p2", "p2"]


def test_a_later_version_for_the_same_instant_stands() -> None:
    book, _ = folded(price("p1", {}), price("p2", {}, base=1))
    assert price_id(book, "m", START) == "p2"


def test_a_models_own_price_goes_before_the_one_for_all() -> None:
    book, _ = folded(
        price("own", {"other_out": "1"}, start=after(100)),
        price("all", {"other_out": "2"}, model="*", start=after(200)),
    )
    asked = (("m", 50), ("m", 300), ("x", 250), ("x", 50))
    chosen = [price_id(book, name, after(s)) for name, s in asked]
    assert chosen == [None, "own", "all", None]


@given(st.permutations(range(4)))
def test_of_commands_made_from_one_version_exactly_one_wins(order: list[int]) -> None:
    racing = [
        key_issued("k1", base=1, models=["a"]),
        key_issued("k1", base=1, models=["b"]),
        key_revoked("k1", at=START + timedelta(seconds=1)),
        key_issued("k1", base=1),
    ]
    book, reasons = folded(key_issued("k1"), *[racing[index] for index in order])
    assert len(reasons) == 3 and book.keys["k1"].version == 2
    winner, _ = folded(key_issued("k1"), racing[order[0]])
    assert book == winner


@given(st.lists(st.tuples(st.sampled_from(["k1", "k2"]), st.integers(0, 3), st.booleans())))
def test_a_refused_event_changes_nothing_and_hashes_follow_keys(
    commands: list[tuple[str, int, bool]],
) -> None:
    scribe, book = Scribe("/cli/test/1"), Book()
    for key_id, base, revoke in commands:
        make = key_revoked if revoke else key_issued
        event = scribe.write(make(key_id, base=base))
        before = msgspec.structs.asdict(book)
        result = fold_book(book, event, payload_of(event))
        assert msgspec.structs.asdict(book) == before
        if isinstance(result, Refused):
            continue
        book = result
        assert {key.key_id: key for key in book.by_hash.values()} == book.keys


def test_a_backend_is_in_the_book_as_it_was_said() -> None:
    book, reasons = folded(
        backend_registered("g", key="env:K", engine="vllm", models=["a"], weight=10, draining=True)
    )
    server = book.backends["g"]
    assert not reasons and server.registered_at == START and server.removed_at is None
    assert (server.url, server.key, server.engine) == ("http://g:8000", "env:K", "vllm")
    assert (server.models, server.weight, server.draining) == (("a",), 10, True)


def test_a_change_is_the_whole_state() -> None:
    book, reasons = folded(
        backend_registered("g", key="env:K", weight=10), backend_changed("g", weight=20)
    )
    server = book.backends["g"]
    assert (server.version, server.weight, server.key) == (2, 20, None) and not reasons


def test_a_removed_backend_stays_with_the_time_and_may_come_again() -> None:
    book, reasons = folded(
        backend_registered("g"), backend_removed("g", at=after(9)), backend_changed("g", base=2)
    )
    assert book.backends["g"].removed_at == after(9) and "is not there" in reasons[0]
    again, reasons = folded(
        backend_registered("g"), backend_removed("g", at=after(9)), backend_registered("g", base=2)
    )
    assert again.backends["g"].removed_at is None and again.backends["g"].version == 3
    assert not reasons


@pytest.mark.parametrize(
    ("draft", "why"),
    [
        (backend_registered("g", base=1, url=None), "registered already"),
        (backend_changed("g", base=7), "at version 1 by now"),
        (backend_changed("other", base=0), "is not there"),
        (backend_changed("g", weight=101), "0 to 100 percent"),
        (backend_registered("twin", url="http://g:8000"), "already the address of backend g"),
        (backend_registered("twin", url="http://G:08000"), "already the address of backend g"),
    ],
)
def test_a_backend_that_cannot_be_so_is_refused(draft: Draft, why: str) -> None:
    before, _ = folded(backend_registered("g"))
    book, reasons = folded(backend_registered("g"), draft)
    assert book == before and why in reasons[0]


def test_the_address_of_a_removed_backend_is_free() -> None:
    book, reasons = folded(
        backend_registered("g"), backend_removed("g"), backend_registered("h", url="http://g:8000")
    )
    assert set(book.backends) == {"g", "h"} and not reasons


def test_two_backends_without_an_address_here_are_no_twins() -> None:
    book, reasons = folded(backend_registered("g", url=None), backend_registered("h", url=None))
    assert set(book.backends) == {"g", "h"} and not reasons


def test_an_admin_key_keeps_its_scope_when_it_is_revoked() -> None:
    draft = key_issued("k1", models=[])
    assert isinstance(draft.payload, KeyIssued)
    admin = msgspec.structs.replace(draft.payload, scope="admin")
    book, reasons = folded(msgspec.structs.replace(draft, payload=admin), key_issued("k2"))
    assert reasons == [] and [key.scope for key in book.keys.values()] == ["admin", None]
    assert book_of(entries_of(book)).keys == book.keys
