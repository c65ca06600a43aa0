"""The audit holds chains against what sources claimed, and heads are kept as the ledger grows."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from sqlalchemy import func, select, update

from ledger.audit import audit
from ledger.events import Draft, Event, SourceClosed, SourceMark
from ledger.sql import chain, tables
from ledger.sql.chain import advance, heads_at
from tests.ledger.test_chain import by_hand
from tests.support.books import Books
from tests.support.events import SOURCE, Scribe, accepted, after, finished, tokens

REQUESTS = 12


class Telling:
    """One source that tells its heads, as a gateway's spool does."""

    def __init__(self, source: str = SOURCE) -> None:
        self.source = source
        self.scribe = Scribe(source)
        self.events: list[Event] = []
        self.marks = 0

    def serve(self, prefix: str, count: int = REQUESTS) -> None:
        for n in range(count):
            self._write(accepted(f"{prefix}{n}", after(n)))
            self._write(finished(f"{prefix}{n}", after(n), usage=tokens(n, n)))

    def mark(self, **wrong: str) -> None:
        self.marks += 1
        said = SourceMark(last=dict(self.scribe.last), open=0, heads=self.heads() | wrong)
        self._write(Draft(f"{self.source}/mark/{self.marks}", self.source, after(60), said))

    def close(self, other: "Telling", **wrong: str) -> None:
        """Close the source `other`, as who adopts its spool."""
        said = SourceClosed(
            closed_source=other.source,
            last=dict(other.scribe.last),
            by=self.source,
            heads=other.heads() | wrong,
        )
        self._write(Draft(f"{other.source}/closed", other.source, after(90), said))

    def heads(self) -> dict[str, str]:
        return {topic: head for (_, topic), (_, head) in by_hand(self.events).items()}

    def _write(self, draft: Draft) -> None:
        self.events.append(self.scribe.write(draft))


def findings(books: Books) -> list[str]:
    with books.ledger.read() as read:
        return [one.says for one in audit(read).findings if one.check == "chains"]


def test_what_sources_claim_of_their_chains_is_looked_at_and_fits(books: Books) -> None:
    gateway, runner = Telling(), Telling("/runner/test/0193a0000000700080000000000000cc")
    for n in range(3):
        gateway.mark()
        gateway.serve(f"r{n}-")
    gateway.mark()
    runner.close(gateway)
    books.write(gateway.events + runner.events)
    with books.ledger.read() as read:
        report = audit(read)
    assert [one.says for one in report.findings if one.check == "chains"] == []
    assert report.looked_at["chains"] == len(gateway.events) + len(runner.events)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("data", func.replace(tables.events.c.data, '"other_out":3', '"other_out":2')),
        ("subject", "key-2"),
        ("time_us", tables.events.c.time_us + 1),
        ("id", "s3/finishes"),
    ],
)
def test_an_event_that_was_changed_in_the_ledger_is_told(
    books: Books, column: str, value: Any
) -> None:
    gateway = Telling()
    gateway.serve("r")
    gateway.mark()
    gateway.serve("s")
    gateway.mark()
    books.write(gateway.events)
    assert findings(books) == []
    with books.ledger.write() as tx:
        table = tables.events
        tx.execute(update(table).where(table.c.id == "s3/finished").values({column: value}))
    (told,) = findings(books)
    assert f"{SOURCE} told {gateway_head(gateway)} as the head of requests of {SOURCE}" in told
    assert f"at {4 * REQUESTS}" in told, "the mark before it still fits"


def gateway_head(gateway: Telling) -> str:
    return gateway.heads()["requests"]


def test_a_record_that_was_changed_on_its_way_is_told(books: Books) -> None:
    gateway = Telling()
    gateway.serve("r")
    gateway.mark()
    changed = [
        msgspec.structs.replace(
            event,
            data=msgspec.Raw(bytes(event.data).replace(b'"other_out":5', b'"other_out":1')),
        )
        for event in gateway.events
    ]
    books.write(changed)
    (told,) = findings(books)
    assert f"requests of {SOURCE} at {2 * REQUESTS}" in told


def test_an_adopter_that_saw_other_records_is_told(books: Books) -> None:
    gateway, runner = Telling(), Telling("/runner/test/0193a0000000700080000000000000cc")
    gateway.serve("r")
    runner.close(gateway, requests="ab" * 32)
    books.write(gateway.events + runner.events)
    (told,) = findings(books)
    assert told.startswith(f"{runner.source} closed it with {'ab' * 32} as the head of requests")


def test_a_head_that_was_kept_is_not_believed(books: Books) -> None:
    gateway = Telling()
    gateway.serve("r")
    books.write(gateway.events)
    with books.ledger.write() as tx:
        heads_at(tx, {SOURCE: {"requests": 10}})
        tx.execute(update(tables.chain_heads).values(head="cd" * 32))
    (told,) = findings(books)
    assert told.startswith(f"this ledger once kept {'cd' * 32} as the head of requests")


def test_heads_are_kept_as_the_ledger_grows(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "STEP", 7)
    monkeypatch.setattr(chain, "RUN", 3)
    gateway = Telling()
    gateway.serve("r")
    gateway.mark()
    late = gateway.events[16]
    books.write([e for e in gateway.events if e is not late])
    assert advance(books.ledger, 7) == 7, "no more than was asked for"
    assert advance(books.ledger, 1000) == 7, "up to the event that is missing"
    assert advance(books.ledger, 1000) == 0
    books.write([late])
    assert advance(books.ledger, 1000) == 7
    assert advance(books.ledger, 1000) == 0, "three events are left: the next time"
    assert kept(books) == [7, 14, 21]
    with books.ledger.read() as read:
        ((_, head),) = heads_at(read, {SOURCE: {"requests": 24}}).values()
    assert head == gateway_head(gateway)
    assert findings(books) == []


def kept(books: Books) -> Sequence[int]:
    with books.ledger.read() as read:
        rows = read.rows(
            select(tables.chain_heads.c.sequence).order_by(tables.chain_heads.c.sequence)
        )
        return [row[0] for row in rows]
