"""Decides which events are new to the ledger, and stores those. It applies nothing to projections.

An event is known by its name (source, topic, sequence) and by its id. Known and the same fact: a
repetition, skipped. Known and another fact: set aside in `conflicts` with a reason, never skipped
silently. A fact that comes again under another name is skipped too, but its name is noted in
`duplicates`, so that the sequence of its source has no gap.
"""

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Any

import msgspec
from sqlalchemy import Select, Table, bindparam, insert, select
from sqlalchemy.exc import IntegrityError

from ledger.events import Event, same_fact
from ledger.sql import tables
from ledger.sql.projections import LOOKUP_MAX, Fact, Reach, runs
from ledger.sql.rows import EVENT_COLUMNS, event_cells, event_of
from ledger.sql.session import ReadSession, WriteSession
from ledger.sql.upsert import insert_missing

Name = tuple[str, str, int]
"""Source, topic and sequence: where an event stands, once and for all."""

REGISTRY = "registry"

_EVENT = insert(tables.events)


class Aside(msgspec.Struct, frozen=True):
    """An event that may not count, and why."""

    event: Event
    reason: str


class Taken(msgspec.Struct):
    """What became of the events of a batch. `renamed` are facts that came under another name than
    they are stored under. `chains` are the new ones by source and topic, where all of the batch are
    new and nothing else is known of their names; else it is empty."""

    new: list[Fact] = []
    duplicates: int = 0
    conflicts: int = 0
    reaches: dict[tuple[str, str], Reach] = {}
    renamed: list[Event] = []
    chains: dict[tuple[str, str], list[Event]] = {}

    def reach(self, name: Name, *, fresh: bool) -> None:
        """Note that `name` was seen; `fresh` if its sequence was not known before."""
        source, topic, sequence = name
        known = self.reaches.setdefault((source, topic), Reach(0, 0))
        known.last = max(known.last, sequence)
        known.received += fresh


def name_of(event: Event) -> Name:
    """Where `event` stands."""
    return event.source, event.topic, event.sequence


def take(
    tx: WriteSession, facts: Sequence[Fact], broken: Sequence[Aside], noticed_us: int
) -> Taken:
    """Store the new ones of `facts`, in order, and set `broken` aside."""
    chains = _chains(fact.event for fact in facts)
    registry = any(topic == REGISTRY for _, topic in chains)
    if not broken and not registry and not _near_known(tx, chains):
        taken = _take_all(tx, facts, chains)
        if taken is not None:
            return taken
    return _Careful(tx, facts, broken, noticed_us).run()


Chains = dict[tuple[str, str], list[Event]]
"""Some events by their source and topic, in their order."""


def _chains(events: Iterable[Event]) -> Chains:
    found: Chains = {}
    for event in events:
        found.setdefault((event.source, event.topic), []).append(event)
    return found


def _span(events: Sequence[Event]) -> tuple[int, int]:
    """The lowest and the highest sequence."""
    sequences = [event.sequence for event in events]
    return min(sequences), max(sequences)


def _near_known(tx: WriteSession, chains: Chains) -> bool:
    """True if one of `chains` may have an event noted outside the table `events`."""
    for (source, topic), events in chains.items():
        low, high = _span(events)
        span = {"source": source, "topic": topic, "low": low, "high": high}
        if any(tx.ask(statement, span) for statement in _NEAR):
            return True
    return False


_NEAR = [
    select(table.c.sequence)
    .where(
        table.c.source == bindparam("source"),
        table.c.topic == bindparam("topic"),
        table.c.sequence.between(bindparam("low"), bindparam("high")),
    )
    .limit(1)
    for table in (tables.duplicates, tables.conflicts)
]


def _take_all(tx: WriteSession, facts: Sequence[Fact], chains: Chains) -> Taken | None:
    """Store all of `facts`, or null and nothing stored if any of them is known already."""
    if facts:
        try:
            with tx.savepoint():
                tx.insert_cells(_EVENT, [event_cells(fact.event, fact.data) for fact in facts])
        except IntegrityError:
            return None
    reaches = {name: Reach(_span(events)[1], len(events)) for name, events in chains.items()}
    return Taken(new=list(facts), reaches=reaches, chains=chains)


