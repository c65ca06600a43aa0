"""Reads a whole ledger as the events it was made of, to tell another one the same. Only reads.

The order is fixed, so that whoever carries can go on where it stopped: the registry in its one
order, then source by source from the oldest incarnation on, each topic in its sequence.
"""

import re
from collections.abc import Iterator

import msgspec
from sqlalchemy import Executable, func, select, tuple_

from ledger.events import Event
from ledger.sql import tables
from ledger.sql.intake import REGISTRY
from ledger.sql.rows import EVENT_COLUMNS, event_of
from ledger.sql.session import ReadSession

RUN = 5000
"""Events held in memory at a time."""

Place = tuple[str, str, int]
"""Source, topic and sequence of an event."""


def registry_after(read: ReadSession, place: int) -> Iterator[list[Event]]:
    """The events of the registry behind `place`, in order; the first stands at `place` + 1."""
    column = tables.events.c.place
    yield from _runs(
        read, select(*EVENT_COLUMNS).where(column.is_not(None), column > place).order_by(column)
    )


def events_after(read: ReadSession, place: Place | None) -> Iterator[list[Event]]:
    """Every other event behind `place`, null for all of them. A run is of one source."""
    table = tables.events
    kept = table.c.topic != REGISTRY
    sources = sorted(
        (row[0] for row in read.rows(select(table.c.source).where(kept).distinct())), key=_age
    )
    for source in sources:
        wanted = select(*EVENT_COLUMNS).where(kept, table.c.source == source)
        if place is not None and _age(source) < _age(place[0]):
            continue
        if place is not None and source == place[0]:
            wanted = wanted.where(tuple_(table.c.topic, table.c.sequence) > place[1:])
        yield from _runs(read, wanted.order_by(table.c.topic, table.c.sequence))


def noted_events(read: ReadSession) -> list[Event]:
    """What came and did not count: repetitions under another name, and what was set aside."""
    found = []
    renamed, events = tables.duplicates, tables.events
    rows = read.rows(
        select(renamed.c.source, renamed.c.topic, renamed.c.sequence, *EVENT_COLUMNS)
        .join(events, events.c.id == renamed.c.id)
        .order_by(renamed.c.source, renamed.c.topic, renamed.c.sequence)
    )
    for source, topic, sequence, *row in rows:
        event = event_of(row)
        found.append(msgspec.structs.replace(event, source=source, topic=topic, sequence=sequence))
    aside = tables.conflicts
    for (record,) in read.rows(
        select(aside.c.record).order_by(aside.c.source, aside.c.topic, aside.c.sequence)
    ):
        found.append(_recorded(record))
    return found


def _recorded(record: str) -> Event:
    """The event in a row of `conflicts`. One whose data is no text cannot go as it was: its data
    becomes one JSON string with the same record of it, which counts as little as before."""
    try:
        return msgspec.json.decode(record, type=Event)
    except msgspec.DecodeError:
        # Bytes that are no text were written as \xNN, which is no JSON.
        spelt = _ESCAPES.sub(lambda found: "\\\\" + found[0][1:].lstrip("\\"), record)
        event = msgspec.json.decode(spelt, type=Event)
        text = msgspec.json.encode(bytes(event.data).decode())
        return msgspec.structs.replace(event, data=msgspec.Raw(text))


_ESCAPES = re.compile(r"\\\\|\\x")
"""A backslash that is escaped, and one that begins a byte."""


def counted(read: ReadSession) -> tuple[int, int]:
    """How many events there are, and how many requests have no end."""
    open_ = tables.requests.c.state == "open"
    return (
        int(read.value(select(func.count()).select_from(tables.events))),
        int(read.value(select(func.count()).select_from(tables.requests).where(open_))),
    )


def _age(source: str) -> tuple[str, str]:
    """Sorts sources by their incarnations, which sort by the time of their start."""
    return source.rpartition("/")[2], source


def _runs(read: ReadSession, statement: Executable) -> Iterator[list[Event]]:
    for part in read.stream(statement, size=RUN):
        yield [event_of(row) for row in part]
