"""`tollbook worker` on the real broker: whatever is killed, sent twice or broken, the values of the
derived topics are those of the distinct events."""

import asyncio
import random
import signal
from pathlib import Path

import msgspec
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.structs import OffsetAndMetadata

from ledger.clock import SystemClock
from ledger.events import BackendObserved, Draft, Event, KeyIssued
from ledger.folds.book_entries import book_of
from ledger.folds.routing import view_of
from streams.errors import StreamStopped
from streams.kafka.access import KafkaAccess, consumer_options, producer_options
from streams.kafka.derived import FOLDS, Derived
from streams.kafka.letters import letter_of
from streams.kafka.read import Read, latest_values, read_to_end
from streams.kafka.records import record_of
from tests.streams.topics_house import produce, produce_raw
from tests.streams.worker_house import (
    expected,
    totals,
    usages,
    wait_for,
    worker_process,
    working,
)
from tests.support import events
from tests.support.events import Scribe
from tests.support.processes import wait_until

USAGE, ROUTING, REGISTRY = FOLDS


class Load:
    """Whole lives of requests of a few keys, by one gateway, and all that was ever sent."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.scribe = Scribe()
        self.sent: list[Event] = []
        self._number = 0

    def requests(self, count: int) -> list[Event]:
        drafts: list[Draft] = []
        for _ in range(count):
            self._number += 1
            out = self.dice.randrange(100)
            usage = events.tokens(out=out, uncached=self.dice.choice([None, out]))
            key = f"key-{self.dice.randrange(5)}"
            life = events.life(f"r{self._number}", key_id=key, usage=usage)
            drafts += [draft for draft in life if draft.payload.TOPIC == "requests"]
        made = self.scribe.write_all(*drafts)
        self.sent += made
        return made

    def some_again(self) -> list[Event]:
        """The last records once more, as a relay sends a window whose acks it did not see."""
        return self.sent[-self.dice.randint(1, 60) :]


def test_kills_and_repetitions_leave_exact_totals(
    kafka: KafkaAccess, tmp_path: Path, seed: int
) -> None:
    load = Load(seed)
    for number in range(3):
        worker = worker_process(kafka, tmp_path)
        try:
            asyncio.run(produce(kafka, load.requests(100)))
            asyncio.run(produce(kafka, load.some_again()))
            if number:
                wait_until("some of it is there", lambda: usages(kafka))
            worker.kill()
        finally:
            worker.stop()
    with working(kafka) as last:
        wait_for(kafka, load.sent)
        assert last.terminate() == 0
    assert all(not usage.open and not usage.doubtful for usage in usages(kafka).values())


def test_a_second_worker_joins_and_leaves(kafka: KafkaAccess, seed: int) -> None:
    load = Load(seed)
    with working(kafka, "first") as first:
        asyncio.run(produce(kafka, load.requests(50)))
        with working(kafka, "second") as second:
            asyncio.run(produce(kafka, load.requests(50)))
            wait_for(kafka, load.sent)
            assert first.terminate() == 0
            asyncio.run(produce(kafka, load.requests(50)))
            wait_for(kafka, load.sent)
            with working(kafka, "third"):
                second.kill()
                asyncio.run(produce(kafka, load.requests(50)))
                wait_for(kafka, load.sent)


def test_a_worker_that_stood_still_writes_nothing_old(kafka: KafkaAccess, seed: int) -> None:
    load = Load(seed)
    with working(kafka, "first") as first:
        asyncio.run(produce(kafka, load.requests(50)))
        wait_for(kafka, load.sent)
        first.signal(signal.SIGSTOP)
        try:
            with working(kafka, "second"):
                asyncio.run(produce(kafka, load.requests(50)))
                wait_for(kafka, load.sent)
                first.signal(signal.SIGCONT)
                wait_until("the first begins again", lambda: "stood still" in first.output())
                asyncio.run(produce(kafka, load.requests(50)))
                wait_for(kafka, load.sent)
        finally:
            first.signal(signal.SIGCONT)


async def commit(access: KafkaAccess, place: str) -> None:
    """Have the worker's group say that it is at the `beginning` or at the `end` of requests."""
    options = consumer_options(access, "test")
    consumer = AIOKafkaConsumer(**options, group_id=access.group("worker"))
    await consumer.start()
    try:
        partitions = [TopicPartition(access.topic("requests"), n) for n in range(access.partitions)]
        consumer.assign(partitions)
        find = consumer.beginning_offsets if place == "beginning" else consumer.end_offsets
        offsets = await find(partitions)
        await consumer.commit({p: OffsetAndMetadata(offsets[p], "") for p in partitions})
    finally:
        await consumer.stop()


