"""The ledger writer on the real broker: once and only once, whatever comes between."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.structs import TopicPartition

from ledger.clock import SystemClock
from ledger.events import Event
from ledger.sql.session import open_ledger
from ledger.sql.writer import Batch, LedgerWriter
from streams.errors import StreamStopped
from streams.kafka.access import KafkaAccess, client_options
from streams.kafka.deadletter import filed
from streams.kafka.writer import WriterOptions
from tests.streams.topics_house import Books, Running, produce, produce_raw, until, writing
from tests.support.events import (
    Scribe,
    after,
    closed,
    key_issued,
    life,
    mark,
    price,
)

SOURCE = "/gateway/test/0193a0000000700080000000000000a1"


def a_day(count: int = 60, source: str = SOURCE, first: str = "r") -> list[Event]:
    """The events of a gateway: keys, prices, `count` requests of three keys, marks, its end."""
    scribe = Scribe(source)
    drafts = [mark(source, 1, after(0), {})]
    for number in range(count):
        drafts += life(f"{first}{number}", after(number), f"key-{number % 3}")
    drafts.append(closed(source, after(count), {"sources": 1}))
    return scribe.write_all(*drafts)


def a_registry() -> list[Event]:
    scribe = Scribe("/cli/test/1")
    return scribe.write_all(
        key_issued("key-0"),
        price("p1", {"uncached_in": "2"}),
        price("p2", {"other_out": "3"}, base=1),
    )


@pytest.fixture
def books(tmp_path: Path) -> Books:
    return Books(tmp_path / "ledger.db")


def told_directly(folder: Path, *runs: list[Event]) -> dict[str, str]:
    """The projections' hashes of a ledger that got the same events without any broker."""
    books = Books(folder / "direct.db")
    write_batches(books, *runs)
    return books.hashes()


def write_batches(books: Books, *runs: list[Event]) -> None:
    with open_ledger(books.target) as ledger:
        writer = LedgerWriter(ledger, SystemClock())
        at = 0
        for events in runs:
            writer.write(Batch("direct", at, at + len(events), events))
            at += len(events)


async def test_every_topic_is_taken_once(kafka: KafkaAccess, books: Books, tmp_path: Path) -> None:
    events, registry = a_day(), a_registry()
    await produce(kafka, registry)
    async with writing(kafka, books.target) as running:
        await produce(kafka, events[:100])
        await produce(kafka, events)
        await books.until_taken(events + registry)
    assert books.hashes() == told_directly(tmp_path, registry, events)
    assert running.said == [] and running.stalls == []
    assert sum(books.positions().values()) == len(registry) + 100 + len(events)


async def test_postgres_and_sqlite_say_the_same(
    kafka: KafkaAccess, postgres_url: str, tmp_path: Path
) -> None:
    books = Books(postgres_url)
    events, registry = a_day(), a_registry()
    await produce(kafka, registry + events)
    async with writing(kafka, postgres_url):
        await books.until_taken(events + registry)
    assert books.hashes() == told_directly(tmp_path, registry, events)


async def test_it_goes_on_where_the_ledger_stands(kafka: KafkaAccess, tmp_path: Path) -> None:
    """The group knows nothing: a second ledger begins at the beginning, the first at its place."""
    first, second = Books(tmp_path / "one.db"), Books(tmp_path / "two.db")
    events = a_day(20)
    await produce(kafka, events[:40])
    async with writing(kafka, first.target):
        await first.until_taken(events[:40])
    await produce(kafka, events[40:])
    async with writing(kafka, second.target):
        await second.until_taken(events)
    async with writing(kafka, first.target):
        await first.until_taken(events)
    assert first.hashes() == second.hashes() == told_directly(tmp_path, events)
    assert first.positions() == second.positions()


async def test_an_older_copy_of_the_ledger_reads_again(
    kafka: KafkaAccess, books: Books, tmp_path: Path
) -> None:
    events = a_day(20)
    await produce(kafka, events[:30])
    async with writing(kafka, books.target):
        await books.until_taken(events[:30])
    copy = shutil.copy(books.target, tmp_path / "copy.db")
    await produce(kafka, events[30:])
    async with writing(kafka, books.target):
        await books.until_taken(events)
    shutil.copy(copy, books.target)
    async with writing(kafka, books.target):
        await books.until_taken(events)
    assert books.hashes() == told_directly(tmp_path, events)


async def test_poison_first_last_and_twice_in_a_row(
    kafka: KafkaAccess, books: Books, tmp_path: Path
) -> None:
    events = a_day(20)
    places = [await produce_raw(kafka, "requests", b"not json")]
    await produce(kafka, events[:40])
    places.append(await produce_raw(kafka, "requests", None))
    places.append(await produce_raw(kafka, "requests", b"", headers=[("ce_id", b"\xff")]))
    await produce(kafka, events[40:])
    places.append(await produce_raw(kafka, "requests", b"{}", headers=[("ce_specversion", b"1.0")]))
    async with writing(kafka, books.target) as running:
        await books.until_taken(events)
        await until(lambda: len(books.poison()) == 4, "all poison is set aside")
    assert books.hashes() == told_directly(tmp_path, events)
    topic = kafka.topic("requests")
    assert books.poison() == sorted((f"kafka:{topic}:{part}", at) for part, at in places)
    letters = [one.letter for one in await filed(kafka)]
    assert sorted((one.partition, one.offset) for one in letters) == sorted(places)
    assert {one.topic for one in letters} == {topic} and {one.by for one in letters} == {"writer"}
    by_place = {(one.partition, one.offset): one for one in letters}
    assert [by_place[place].value for place in places] == [b"not json", None, b"", b"{}"]
    assert all("not an event record" in one.reason for one in letters)
    assert by_place[places[2]].headers == [("ce_id", b"\xff")]
    assert running.writer.counts["poison"] == 4


