"""The chains that one writer takes in, linked while it has their events in its hands.

To read them again for their heads costs as much as half of what else becomes of them. What it keeps
are heads as `ledger.sql.chain.advance` would make them, which stays for chains that come in pieces.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC

import msgspec
from sqlalchemy import bindparam, select

from ledger.chain import START, UNCHAINED_TOPICS, link_event
from ledger.errors import ChainBroken
from ledger.events import Event
from ledger.sql import chain, tables
from ledger.sql.session import ReadSession, WriteSession

Chain = tuple[str, str]
"""A source and a topic."""


class Reached(msgspec.Struct, frozen=True, gc=False):
    """The head of a chain at `sequence`; `kept` is the last one whose head stands in the ledger."""

    sequence: int
    head: bytes
    kept: int


class Learned(msgspec.Struct):
    """What became of chains in one transaction. `lost` are those of which events are missing."""

    reached: dict[Chain, Reached] = {}
    lost: set[Chain] = set()


class Linking:
    """Where the chains of one writer stand, each at the last event that it took.

    A head is a fact that no other writer can change, so one that was overtaken holds nothing wrong:
    it finds that its chain went on without it, and begins where the ledger has kept a head.
    """

    def __init__(self) -> None:
        self._known: dict[Chain, Reached] = {}
        self._lost: set[Chain] = set()

    def remember(self, learned: Learned) -> None:
        """Go on from `learned`. Only what is committed may be remembered."""
        self._known |= learned.reached
        self._lost |= learned.lost
        for one in learned.lost:
            self._known.pop(one, None)

    def follow(self, tx: WriteSession, chains: Mapping[Chain, Sequence[Event]]) -> Learned:
        """Link events that `tx` has stored just now, each under its own name alone, and keep every
        head that is due."""
        learned = Learned()
        walked = 0
        for one, events in chains.items():
            if one[1] in UNCHAINED_TOPICS or one in self._lost:
                continue
            first = events[0].sequence
            if any(e.sequence != n for n, e in enumerate(events, first)):
                learned.lost.add(one)
                continue
            known = self._known.get(one)
            if known is None or known.sequence != first - 1:
                kept = _kept_before(tx, one, first)
                far = first - 1 - kept.sequence
                if walked + far > chain.STEP:
                    # Others wait for this transaction; `advance` brings the chain nearer.
                    continue
                walked += far
                known = _gone_on(tx, one, kept, first - 1)
            if known is None:
                learned.lost.add(one)
            else:
                learned.reached[one] = _linked(tx, one, known, events)
        return learned

    def catch_up(self, tx: ReadSession, lasts: Mapping[Chain, int]) -> Learned:
        """Go on to the last sequences of chains by what the ledger holds of them: for events of
        which not all are stored as they came."""
        learned = Learned()
        for one, last in lasts.items():
            known = self._known.get(one)
            if known is None or last <= known.sequence:
                continue
            reached = _gone_on(tx, one, known, last)
            if reached is None:
                learned.lost.add(one)
            else:
                learned.reached[one] = reached
        return learned


def _linked(tx: WriteSession, one: Chain, known: Reached, events: Sequence[Event]) -> Reached:
    """`known` and `events`, which come right behind it; heads that are due are kept."""
    head, kept, done = known.head, known.kept, 0
    last = events[-1].sequence
    while (due := max(kept + chain.STEP, known.sequence + done + 1)) <= last:
        upto = due - known.sequence
        head, done, kept = link_events(head, events[done:upto]), upto, due
        chain.keep(tx, *one, kept, head)
    return Reached(last, link_events(head, events[done:]), kept)


def link_events(head: bytes, events: Sequence[Event]) -> bytes:
    """The head behind `events` of one chain, which come one after another behind `head`."""
    for e in events:
        # Whatever zone a source writes, a chain is made of moments in UTC.
        time = e.time if e.time.tzinfo is UTC else e.time.astimezone(UTC)
        head = link_event(
            head, e.source, e.topic, e.sequence, e.id, e.type, e.subject, time, e.data
        )
    return head


def _gone_on(read: ReadSession, one: Chain, known: Reached, upto: int) -> Reached | None:
    """`known` taken on by what the ledger holds; null if something is missing there."""
    try:
        head = chain.walk(read, *one, (known.sequence, known.head), upto)
    except ChainBroken:
        return None
    return Reached(upto, head, known.kept)


_HEADS = tables.chain_heads.c
_KEPT_BEFORE = (
    select(_HEADS.sequence, _HEADS.head)
    .where(
        _HEADS.source == bindparam("source"),
        _HEADS.topic == bindparam("topic"),
        _HEADS.sequence < bindparam("first"),
    )
    .order_by(_HEADS.sequence.desc())
    .limit(1)
)


def _kept_before(tx: WriteSession, one: Chain, first: int) -> Reached:
    """The last head of a chain that the ledger keeps before the sequence `first`."""
    source, topic = one
    for sequence, head in tx.ask(_KEPT_BEFORE, {"source": source, "topic": topic, "first": first}):
        return Reached(sequence, bytes.fromhex(head), sequence)
    return Reached(0, START, 0)