def test_what_the_group_has_committed_does_not_matter(kafka: KafkaAccess, seed: int) -> None:
    load = Load(seed)
    asyncio.run(produce(kafka, load.requests(50)))
    asyncio.run(commit(kafka, "end"))
    with working(kafka):
        wait_for(kafka, load.sent)
    asyncio.run(commit(kafka, "beginning"))
    with working(kafka):
        asyncio.run(produce(kafka, load.requests(20)))
        wait_for(kafka, load.sent)


def test_poison_first_last_and_twice_goes_aside_and_counts_once_mended(
    kafka: KafkaAccess, seed: int
) -> None:
    load = Load(seed)
    scribe = Scribe("/gateway/other/0193a0000000700080000000000000b1")
    lost = scribe.write(events.finished("mended", key_id="key-1"))
    record = record_of(lost)

    async def sent() -> None:
        await produce_raw(kafka, "requests", b"\xff", partition=0)
        for _ in range(2):
            await produce_raw(kafka, "requests", b"{}", record.key, headers=record.headers)
        await produce(kafka, load.requests(30))
        await produce(kafka, [scribe.write(events.finished("later", key_id="key-1"))])
        await produce_raw(kafka, "requests", None, partition=0)

    async def aside() -> list[str]:
        letters = [
            letter_of(read.headers, read.value)
            async for read in read_to_end(kafka, "dead-letters", "test")
        ]
        return [letter.reason for letter in letters if letter is not None]

    asyncio.run(sent())
    with working(kafka):
        wait_until("four letters", lambda: len(asyncio.run(aside())) == 4)
        usage = wait_until("key-1", lambda: usages(kafka).get("key-1"))
        assert usage.owed == [lost.name]
        asyncio.run(produce(kafka, [lost]))
        asyncio.run(produce(kafka, [lost]))
        later = scribe.write(events.finished("last", key_id="key-1"))
        asyncio.run(produce(kafka, [later]))
        again = Scribe(scribe.source)
        other = again.write_all(
            *(events.finished(name, key_id="key-1") for name in ("mended", "later", "last"))
        )
        wait_for(kafka, [*load.sent, *other])


def test_an_event_of_a_newer_version_stops_it_with_words(
    kafka: KafkaAccess, tmp_path: Path, seed: int
) -> None:
    load = Load(seed)
    newer = record_of(load.scribe.write(events.finished("newer")))
    headers = [(n, b"tollbook.request.split.v9" if n == "ce_type" else v) for n, v in newer.headers]
    asyncio.run(produce(kafka, load.requests(20)))
    asyncio.run(produce_raw(kafka, "requests", newer.value, newer.key, headers=headers))
    asyncio.run(produce(kafka, [load.scribe.write(events.finished("behind", key_id="key-1"))]))
    for _ in range(2):
        worker = worker_process(kafka, tmp_path)
        try:
            assert worker.popen.wait(60) == 1
        finally:
            worker.stop()
        assert "tollbook.request.split.v9" in worker.output()
        assert "upgrade this reader" in worker.output()
        assert "Traceback" not in worker.output()
    # Its own key is folded up to it and no further; of other partitions some may still wait.
    key = newer.key.decode()
    wanted, found = expected(load.sent), totals(usages(kafka))
    assert found[key] == wanted[key]
    assert all(count <= wanted[name][0] for name, (count, _) in found.items())


def test_views_of_backends_and_the_registry_are_folded_too(kafka: KafkaAccess) -> None:
    scribe = Scribe()
    views = [
        BackendObserved(
            backend_id=f"b-{number}",
            gateway="test",
            up=up,
            in_flight=number,
            expires_at=events.after(6),
        )
        for number in range(4)
        for up in (False, True)
    ]
    drafts = [Draft(f"o{n}", said.backend_id, events.START, said) for n, said in enumerate(views)]
    issued = KeyIssued(key_id="k", base=0, version=1, hash="h")
    stale = KeyIssued(key_id="k", base=0, version=1, hash="other")
    drafts += [Draft(f"k{n}", "k", events.START, said) for n, said in enumerate((issued, stale))]
    drafts += [events.backend_registered("gpu"), events.backend_changed("gpu", weight=7)]
    asyncio.run(produce(kafka, scribe.write_all(*drafts)))
    with working(kafka):
        states = wait_until(
            "four views",
            lambda: (
                len(found := asyncio.run(latest_values(kafka, "routing-state", "test"))) == 4
                and found
            ),
        )
        entries = wait_until(
            "the key and the backend",
            lambda: (
                len(found := asyncio.run(latest_values(kafka, "registry-state", "test"))) == 2
                and found
            ),
        )
    found = {key.decode(): view_of(value) for key, value in states.items()}
    assert {key: (view.up, view.in_flight) for key, view in found.items()} == {
        f"b-{number}/test": (True, number) for number in range(4)
    }
    book = book_of({key.decode(): value for key, value in entries.items()})
    assert (book.keys["k"].hash, book.keys["k"].version) == ("h", 1)
    assert (book.backends["gpu"].weight, book.backends["gpu"].version) == (7, 2)