class _Careful:
    """Takes events one by one, after looking up what the ledger knows of each."""

    def __init__(
        self, tx: WriteSession, facts: Sequence[Fact], broken: Sequence[Aside], noticed_us: int
    ) -> None:
        self._tx = tx
        self._facts = facts
        self._broken = broken
        self._noticed_us = noticed_us
        self._taken = Taken()
        events = [*(f.event for f in facts), *(a.event for a in broken)]
        self._by_name, self._by_id = _stored(tx, events)
        self._used = _noted(tx, tables.duplicates, events)
        self._aside = _noted(tx, tables.conflicts, events)
        self._renamed: list[Event] = []

    def run(self) -> Taken:
        aside = [a for a in (self._judge(fact) for fact in self._facts) if a is not None]
        aside.extend(self._broken)
        for one in aside:
            self._set_aside(one)
        if self._renamed:
            rows = [dict(zip(_NAME, name_of(e), strict=True), id=e.id) for e in self._renamed]
            self._tx.execute(insert(tables.duplicates), rows)
        self._taken.renamed = self._renamed
        self._store()
        return self._taken

    def _judge(self, fact: Fact) -> Aside | None:
        event = fact.event
        name = name_of(event)
        here, twin = self._by_name.get(name), self._by_id.get(event.id)
        if here is not None:
            if same_fact(here, event):
                self._taken.duplicates += 1
                return None
            return Aside(event, f"{_where(name)} already holds another fact, {here.id}")
        if twin is not None and not same_fact(twin, event):
            return Aside(event, f"{event.id} is already told otherwise by {_where(name_of(twin))}")
        noted = self._used.get(name) or self._aside.get(name)
        if noted is not None and (twin is None or noted != event.id):
            return Aside(event, f"{_where(name)} was already used by {noted}")
        if twin is None:
            self._by_name[name] = self._by_id[event.id] = event
            self._taken.new.append(fact)
            self._taken.reach(name, fresh=True)
            return None
        self._taken.duplicates += 1
        if noted is None:
            self._used[name] = event.id
            self._renamed.append(event)
        self._taken.reach(name, fresh=noted is None)
        return None

    def _set_aside(self, one: Aside) -> None:
        event = one.event
        name = name_of(event)
        row = {
            **dict(zip(_NAME, name, strict=True)),
            "digest": _digest(event),
            "id": event.id,
            "reason": one.reason,
            "record": msgspec.json.encode(event).decode(errors="backslashreplace"),
            "noticed_us": self._noticed_us,
        }
        statement = insert_missing(self._tx.dialect, tables.conflicts)
        self._taken.conflicts += self._tx.execute(statement, row)
        known = name in self._by_name or name in self._used or name in self._aside
        self._aside.setdefault(name, event.id)
        self._taken.reach(name, fresh=not known)

    def _store(self) -> None:
        place = 0
        if any(fact.event.topic == REGISTRY for fact in self._taken.new):
            place = last_place(self._tx)
        rows = []
        for fact in self._taken.new:
            placed = fact.event.topic == REGISTRY
            place += placed
            rows.append(event_cells(fact.event, fact.data, place if placed else None))
        if rows:
            self._tx.insert_cells(_EVENT, rows)


_NAME = ("source", "topic", "sequence")


def last_place(read: ReadSession) -> int:
    """The place of the last registry event that the ledger holds; 0 if it holds none."""
    return int(read.value(_LAST_PLACE) or 0)


_LAST_PLACE = (
    select(tables.events.c.place)
    .where(tables.events.c.place.is_not(None))
    .order_by(tables.events.c.place.desc())
    .limit(1)
)


def _stored(
    read: ReadSession, events: Iterable[Event]
) -> tuple[dict[Name, Event], dict[str, Event]]:
    """What `events` holds under the same names, and under the same ids."""
    by_name: dict[Name, Event] = {}
    by_id: dict[str, Event] = {}
    every = list(events)
    base = select(*EVENT_COLUMNS)
    with_id = base.where(tables.events.c.id.in_(bindparam("ids", expanding=True)))
    for ids in runs([event.id for event in every], LOOKUP_MAX):
        for row in read.rows(with_id, {"ids": ids}):
            event = event_of(row)
            by_id[event.id] = event
    for statement, parameters in _by_name(base, tables.events, every):
        for row in read.rows(statement, parameters):
            event = event_of(row)
            by_name[name_of(event)] = event
    return by_name, by_id


def _by_name(
    columns: Select[*tuple[Any, ...]], table: Table, events: Iterable[Event]
) -> Iterator[tuple[Select[*tuple[Any, ...]], dict[str, object]]]:
    """Statements that read `columns` of `table` under the names of `events`."""
    statement = columns.where(
        table.c.source == bindparam("source"),
        table.c.topic == bindparam("topic"),
        table.c.sequence.in_(bindparam("sequences", expanding=True)),
    )
    for (source, topic), found in _chains(events).items():
        for run in runs((event.sequence for event in found), LOOKUP_MAX):
            yield statement, {"source": source, "topic": topic, "sequences": run}


def _noted(read: ReadSession, table: Table, events: Iterable[Event]) -> dict[Name, str]:
    """The ids that `table` holds under the names of `events`."""
    columns = select(table.c.source, table.c.topic, table.c.sequence, table.c.id)
    return {
        (source, topic, sequence): event_id
        for statement, parameters in _by_name(columns, table, events)
        for source, topic, sequence, event_id in read.rows(statement, parameters)
    }


def _where(name: Name) -> str:
    source, topic, sequence = name
    return f"{source}:{sequence} of {topic}"


def _digest(event: Event) -> str:
    """One value for what `event` says, so that what is set aside is set aside once."""
    said = (event.id, event.type, event.subject, event.time)
    return sha256(msgspec.json.encode(said) + bytes(event.data)).hexdigest()
