"""The chains: by their rule alone, from the ledger in any order of arrival, and with gaps."""

import json
from collections.abc import Sequence
from hashlib import sha256
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.chain import START, link, link_record, root_of
from ledger.clock import to_us
from ledger.errors import ChainBroken
from ledger.events import Draft, Event
from ledger.sql import chain
from ledger.sql.chain import Heads, heads_at, root_at
from ledger.sql.session import Ledger
from streams.codec import decode, encode
from tests.support.books import Books
from tests.support.events import SOURCE, Scribe, accepted, after, finished, mark, tokens

OTHER = "/gateway/other/0193a0000000700080000000000000b2"
Links = dict[tuple[str, str], tuple[int, str]]


def by_hand(events: Sequence[Event]) -> Links:
    """Heads of `events` with nothing but a JSON writer and a hash: the rule as docs/proof.md says
    it."""
    heads: Links = {}
    for event in sorted(events, key=lambda e: (e.source, e.topic, e.sequence)):
        _, head = heads.get((event.source, event.topic), (0, "00" * 32))
        moment = event.time.isoformat().replace("+00:00", "Z")
        said: dict[str, Any] = {
            "specversion": "1.0",
            "id": event.id,
            "source": event.source,
            "topic": event.topic,
            "sequence": event.sequence,
            "type": event.type,
            "subject": event.subject,
            "time": moment,
        }
        text = json.dumps(said, ensure_ascii=False, separators=(",", ":"))
        text = text[:-1] + ',"data":' + bytes(event.data).decode() + "}"
        head = sha256(bytes.fromhex(head) + text.encode()).hexdigest()
        heads[event.source, event.topic] = event.sequence, head
    return heads


def root_by_hand(heads: Links) -> str:
    lines = [
        json.dumps([s, t, n, head], ensure_ascii=False, separators=(",", ":")) + "\n"
        for (s, t), (n, head) in sorted(heads.items())
    ]
    return sha256("".join(lines).encode()).hexdigest()


def day() -> list[Draft]:
    """Some requests and marks, as one source tells them."""
    drafts = [mark(SOURCE, 1, after(0), {})]
    for n in range(12):
        drafts.append(accepted(f"r{n}", at=after(n)))
        drafts.append(finished(f"r{n}", at=after(n), usage=tokens(n, n)))
    return [*drafts, mark(SOURCE, 2, after(60), {"requests": 24, "sources": 1})]


def cut_of(heads: Links | Heads) -> dict[str, dict[str, int]]:
    cut: dict[str, dict[str, int]] = {}
    for (source, topic), (sequence, _) in heads.items():
        cut.setdefault(source, {})[topic] = sequence
    return cut


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@settings(max_examples=60, deadline=None)
@given(TEXT, TEXT, st.integers(0, 4_000_000_000_000_000), st.binary(min_size=32, max_size=32))
def test_a_record_and_what_the_ledger_keeps_of_it_make_the_same_link(
    key: str, model: str, us: int, head: bytes
) -> None:
    draft = accepted(f"r{key}", at=after(us / 1_000_000), key_id=key, model=model)
    record = encode(draft, SOURCE + key, 7, after(1))
    event = decode(record)
    again = encode(draft, SOURCE + key, 7, after(123.456))
    made = link(
        head, event.source, event.topic, 7, event.id, event.type, event.subject,
        to_us(event.time), bytes(event.data),
    )  # fmt: skip
    assert link_record(head, record) == link_record(head, again) == made


def test_the_ledger_makes_the_heads_that_the_rule_gives(books: Books) -> None:
    events = books.add(*day())
    heads = by_hand(events)
    with books.ledger.read() as read:
        assert heads_at(read, cut_of(heads)) == heads
        assert root_at(read, cut_of(heads)) == root_by_hand(heads) == root_of(heads)


def test_heads_do_not_depend_on_what_came_first_or_was_asked_before(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain, "RUN", 5)
    events = Scribe().write_all(*day()) + Scribe(OTHER).write_all(*(renamed(d) for d in day()))
    shuffled = list(events)
    Random(7).shuffle(shuffled)
    books.write(shuffled)
    heads = by_hand(events)
    early = {SOURCE: {"requests": 9}}
    with books.ledger.write() as tx:
        first = heads_at(tx, early)
        assert heads_at(tx, cut_of(heads)) == heads
    with books.ledger.read() as read:
        assert heads_at(read, cut_of(heads)) == heads
        assert heads_at(read, early) == first
        assert first == by_hand([e for e in events if e.source == SOURCE and e.sequence <= 9
                                 and e.topic == "requests"])  # fmt: skip


def renamed(draft: Draft) -> Draft:
    """The same of another request or source."""
    payload = draft.payload
    if hasattr(payload, "request_id"):
        other = msgspec.structs.replace(payload, request_id=f"other-{payload.request_id}")
        return msgspec.structs.replace(draft, id=f"other-{draft.id}", payload=other)
    return msgspec.structs.replace(draft, id=draft.id.replace(SOURCE, OTHER))


def test_a_gap_is_named_and_nothing_behind_it_is_proven(books: Books) -> None:
    events = Scribe().write_all(*day())
    gone = next(e for e in events if e.topic == "requests" and e.sequence == 11)
    books.write([e for e in events if e is not gone])
    heads = by_hand(events)
    with books.ledger.read() as read:
        with pytest.raises(ChainBroken, match=f"{SOURCE}:11 of requests is not in the ledger"):
            heads_at(read, cut_of(heads))
        assert heads_at(read, {SOURCE: {"requests": 10}})
    books.write([gone])
    with books.ledger.write() as tx:
        assert heads_at(tx, cut_of(heads)) == heads


def test_what_is_neither_kept_nor_taken_is_in_no_chain(ledger: Ledger) -> None:
    with ledger.read() as read:
        assert heads_at(read, {SOURCE: {"tokens": 9, "backends": 3, "requests": 0}}) == {}


def test_a_fact_that_came_again_under_another_name_is_a_link_of_its_own(books: Books) -> None:
    events = Scribe().write_all(*day())
    again = Scribe(OTHER).write_all(*day())
    books.write(events)
    books.write(again)
    heads = by_hand([*events, *again])
    with books.ledger.read() as read:
        assert heads_at(read, cut_of(heads)) == heads


def test_what_was_set_aside_is_linked_as_its_source_wrote_it(books: Books) -> None:
    events = Scribe().write_all(*day())
    other = Scribe(OTHER).write_all(*(finished(f"r{n}", usage=tokens(77, 77)) for n in range(3)))
    books.write(events)
    books.write(other)
    heads = by_hand([*events, *other])
    with books.ledger.read() as read:
        assert heads_at(read, cut_of(heads)) == heads


def test_a_root_tells_every_part_from_every_other() -> None:
    one = {("s", "t"): (3, "ab" * 32)}
    others: list[Links] = [
        {},
        {("st", ""): (3, "ab" * 32)},
        {("s", "t"): (4, "ab" * 32)},
        {("s", "t"): (3, "ac" * 32)},
        one | {("s", "u"): (3, "ab" * 32)},
    ]
    assert len({root_of(heads) for heads in [one, *others]}) == 6
    assert len(START) == 32
