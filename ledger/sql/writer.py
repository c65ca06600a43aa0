"""The one writer of events: a batch of a log goes into the ledger whole, once, with its position.

In one transaction it stores what is new, folds it into the projections, and moves the position of
the log. A batch that was written before moves nothing; a writer that was overtaken by another
writes nothing. It never reads a log and never decides when to read one.
"""

from collections.abc import Iterable, Sequence
from hashlib import sha256

import msgspec
from sqlalchemy import bindparam, delete, insert, select, update

from ledger.clock import Clock, to_us
from ledger.errors import EventError, PositionMoved, UnknownEvent
from ledger.events import Event, Payload, payload_of
from ledger.folds.book import Book
from ledger.folds.fitness import NUL, nameless, too_long, unfit
from ledger.sql import tables
from ledger.sql.intake import REGISTRY, Aside, Taken, last_place, name_of, take
from ledger.sql.late import project_late
from ledger.sql.linking import Learned, Linking
from ledger.sql.projections import (
    MAIN,
    Fact,
    project_attempts,
    project_book,
    project_counters,
    project_reach,
    project_requests,
    project_sources,
)
from ledger.sql.replay import load_book
from ledger.sql.session import Ledger, ReadSession, WriteSession
from ledger.sql.upsert import insert_missing


class Poison(msgspec.Struct, frozen=True):
    """A record of a log that is no event: where it stood, why it is none, and its bytes.

    No bytes: the log could not be read there. That is forgotten when it is read on from there.
    """

    offset: int
    reason: str
    record: bytes


Said = Payload | EventError
"""What an event says, or why nothing can be made of its data."""


class Batch(msgspec.Struct, frozen=True):
    """What was read of `log` from `read_from` up to, not including, `next_offset`, in order.

    `said` is what `said_by` gives for `events`, if the reader has asked that already; else null.
    """

    log: str
    read_from: int
    next_offset: int
    events: list[Event] = []
    poison: list[Poison] = []
    said: list[Said] | None = None


class Written(msgspec.Struct, frozen=True):
    """What one batch did: events stored, repetitions skipped, events and records set aside now."""

    inserted: int = 0
    duplicates: int = 0
    conflicts: int = 0