async def test_too_much_poison_stops_it(kafka: KafkaAccess, books: Books) -> None:
    for _ in range(4):
        await produce_raw(kafka, "requests", b"x")
    running = Running(kafka, books.target, WriterOptions(poison_per_minute=3))
    with pytest.raises(StreamStopped, match="4 records within a minute are no events, and 3 are"):
        await running.task
    assert books.positions() == {} and books.poison() == []


async def test_an_event_of_a_newer_version_halts_its_partition_alone(
    kafka: KafkaAccess, books: Books
) -> None:
    [old, newer, later] = (await _one_key(kafka, 3))[:3]
    newer = newer.__class__(
        **{name: getattr(newer, name) for name in newer.__struct_fields__} | {"type": "x.v9"}
    )
    others = Scribe("/gateway/test/2").write_all(mark("/gateway/test/2", 1, after(0), {}))
    await produce(kafka, [old, newer, later])
    await produce(kafka, others)
    async with writing(kafka, books.target) as running:
        await books.until_taken([old, *others])
        await until(lambda: bool(running.said), "it says so")
        assert later.id not in books.ids()
    assert "'x.v9' is not known to this version of Tollbook; upgrade this reader" in running.said[0]
    positions = [at for log, at in books.positions().items() if "requests" in log]
    assert positions == [1]


async def _one_key(kafka: KafkaAccess, count: int) -> list[Event]:
    scribe = Scribe(SOURCE)
    return scribe.write_all(*[life(f"r{number}")[0] for number in range(count)])


class OtherGroup(KafkaAccess, frozen=True):
    """The same topics, read by a writer that believes to be alone: a fenced one that came back."""

    def group(self, role: str) -> str:
        return f"{self.prefix}.other-{role}"


async def test_two_writers_of_one_log_fence_each_other(
    kafka: KafkaAccess, books: Books, tmp_path: Path, seed: int
) -> None:
    other = OtherGroup(**msgspec.structs.asdict(kafka))
    events = a_day(100)
    async with writing(kafka, books.target) as one, writing(other, books.target) as two:
        for run in _runs(events, random.Random(seed)):
            await produce(kafka, run)
        await books.until_taken(events)
    assert books.hashes() == told_directly(tmp_path, events)
    counted = one.writer.counts["inserted"] + two.writer.counts["inserted"]
    assert counted == books.events()


def _runs(events: list[Event], chance: random.Random) -> Iterator[list[Event]]:
    while events:
        count = chance.randint(1, 60)
        yield events[:count]
        events = events[count:]


async def test_a_second_writer_joins_and_leaves(
    kafka: KafkaAccess, books: Books, tmp_path: Path, seed: int
) -> None:
    events, chance = a_day(100), random.Random(seed)
    third = len(events) // 3
    async with writing(kafka, books.target) as stays:
        for run in _runs(events[:third], chance):
            await produce(kafka, run)
        async with writing(kafka, books.target) as guest:
            for run in _runs(events[third : 2 * third], chance):
                await produce(kafka, run)
            await until(
                lambda: (
                    bool(guest.writer.views)
                    and not set(guest.writer.views) & set(stays.writer.views)
                ),
                "they share the partitions",
            )
            more = a_day(10, "/gateway/test/3", "s")
            await produce(kafka, more)
            await books.until_taken(more)
        for run in _runs(events[2 * third :], chance):
            await produce(kafka, run)
        await books.until_taken(events)
    assert books.hashes() == told_directly(tmp_path, events, more)


async def test_records_that_are_gone_stop_it_with_words(
    kafka: KafkaAccess, books: Books, tmp_path: Path
) -> None:
    old, new = a_day(5), a_day(5, "/gateway/test/4", "s")
    await produce(kafka, old)
    await _trim(kafka, "sources")
    await produce(kafka, new)
    running = Running(kafka, books.target)
    with pytest.raises(StreamStopped, match=r"records 0 to 2 are gone from Kafka.*--accept-gaps"):
        await running.task
    async with writing(kafka, books.target, WriterOptions(accept_gaps=True)) as running:
        await books.until_taken(new)
    assert any("going on without them" in line for line in running.said)
    assert books.poison() == [(f"kafka:{kafka.topic('sources')}:0", 0)]


async def test_a_topic_that_was_made_anew_stops_it_with_words(
    kafka: KafkaAccess, books: Books
) -> None:
    with open_ledger(books.target) as ledger:
        LedgerWriter(ledger, SystemClock()).write(Batch(f"kafka:{kafka.topic('requests')}:1", 0, 7))
    running = Running(kafka, books.target)
    with pytest.raises(StreamStopped, match="up to 7, but it ends at 0"):
        await running.task


async def _trim(kafka: KafkaAccess, name: str) -> None:
    """Delete all that the first partition of a topic holds now, as retention does."""
    client = AIOKafkaAdminClient(**client_options(kafka, "test"))
    await client.start()
    try:
        place = TopicPartition(kafka.topic(name), 0)
        await client.delete_records({place: RecordsToDelete(before_offset=-1)})
    finally:
        await client.close()
