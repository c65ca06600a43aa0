"""Holds every chain against all that was ever said of it: by its source, and by closed months.

For the audit. Each chain is made anew from its first event; what was kept on the way is not
believed but compared too.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import msgspec
from sqlalchemy import Select, select

from ledger.chain import START, UNCHAINED_TOPICS, root_of
from ledger.errors import ChainBroken, EventError
from ledger.events import SourceClosed, SourceMark, payload_of
from ledger.folds.money import Period
from ledger.sql import tables
from ledger.sql.chain import Heads, links
from ledger.sql.replay import load_book
from ledger.sql.rows import EVENT_COLUMNS, event_of
from ledger.sql.session import ReadSession

Chain = tuple[str, str]
"""A source and a topic."""

LookedAt = Callable[[int], None]
"""Told how many more events were linked."""


class _Claim(msgspec.Struct, frozen=True, order=True):
    """Somebody said that a chain has this head at `sequence`; `who` in words."""

    sequence: int
    who: str
    head: str


def parted(read: ReadSession, looked_at: LookedAt) -> Iterator[str]:
    """What of the chains is not as it was said, in words."""
    periods = load_book(read).periods
    closings = _closings(read)
    made: list[Heads] = [{} for _ in periods]
    for source, chains in _sources(read).items():
        claims = _marks(read, source) if SourceMark.TOPIC in chains else {}
        for topic, last in sorted(chains.items()):
            chain = source, topic
            told = [*claims.get(topic, []), *closings.get(chain, []), *_kept(read, chain)]
            cuts = [period.cut.get(source, {}).get(topic, 0) for period in periods]
            yield from _compare(read, chain, last, sorted(told), cuts, made, looked_at)
    for period, heads in zip(periods, made, strict=True):
        yield from _root(period, heads)


def _compare(
    read: ReadSession,
    chain: Chain,
    last: int,
    claims: Sequence[_Claim],
    cuts: Sequence[int],
    made: Sequence[Heads],
    looked_at: LookedAt,
) -> Iterator[str]:
    """Make one chain up to `last` and compare it with `claims`, which are in its order. Its heads
    at `cuts` go into `made`."""
    at_cut: defaultdict[int, list[Heads]] = defaultdict(list)
    for sequence, heads in zip(cuts, made, strict=True):
        at_cut[sequence].append(heads)
    waiting = list(reversed(claims))
    head, parts = START, False
    try:
        for run in links(read, *chain, 0, last):
            for one in run:
                head = one.after(head, *chain)
                while waiting and waiting[-1].sequence <= one.sequence:
                    claim = waiting.pop()
                    if not parts and claim.sequence == one.sequence and claim.head != head.hex():
                        # From the first difference on every head is another one.
                        parts = True
                        yield _words(chain, claim, head.hex())
                for heads in at_cut.get(one.sequence, ()):
                    heads[chain] = one.sequence, head.hex()
            looked_at(len(run))
    except ChainBroken:
        # The check of completeness names what is missing.
        return


def _words(chain: Chain, claim: _Claim, made: str) -> str:
    source, topic = chain
    return (
        f"{claim.who} {claim.head} as the head of {topic} of {source} at {claim.sequence}, and "
        f"the ledger's events up to there make {made}: one of them is not as it was written"
    )


def _root(period: Period, heads: Heads) -> Iterator[str]:
    wanted = {
        (source, topic): sequence
        for source, topics in period.cut.items()
        for topic, sequence in topics.items()
        if sequence > 0 and topic not in UNCHAINED_TOPICS
    }
    missing = sorted(wanted.keys() - heads.keys())
    if missing:
        source, topic = missing[0]
        yield (
            f"{period.month} was closed with {topic} of {source} up to {wanted[source, topic]}, "
            f"which the ledger no longer has whole; its root {period.root} cannot be made anew"
        )
    elif (root := root_of(heads)) != period.root:
        yield f"{period.month} was closed with the root {period.root}, and its events make {root}"


def _sources(read: ReadSession) -> dict[str, dict[str, int]]:
    """How far each chain is known, by source and topic."""
    table = tables.source_topics
    found: dict[str, dict[str, int]] = {}
    wanted = select(table.c.source, table.c.topic, table.c.last_sequence)
    for source, topic, last in read.rows(wanted.order_by(table.c.source)):
        if topic not in UNCHAINED_TOPICS:
            found.setdefault(source, {})[topic] = last
    return found


def _closings(read: ReadSession) -> dict[Chain, list[_Claim]]:
    """What was said of chains by whoever closed their source."""
    events = tables.events
    wanted = select(*EVENT_COLUMNS).where(
        events.c.topic == SourceClosed.TOPIC, events.c.type == SourceClosed.TYPE
    )
    found: defaultdict[Chain, list[_Claim]] = defaultdict(list)
    for said in _said(read, wanted):
        if isinstance(said, SourceClosed):
            for topic, claim in _claims(said, f"{said.by} closed it with"):
                found[said.closed_source, topic].append(claim)
    return found


def _marks(read: ReadSession, source: str) -> dict[str, list[_Claim]]:
    """What the marks of `source` say of its chains, by topic."""
    events = tables.events
    wanted = select(*EVENT_COLUMNS).where(
        events.c.source == source,
        events.c.topic == SourceMark.TOPIC,
        events.c.type == SourceMark.TYPE,
    )
    found: defaultdict[str, list[_Claim]] = defaultdict(list)
    for said in _said(read, wanted):
        if isinstance(said, SourceMark):
            for topic, claim in _claims(said, f"{source} told"):
                found[topic].append(claim)
    return found


def _said(
    read: ReadSession, wanted: Select[*tuple[object, ...]]
) -> Iterator[SourceMark | SourceClosed]:
    for part in read.stream(wanted):
        for row in part:
            try:
                said = payload_of(event_of(row))
            except EventError:
                continue
            if isinstance(said, SourceMark | SourceClosed):
                yield said


def _claims(said: SourceMark | SourceClosed, who: str) -> Iterator[tuple[str, _Claim]]:
    for topic, head in (said.heads or {}).items():
        yield topic, _Claim(said.last.get(topic, 0), who, head)


def _kept(read: ReadSession, chain: Chain) -> list[_Claim]:
    """The heads of `chain` that the ledger itself has kept."""
    table = tables.chain_heads
    wanted = select(table.c.sequence, table.c.head).where(
        table.c.source == chain[0], table.c.topic == chain[1]
    )
    return [_Claim(sequence, "this ledger once kept", head) for sequence, head in read.rows(wanted)]
