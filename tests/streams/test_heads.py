"""What sources claim of their chains: while they live, after a kill, and for the ledger."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from ledger.chain import START as NO_HEAD
from ledger.chain import UNCHAINED_TOPICS, link
from ledger.clock import to_us
from ledger.events import Draft, Event, SourceClosed, SourceMark, payload_of
from ledger.sql import chain, tables
from ledger.sql.chain import heads_at
from ledger.sql.session import open_ledger
from streams.errors import SpoolFailed
from streams.kafka.access import KafkaAccess
from streams.local.runner import CHAIN_SECONDS
from streams.log.heads import heads_of
from streams.log.memory import MemoryJournal
from streams.log.reader import SpoolReader
from streams.log.spool import SpoolWriter, segment_name
from tests.streams.builders import START, FakeClock, accepted, attempted, delivered, finished
from tests.streams.house import House
from tests.streams.relay_house import closings, relay_all, sent

SOURCE = "/gateway/test/aa01"


def chained(events: Sequence[Event]) -> dict[str, str]:
    """The heads behind `events` of one source, one link after the other."""
    heads: dict[str, bytes] = {}
    for event in events:
        if event.topic not in UNCHAINED_TOPICS:
            heads[event.topic] = link(
                heads.get(event.topic, NO_HEAD),
                event.source,
                event.topic,
                event.sequence,
                event.id,
                event.type,
                event.subject,
                to_us(event.time),
                bytes(event.data),
            )
    return {topic: head.hex() for topic, head in heads.items()}


def mark(spool: SpoolWriter, number: int) -> Draft:
    said = SourceMark(last=spool.last(), open=0, heads=spool.heads())
    return Draft(f"{spool.source}/mark/{number}", spool.source, START, said)


def serve(spool: SpoolWriter, count: int, prefix: str = "r") -> None:
    for n in range(count):
        spool.append(accepted(f"{prefix}{n}"), attempted(f"{prefix}{n}"))
        spool.append(delivered(f"{prefix}{n}", 1, 3))
        spool.append(finished(f"{prefix}{n}"))


def read_all(directory: Path) -> list[Event]:
    reader, events, offset = SpoolReader(directory), list[Event](), 0
    while (chunk := reader.read(offset)).next_offset > offset:
        events += chunk.events
        offset = chunk.next_offset
    reader.close()
    return events


@pytest.mark.parametrize("asked", [False, True], ids=["at the end", "again and again"])
def test_a_spool_tells_the_heads_of_what_it_wrote(house: House, asked: bool) -> None:
    spool = house.gateway()
    for n in range(90):
        serve(spool, 1, f"r{n}-")
        if asked:
            spool.heads()
    spool.append(mark(spool, 1))
    events = read_all(spool.directory)
    assert spool.heads() == chained(events)
    assert set(spool.heads()) == {"requests", "sources"}
    said = payload_of(events[-1])
    assert isinstance(said, SourceMark)
    assert said.heads == chained(events[:-1])


def test_heads_are_linked_a_little_at_a_time(house: House) -> None:
    spool = house.gateway()
    serve(spool, 100)
    turns = 1
    while spool.link():
        turns += 1
    assert turns == 5, "300 appends, 64 at a time"
    assert spool.heads() == chained(read_all(spool.directory))


def test_what_was_not_written_is_in_no_chain(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = house.gateway()
    serve(spool, 3)
    before = spool.heads()
    monkeypatch.setattr(spool, "_attempt", lambda data: "no space")
    with pytest.raises(SpoolFailed):
        spool.append(attempted("late"))
    assert spool.heads() == before == chained(read_all(spool.directory))


def test_memory_tells_the_same_heads_as_a_spool(house: House) -> None:
    spool = house.gateway()
    memory = MemoryJournal(SOURCE, clock=FakeClock())
    for n in range(5):
        for journal in (spool, memory):
            journal.append(accepted(f"r{n}"), attempted(f"r{n}"))
    assert spool.heads() == memory.heads() == chained(memory.events())


def test_heads_of_a_dead_spool_are_found_from_its_last_mark_on(house: House) -> None:
    spool = house.gateway(segment_bytes=900)
    serve(spool, 8)
    spool.append(mark(spool, 1))
    serve(spool, 8, "s")
    heads, last, events = spool.heads(), spool.last(), read_all(spool.directory)
    assert heads == chained(events)
    reader = SpoolReader(spool.directory)
    assert heads_of(reader, spool.source, last) == heads
    marked = next(n for n, e in enumerate(events) if e.topic == "sources")
    segments = reader.segments()
    holder = max(s.start for s in segments if _holds(spool.directory, s.start, events[marked].id))
    for segment in segments:
        if segment.start < holder:
            (spool.directory / segment_name(segment.start)).unlink()
    assert heads_of(SpoolReader(spool.directory), spool.source, last) == heads
    (spool.directory / segment_name(holder)).unlink()
    assert heads_of(SpoolReader(spool.directory), spool.source, last) is None


def test_no_head_is_claimed_of_what_the_files_do_not_reach(house: House) -> None:
    spool = house.gateway()
    serve(spool, 2)
    spool.append(mark(spool, 1))
    last = spool.last() | {"requests": 99}
    heads = heads_of(SpoolReader(spool.directory), spool.source, last)
    assert heads == {"sources": spool.heads()["sources"]}


def test_a_source_that_died_is_closed_with_the_heads_of_its_files(house: House) -> None:
    spool = house.gateway()
    spool.append(mark(spool, 1))
    serve(spool, 4)
    spool.append(accepted("open"))
    heads, last, source = spool.heads(), spool.last(), spool.source
    house.die(spool)
    house.catch_up()
    said = [payload_of(e) for e in _stored(house) if e.type == SourceClosed.TYPE]
    closings = {p.closed_source: p for p in said if isinstance(p, SourceClosed)}
    assert closings[source].heads == heads
    own = next(p for p in closings.values() if p.by == "itself")
    assert own.heads is not None, "the runner claims its own heads too"
    with open_ledger(house.layout.ledger, readonly=True) as ledger, ledger.read() as read:
        made = heads_at(read, {source: last, own.closed_source: own.last})
    assert {topic: head for (of, topic), (_, head) in made.items() if of == source} == heads
    mine = {topic: head for (of, topic), (_, head) in made.items() if of != source}
    assert mine == own.heads


def _holds(directory: Path, start: int, event_id: str) -> bool:
    return event_id.encode() in (directory / segment_name(start)).read_bytes()


def _stored(house: House) -> list[Event]:
    found: list[Event] = []
    for directory in house.layout.spool_directories():
        found += read_all(directory)
    return found


def test_the_runner_keeps_heads_as_the_ledger_grows(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain, "STEP", 7)
    spool, runner = house.gateway(), house.runner()
    serve(spool, 7)
    for _ in range(12):
        house.clock.advance(CHAIN_SECONDS)
        runner.step()
    runner.close()
    with open_ledger(house.layout.ledger, readonly=True) as ledger, ledger.read() as read:
        rows = read.rows(tables.chain_heads.select().order_by(tables.chain_heads.c.sequence))
    assert [(row.topic, row.sequence) for row in rows] == [("requests", n) for n in (7, 14, 21)]
    assert rows[-1].head == spool.heads()["requests"]


async def test_a_relay_closes_a_dead_source_with_the_heads_of_its_files(
    house: House, kafka: KafkaAccess
) -> None:
    spool = house.gateway(segment_bytes=900)
    serve(spool, 5)
    spool.append(mark(spool, 1))
    serve(spool, 5, "s")
    heads, source = spool.heads(), spool.source
    house.die(spool)
    await relay_all(house, kafka)
    events = await sent(kafka)
    told = closings(events)
    assert told[source].heads == heads
    own = told[source].by
    closing = next(e for e in events if e.source == own and e.id == f"{own}/closed")
    before = [e for e in events if e.source == own and e is not closing]
    assert told[own].heads == chained(sorted(before, key=lambda e: (e.topic, e.sequence)))