def test_it_works_by_tls_and_sasl_and_names_no_secret(
    secure_kafka: KafkaAccess, tmp_path: Path, seed: int
) -> None:
    load = Load(seed)
    asyncio.run(produce(secure_kafka, load.requests(20)))
    with working(secure_kafka) as worker:
        wait_for(secure_kafka, load.sent)
        assert secure_kafka.password is not None
        assert secure_kafka.password not in worker.output()


async def reads(access: KafkaAccess) -> list[Read]:
    """All records of requests in partition 0."""
    found = [read async for read in read_to_end(access, "requests", "test")]
    return [read for read in found if read.partition == 0]


def derived(access: KafkaAccess) -> Derived:
    return Derived(access, USAGE, clock=SystemClock(), pause_max=1000)


async def test_a_gap_is_named_and_nothing_behind_it_is_taken(kafka: KafkaAccess) -> None:
    log = Load(1).requests(30)
    await produce(kafka, log)
    found = await reads(kafka)
    work = derived(kafka)
    await work.start()
    try:
        assert await work.take(found[2:]) == {0: 0}
        assert await work.take(found[:2]) == {}
        assert work.positions() == {0: 2}
        assert await work.take(found) == {}
        assert await work.take(found) == {}
    finally:
        await work.stop()
    assert work.taken == len(found)


async def test_poison_as_large_as_a_record_may_be_is_set_aside(kafka: KafkaAccess) -> None:
    log = Load(4).requests(5)
    await produce_raw(kafka, "requests", b"x" * 1_048_400, partition=0)
    await produce(kafka, log)
    found = await reads(kafka)
    work = derived(kafka)
    await work.start()
    try:
        assert await work.take(found) == {}
    finally:
        await work.stop()
    assert (work.dead, work.taken) == (1, len(found))
    [letter] = [
        letter_of(read.headers, read.value)
        async for read in read_to_end(kafka, "dead-letters", "test")
    ]
    assert letter is not None and letter.cut and "ce_specversion" in letter.reason


async def test_marks_of_transactions_between_records_are_no_gap(kafka: KafkaAccess) -> None:
    log = Load(3).requests(20)
    options = producer_options(kafka, "test") | {"transactional_id": f"{kafka.prefix}-test"}
    producer = AIOKafkaProducer(**options)
    await producer.start()
    try:
        for event in log:
            record = record_of(event)
            async with producer.transaction():
                await producer.send(
                    kafka.topic("requests"),
                    record.value,
                    key=record.key,
                    headers=record.headers,
                    partition=0,
                )
    finally:
        await producer.stop()
    found = await reads(kafka)
    assert found[-1].offset > len(found)
    work = derived(kafka)
    await work.start()
    try:
        assert await work.take(found[2:]) == {0: 0}
        assert await work.take(found[:3]) == await work.take(found) == {}
    finally:
        await work.stop()
    assert work.taken == len(found) == len(log)


async def test_what_a_fenced_off_worker_wrote_over_is_mended(kafka: KafkaAccess) -> None:
    log = Load(2).requests(60)
    await produce(kafka, log)
    found = await reads(kafka)
    old, new, last = derived(kafka), derived(kafka), derived(kafka)
    for work in (old, new, last):
        await work.start()
    try:
        await old.take(found[:10])
        await new.take(found)
        right = await latest_values(kafka, "usage-by-key", "test")
        await old.take(found[10:20])
        assert await latest_values(kafka, "usage-by-key", "test") != right
        position = (await last.place([0]))[0]
        assert position <= 20
        await last.take(found[position:])
        assert await latest_values(kafka, "usage-by-key", "test") == right
    finally:
        for work in (old, new, last):
            await work.stop()


async def test_a_topic_that_was_made_anew_stops_it_with_words(kafka: KafkaAccess) -> None:
    await produce_raw(
        kafka,
        "usage-by-key",
        b'{"key_id":"key-1"}',
        partition=0,
        headers=[("tollbook-through", b"7")],
    )
    with pytest.raises(StreamStopped, match="made anew"):
        await derived(kafka).place([0])


async def test_a_stranger_in_a_derived_topic_stops_it_with_words(kafka: KafkaAccess) -> None:
    await produce_raw(kafka, "usage-by-key", b"{}", partition=0)
    with pytest.raises(StreamStopped, match="no worker wrote"):
        await derived(kafka).place([0])


def test_what_the_ledger_sets_aside_does_not_count_in_the_live_totals(
    kafka: KafkaAccess, seed: int
) -> None:
    load = Load(seed)
    ended = load.scribe.write(events.finished("stranger", key_id="key-1"))
    asyncio.run(produce(kafka, [msgspec.structs.replace(ended, id="of-nobody/finished")]))
    # So many that the stranger's key is surely among theirs, whatever the seed.
    asyncio.run(produce(kafka, load.requests(80)))
    with working(kafka):
        wait_for(kafka, load.sent)
