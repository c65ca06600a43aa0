"""What a review found: a registry was read in the square of its size, and a disk that failed
while it was read anew made the gateway forget every key."""

import os
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.events import Draft, Event, KeyIssued, KeyRevoked, Payload, PricePublished, payload_of
from ledger.folds.book import Book, BookFold, Refused, fold_book
from streams.codec import decode, encode
from streams.errors import LogError
from streams.log import registry
from streams.log.reader import Chunk
from streams.log.registry import RegistryLog, RegistryTail
from tests.streams.builders import START, FakeClock


def event_of(number: int, payload: Payload) -> Event:
    return decode(encode(Draft(f"e{number}", "x", START, payload), "/cli/test/1", number, START))


KEYS = st.builds(
    lambda key, base, revoked: (
        KeyRevoked(key_id=key, base=base, version=base + 1, hash=key, revoked_at=START)
        if revoked
        else KeyIssued(key_id=key, base=base, version=base + 1, hash=key)
    ),
    st.sampled_from("abc"),
    st.integers(0, 3),
    st.booleans(),
)
PRICES = st.builds(
    lambda model, base, price: PricePublished(
        price_id=f"{model}{base}",
        model=model,
        base=base,
        version=base + 1,
        currency="USD",
        effective_from=START,
        per_million={"uncached_in": price},
    ),
    st.sampled_from("xy"),
    st.integers(0, 3),
    st.sampled_from(["1", "0.5", "no price"]),
)


@given(st.lists(KEYS | PRICES, max_size=30), st.integers(0, 30))
def test_many_events_folded_at_once_give_the_book_of_one_after_the_other(
    payloads: list[Payload], cut: int
) -> None:
    book, fold = Book(), BookFold(Book())
    for number, payload in enumerate(payloads, start=1):
        event = event_of(number, payload)
        if number == cut:
            fold = BookFold(fold.book())
        one = fold_book(book, event, payload_of(event))
        refused = fold.take(event, payload_of(event))
        assert refused == (one if isinstance(one, Refused) else None)
        book = book if isinstance(one, Refused) else one
    assert fold.book() == book


def test_known_keys_go_on_working_while_a_registry_cannot_be_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = RegistryLog(tmp_path, "/cli/test/1", clock=FakeClock())
    for name in ("a", "b"):
        issued = KeyIssued(key_id=name, base=0, version=1, hash=name)
        log.append(partial(_made, Draft(f"{name}/v1", "x", START, issued)))
    path = tmp_path / registry.LOG
    tail = RegistryTail(path)
    tail.poll()
    with monkeypatch.context() as failing:
        failing.setattr(registry, "read_registry", _refuse)
        os.replace(_copy(path), path)
        with pytest.raises(LogError):
            tail.poll()
        assert set(tail.book.by_hash) == {"a", "b"}
    assert tail.poll() is not None
    assert set(tail.book.by_hash) == {"a", "b"}


def _made(draft: Draft, book: Book) -> Draft:
    return draft


def _refuse(path: Path, offset: int) -> Chunk:
    raise LogError(f"{path} cannot be read: the disk failed")


def _copy(path: Path) -> Path:
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    return copy
