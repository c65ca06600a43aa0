"""The writer links chains from its hands: the heads are those of the rule, whoever wrote before."""

from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace
from sqlalchemy import func, select, update

from ledger.clock import SystemClock
from ledger.errors import LedgerUnavailable
from ledger.events import Event
from ledger.sql import chain, tables
from ledger.sql.chain import advance
from ledger.sql.session import Ledger
from ledger.sql.writer import Batch, LedgerWriter
from tests.ledger.ledgers import Feeder
from tests.ledger.test_chain import by_hand
from tests.ledger.test_chain_audit import findings
from tests.support import events as say
from tests.support.books import Books
from tests.support.events import SOURCE, Scribe, after

STEP = 7
OTHER = "/gateway/other/0193a0000000700080000000000000b2"


@pytest.fixture(autouse=True)
def _short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "STEP", STEP)
    monkeypatch.setattr(chain, "RUN", 3)


def served(count: int, source: str = SOURCE) -> list[Event]:
    """Two events for each of `count` requests of one source."""
    lives = [
        (say.accepted(f"{source[-2:]}-{n}", after(n)), say.finished(f"{source[-2:]}-{n}", after(n)))
        for n in range(count)
    ]
    return Scribe(source).write_all(*(draft for life in lives for draft in life))


def heads(ledger: Ledger, source: str = SOURCE) -> dict[int, str]:
    """The heads of the requests of `source` that the ledger keeps, by sequence."""
    table = tables.chain_heads.c
    with ledger.read() as read:
        kept = select(table.sequence, table.head).where(table.source == source)
        return {row[0]: row[1] for row in read.rows(kept.order_by(table.sequence))}


def by_rule(events: Sequence[Event], *at: int) -> dict[int, str]:
    """What these heads have to be."""
    return {n: by_hand(events[:n])[events[0].source, "requests"][1] for n in at}


@pytest.mark.parametrize("size", [1, 2, 5, 7, 24])
def test_heads_are_kept_where_they_are_due_whatever_the_batches(ledger: Ledger, size: int) -> None:
    events, feeder = served(12), Feeder(ledger)
    for at in range(0, len(events), size):
        feeder.feed(events[at : at + size])
    assert heads(ledger) == by_rule(events, 7, 14, 21)
    assert advance(ledger, 1000) == 0, "nothing is left to be read again"


def test_another_writer_goes_on_where_the_ledger_has_kept_a_head(ledger: Ledger) -> None:
    """After a restart, and once more when it was overtaken."""
    events, others = served(12), served(12, OTHER)
    first, second = (LedgerWriter(ledger, SystemClock()) for _ in range(2))
    parts = ((first, 0, 5), (second, 5, 10), (first, 10, 15), (second, 15, 24))
    for writer, low, high in parts:
        writer.write(Batch("log", low, high, events[low:high]))
        writer.write_all([Batch("other", low, high, others[low:high])])
    assert heads(ledger) == by_rule(events, 7, 14, 21)
    assert heads(ledger, OTHER) == by_rule(others, 7, 14, 21)


def test_what_is_too_far_to_go_at_once_is_left_to_be_read(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others wait for the transaction of a writer that has just begun."""
    events = served(15)
    monkeypatch.setattr(chain, "STEP", 1000)
    Feeder(ledger).feed(events[:20])
    monkeypatch.setattr(chain, "STEP", STEP)
    writer = LedgerWriter(ledger, SystemClock())
    writer.write(Batch("new", 0, 4, events[20:24]))
    assert heads(ledger) == {}
    assert advance(ledger, 1000) + advance(ledger, 1000) + advance(ledger, 1000) == 21
    writer.write(Batch("new", 4, 10, events[24:]))
    assert heads(ledger) == by_rule(events, 7, 14, 21, 28)


def test_repetitions_and_what_is_set_aside_do_not_lose_the_thread(ledger: Ledger) -> None:
    events, feeder = served(12), Feeder(ledger)
    feeder.feed(events[:5])
    feeder.feed([*events[2:5], *events[5:9]])
    wrong = replace(events[9], data=events[8].data)
    feeder.feed([wrong])
    feeder.feed(events[10:])
    told = [*events[:9], wrong, *events[10:]]
    assert heads(ledger) == by_rule(told, 11, 18), "kept where events are links as they came"


def test_behind_a_gap_nothing_is_kept_until_it_is_filled(ledger: Ledger) -> None:
    events, feeder = served(15), Feeder(ledger)
    feeder.feed(events[:9])
    feeder.feed(events[10:20])
    feeder.feed(events[20:])
    assert heads(ledger) == by_rule(events, 7)
    assert advance(ledger, 1000) == 0
    feeder.feed([events[9]])
    while advance(ledger, 1000):
        pass
    assert heads(ledger) == by_rule(events, 7, 14, 21, 28)


def test_a_transaction_that_failed_is_not_remembered(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, writer = served(12), LedgerWriter(ledger, SystemClock())
    writer.write(Batch("log", 0, 5, events[:5]))
    refuse = _refusing("ledger.sql.linking.chain.keep")
    with monkeypatch.context() as patched:
        patched.setattr(chain, "keep", refuse)
        with pytest.raises(LedgerUnavailable):
            writer.write(Batch("log", 5, 14, events[5:14]))
    assert heads(ledger) == {}
    writer.write(Batch("log", 5, 14, events[5:14]))
    writer.write(Batch("log", 14, 24, events[14:]))
    assert heads(ledger) == by_rule(events, 7, 14, 21)


def _refusing(what: str) -> Callable[..., None]:
    def refuse(*_: object) -> None:
        raise LedgerUnavailable(f"{what}: the disk is full")

    return refuse


def test_a_byte_that_is_changed_behind_the_writer_is_told_by_its_own_heads(books: Books) -> None:
    """The source told no head at all, and nothing was read again before the change."""
    books.write(served(12))
    assert findings(books) == []
    with books.ledger.write() as tx:
        table = tables.events
        changed = func.replace(table.c.data, '"key-1"', '"key-2"')
        tx.execute(update(table).where(table.c.sequence == 3).values(data=changed))
    told = findings(books)
    assert len(told) == 1
    assert told[0].startswith("this ledger once kept ")
    assert f"as the head of requests of {SOURCE} at 7" in told[0]


def test_registry_and_running_totals_are_no_trouble(ledger: Ledger) -> None:
    scribe = Scribe()
    drafts = [*say.life("r1"), say.key_issued("k1"), *say.life("r2"), *say.life("r3")]
    feeder = Feeder(ledger)
    events = scribe.write_all(*drafts)
    feeder.feed(events[:5])
    feeder.feed(events[5:])
    requests = [event for event in events if event.topic == "requests"]
    assert len(requests) == 9
    (at,) = heads(ledger)
    assert at in (7, 8, 9) and heads(ledger) == by_rule(requests, at)
