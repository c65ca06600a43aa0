"""The chains of the stored events: recomputed in the order of sequences, kept now and then.

Every head follows from the events alone, so one that is kept only saves time: `tollbook audit`
computes all of them anew and compares.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, Row, Table, func, select

from ledger.chain import START, UNCHAINED_TOPICS, link, root_of
from ledger.clock import to_us
from ledger.errors import ChainBroken
from ledger.events import Event
from ledger.sql import tables
from ledger.sql.session import Ledger, ReadSession, WriteSession
from ledger.sql.upsert import insert_missing

Cut = Mapping[str, Mapping[str, int]]
"""From a source to the last sequence of each of its topics."""

Heads = dict[tuple[str, str], tuple[int, str]]
"""From a source and topic to a sequence and the head of its chain there, 64 hex digits."""

RUN = 5000
"""Sequences that are read at a time."""

STEP = 20_000
"""How far a chain gets before its head is kept by itself: a tenth of a second of work, which is
what closing a month may have to do again for each chain."""


class Linked(msgspec.Struct, frozen=True, gc=False):
    """What a chain holds at one sequence: all of an event that is hashed but its source and topic.

    `noted`: nothing of this stands in the table `events` under this name, since the fact was known
    under another one or was set aside.
    """

    sequence: int
    id: str
    type: str
    subject: str
    time_us: int
    data: str
    noted: bool = False

    def after(self, head: bytes, source: str, topic: str) -> bytes:
        """The head behind this link; `head` is the one before it."""
        return link(
            head,
            source,
            topic,
            self.sequence,
            self.id,
            self.type,
            self.subject,
            self.time_us,
            self.data.encode(),
        )


def heads_at(read: ReadSession, cut: Cut) -> Heads:
    """The heads of all chains at `cut`, without the topics that are not chained.

    What is not known yet is computed from the last head that is, and kept if `read` can write.
    Raises `ChainBroken`, naming the first event of a chain that the ledger does not have.
    """
    kept = _kept(read)
    found: Heads = {}
    for source in sorted(cut):
        for topic, sequence in sorted(cut[source].items()):
            if sequence <= 0 or topic in UNCHAINED_TOPICS:
                continue
            heads = kept.get((source, topic), [])
            at, text = max((one for one in heads if one[0] <= sequence), default=_START)
            head = bytes.fromhex(text)
            if at < sequence:
                head = walk(read, source, topic, (at, head), sequence)
                if isinstance(read, WriteSession):
                    keep(read, source, topic, sequence, head)
            found[source, topic] = sequence, head.hex()
    return found


def root_at(read: ReadSession, cut: Cut) -> str:
    """The hash over the heads of all chains at `cut`. Raises `ChainBroken` as `heads_at` does."""
    return root_of(heads_at(read, cut))


def links(
    read: ReadSession, source: str, topic: str, after: int, upto: int
) -> Iterator[list[Linked]]:
    """What the chain of `source` and `topic` holds behind `after` up to `upto`, in runs.

    Raises `ChainBroken` at the first sequence of which the ledger knows nothing.
    """
    while after < upto:
        last = min(after + RUN, upto)
        known = _between(read, source, topic, after + 1, last)
        run = []
        for sequence in range(after + 1, last + 1):
            one = known.get(sequence)
            if one is None:
                raise ChainBroken(
                    f"{source}:{sequence} of {topic} is not in the ledger, so nothing from there "
                    f"on to {upto} can be proven; it may still come, or be lost for good: "
                    "`tollbook audit` names all that is missing"
                )
            run.append(one)
        yield run
        after = last


def advance(ledger: Ledger, most: int) -> int:
    """Keep further heads of chains that got far since the last one, so that closing a month has
    little left to do. Links at most about `most` events; returns how many.

    Only a head is written, in a transaction of its own. Raises `LedgerUnavailable`.
    """
    done = 0
    with ledger.read() as read:
        made = []
        for source, topic, at, head in _far(read):
            upto = at + STEP
            made.append((source, topic, upto, walk(read, source, topic, (at, head), upto)))
            done += STEP
            if done >= most:
                break
    if made:
        with ledger.write() as tx:
            for source, topic, sequence, found in made:
                keep(tx, source, topic, sequence, found)
    return done


def _far(read: ReadSession) -> Iterator[tuple[str, str, int, bytes]]:
    """The chains of which the ledger has the next `STEP` events, with their last kept head."""
    topics, heads = tables.source_topics.c, tables.chain_heads.c
    same = heads.source == topics.source, heads.topic == topics.topic
    newest = func.coalesce(select(func.max(heads.sequence)).where(*same).scalar_subquery(), 0)
    wanted = select(topics.source, topics.topic, newest.label("at")).where(
        topics.topic.not_in(UNCHAINED_TOPICS), topics.last_sequence - newest >= STEP
    )
    for source, topic, at in read.rows(wanted):
        if _count(read, source, topic, at + 1, at + STEP) < STEP:
            # Something is missing: it may still come, and the audit tells of it if it does not.
            continue
        here = heads.source == source, heads.topic == topic, heads.sequence == at
        head = read.value(select(heads.head).where(*here))
        yield source, topic, at, START if head is None else bytes.fromhex(head)


def _count(read: ReadSession, source: str, topic: str, low: int, high: int) -> int:
    return sum(
        read.value(
            select(func.count()).where(
                of.source == source, of.topic == topic, of.sequence.between(low, high)
            )
        )
        for of in (tables.events.c, tables.duplicates.c, tables.conflicts.c)
    )


_START: Final = (0, START.hex())


def _kept(read: ReadSession) -> dict[tuple[str, str], list[tuple[int, str]]]:
    """Every head that is kept, by source and topic: there is one for thousands of events."""
    kept: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for source, topic, sequence, head in read.rows(select(tables.chain_heads)):
        kept.setdefault((source, topic), []).append((sequence, head))
    return kept


def walk(read: ReadSession, source: str, topic: str, known: tuple[int, bytes], upto: int) -> bytes:
    """The head at `upto` from the one that is known at an earlier sequence."""
    after, head = known
    for run in links(read, source, topic, after, upto):
        for one in run:
            head = one.after(head, source, topic)
    return head


def keep(tx: WriteSession, source: str, topic: str, sequence: int, head: bytes) -> None:
    """Note the head of a chain at `sequence`."""
    row = {"source": source, "topic": topic, "sequence": sequence, "head": head.hex()}
    tx.execute(insert_missing(tx.dialect, tables.chain_heads), row)


def _between(read: ReadSession, source: str, topic: str, low: int, high: int) -> dict[int, Linked]:
    """All that is known of the sequences `low` to `high`. An event counts before a repetition under
    another name, and that before what was set aside."""
    events, renamed, aside = tables.events, tables.duplicates, tables.conflicts
    said = (events.c.id, events.c.type, events.c.subject, events.c.time_us, events.c.data)

    def rows(
        table: Table, columns: Sequence[ColumnElement[Any]], *same: ColumnElement[bool]
    ) -> Sequence[Row[*tuple[Any, ...]]]:
        of, key = table.c, table.c.sequence
        span = (of.source == source, of.topic == topic, key.between(low, high))
        return read.rows(select(key, *columns).where(*span, *same))

    found = {row[0]: Linked(*row) for row in rows(events, said)}
    if len(found) == high - low + 1:
        return found
    for row in rows(renamed, said, renamed.c.id == events.c.id):
        at, event_id, kind, subject, time_us, data = row
        found.setdefault(at, Linked(at, event_id, kind, subject, time_us, data, noted=True))
    for row in sorted(rows(aside, (aside.c.digest, aside.c.id, aside.c.record))):
        found.setdefault(row[0], _set_aside(*row))
    return found


def _set_aside(sequence: int, digest: str, id: str, record: str) -> Linked:
    """The link of an event that was set aside. Where its bytes are no JSON, the whole record as it
    was noted stands for its data: its source then claims another head, which the audit tells."""
    try:
        event = msgspec.json.decode(record, type=Event)
    except (msgspec.DecodeError, RecursionError):
        return Linked(sequence, id, "", "", 0, msgspec.json.encode(record).decode(), noted=True)
    data = str(bytes(event.data), "utf-8")
    return Linked(
        sequence, event.id, event.type, event.subject, to_us(event.time), data, noted=True
    )