class LedgerWriter:
    """Writes batches. One per process is enough; several processes exclude each other by SQL.

    It keeps the registry's book in memory, with the place in the registry that it stands at.
    """

    def __init__(self, ledger: Ledger, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock
        self._book = Book()
        self._place = 0
        self._linking = Linking()

    def position(self, log: str) -> int:
        """The offset from which `log` is to be read next; 0 for a log that is new here."""
        with self._ledger.read() as read:
            return position(read, log)

    def write(self, batch: Batch) -> Written:
        """Write `batch` in one transaction. Safe to repeat: the second time moves nothing.

        Raises `PositionMoved` if the log's position is not `read_from` (read it again),
        `UnknownEvent` for a type of a newer version (upgrade this reader) and `LedgerUnavailable`;
        after each of them nothing of the batch is written.
        """
        return self.write_all([batch])

    def write_all(self, batches: Sequence[Batch]) -> Written:
        """Write batches of different logs in one transaction: all of them, or none. As `write`."""
        said: list[Said] = []
        events: list[Event] = []
        for batch in batches:
            assert batch.next_offset >= batch.read_from >= 0, "a log is only read forwards"
            said += said_by(batch.events) if batch.said is None else batch.said
            events += batch.events
        facts, broken = _sort(events, said)
        kept = [f for f in facts if f.event.topic not in tables.NOT_KEPT_TOPICS]
        passing = [f for f in facts if f.event.topic in tables.NOT_KEPT_TOPICS]
        noticed_us = to_us(self._clock.now())
        poisoned = 0
        with self._ledger.write() as tx:
            for batch in batches:
                _move(tx, batch)
                _forget_unread(tx, batch)
                poisoned += _set_poison_aside(tx, batch, noticed_us)
            taken = take(tx, kept, broken, noticed_us)
            for fact in passing:
                taken.reach(name_of(fact.event), fresh=False)
            project_requests(tx, MAIN, taken.new + passing)
            project_attempts(tx, MAIN, taken.new)
            project_counters(tx, MAIN, taken.new)
            project_sources(tx, MAIN, taken.new)
            project_reach(tx, MAIN, taken.reaches)
            before, book, place = self._project_registry(tx, taken)
            project_late(tx, MAIN, before.periods, book.periods, taken.new, taken.renamed)
            learned = self._link(tx, taken)
        # Only what is committed may be remembered.
        self._book, self._place = book, place
        self._linking.remember(learned)
        return Written(len(taken.new), taken.duplicates, taken.conflicts + poisoned)

    def _link(self, tx: WriteSession, taken: Taken) -> Learned:
        """Go on with the chains of what was taken."""
        if taken.chains:
            return self._linking.follow(tx, taken.chains)
        return self._linking.catch_up(tx, {one: r.last for one, r in taken.reaches.items()})

    def _project_registry(self, tx: WriteSession, taken: Taken) -> tuple[Book, Book, int]:
        """The book before this batch and after it, and the place that it stands at then."""
        facts = [fact for fact in taken.new if fact.event.topic == REGISTRY]
        place = last_place(tx)
        before = self._book
        if self._place != place - len(facts):
            # This writer is new, or another one took registry events meanwhile.
            before = load_book(tx, before=place - len(facts) + 1)
        return before, project_book(tx, MAIN, before, facts) if facts else before, place


def said_by(events: Iterable[Event]) -> list[Said]:
    """What each of `events` says."""
    said: list[Said] = []
    for event in events:
        try:
            said.append(payload_of(event))
        except EventError as wrong:
            said.append(wrong)
    return said


def _sort(events: Iterable[Event], said: Iterable[Said]) -> tuple[list[Fact], list[Aside]]:
    """`events` with their payloads, and apart from them those that may not count, with reasons.

    Raises the first `UnknownEvent` of `said`.
    """
    facts: list[Fact] = []
    broken: list[Aside] = []
    for event, payload in zip(events, said, strict=True):
        if isinstance(payload, UnknownEvent):
            raise payload
        if event.topic in tables.NOT_TAKEN_TOPICS:
            continue
        reason = nameless(event)
        if reason is not None:
            broken.append(Aside(_named(event), reason))
        elif isinstance(payload, EventError):
            broken.append(Aside(event, str(payload)))
        elif (reason := unfit(event, payload)) is not None:
            broken.append(Aside(event, reason))
        else:
            try:
                facts.append(Fact(event, payload, str(event.data, "utf-8")))
            except UnicodeDecodeError as wrong:
                broken.append(Aside(event, str(wrong)))
    return facts, broken


def _named(event: Event) -> Event:
    """`event` under a name that can be stored, to be set aside."""
    texts = {name: getattr(event, name) for name in ("id", "source", "subject", "topic", "type")}
    texts = {name: text.replace(NUL, "\ufffd") for name, text in texts.items()}
    if too_long(event.source):
        texts["source"] = f"{event.source[:60]}…{sha256(event.source.encode()).hexdigest()}"
    return msgspec.structs.replace(event, **texts)


def position(read: ReadSession, log: str) -> int:
    """The offset from which `log` is to be read next; 0 for a log that is new here."""
    found: int | None = read.value(
        select(tables.positions.c.next_offset).where(tables.positions.c.log == log)
    )
    return found or 0


_MOVE = (
    update(tables.positions)
    .where(
        tables.positions.c.log == bindparam("of"),
        tables.positions.c.next_offset == bindparam("old"),
    )
    .values(next_offset=bindparam("new"))
)


def _move(tx: WriteSession, batch: Batch) -> None:
    here = {"of": batch.log, "old": batch.read_from, "new": batch.next_offset}
    if tx.do(_MOVE, here):
        return
    found = tx.value(
        select(tables.positions.c.next_offset).where(tables.positions.c.log == batch.log)
    )
    if found is None and batch.read_from == 0:
        tx.execute(insert(tables.positions), {"log": batch.log, "next_offset": batch.next_offset})
        return
    raise PositionMoved(
        f"{batch.log} was read from {batch.read_from}, but the ledger has taken it up to"
        f" {found or 0}; another writer was faster, nothing was written"
    )


_UNREAD = delete(tables.poison).where(
    tables.poison.c.log == bindparam("of"),
    tables.poison.c.log_offset >= bindparam("low"),
    tables.poison.c.log_offset < bindparam("high"),
    tables.poison.c.record == b"",
)


def _forget_unread(tx: WriteSession, batch: Batch) -> None:
    """What could not be read before and is read by `batch` is no fault of the log any more."""
    if batch.next_offset > batch.read_from:
        span = {"of": batch.log, "low": batch.read_from, "high": batch.next_offset}
        tx.do(_UNREAD, span)


def _set_poison_aside(tx: WriteSession, batch: Batch, noticed_us: int) -> int:
    statement = insert_missing(tx.dialect, tables.poison)
    return sum(
        tx.execute(
            statement,
            {
                "log": batch.log,
                "log_offset": one.offset,
                "reason": one.reason.replace(NUL, "\ufffd"),
                "record": one.record,
                "noticed_us": noticed_us,
            },
        )
        for one in batch.poison
    )
