"""The registry log on a real broker: what one command writes the next one reads, and one of two
that race loses with words."""

import asyncio

import msgspec
import pytest
from aiokafka import AIOKafkaProducer

from ledger.clock import SystemClock
from ledger.errors import RegistryRefused, UnknownEvent
from ledger.events import Draft
from ledger.folds.book import Book
from ledger.identity import mint_id
from streams.errors import KafkaError, TopicsWrong
from streams.kafka.access import KafkaAccess, producer_options
from streams.kafka.read import read_to_end
from streams.kafka.records import event_of, record_of
from streams.kafka.registry import KafkaRegistry
from tests.streams.worker_house import working
from tests.support import events
from tests.support.events import Scribe

NOBODY = KafkaAccess(bootstrap=("127.0.0.1:9",))


def command(access: KafkaAccess) -> KafkaRegistry:
    """A command of some machine."""
    return KafkaRegistry(access, f"/cli/box/{mint_id()}", clock=SystemClock())


async def put(access: KafkaAccess, *records: tuple[bytes, list[tuple[str, bytes]]]) -> None:
    """Write records into the log past every check."""
    producer = AIOKafkaProducer(**producer_options(access, "test"))
    await producer.start()
    try:
        for value, headers in records:
            await producer.send_and_wait(access.topic("registry"), value, headers=headers)
    finally:
        await producer.stop()


def test_what_one_command_writes_the_next_one_reads(kafka: KafkaAccess) -> None:
    assert command(kafka).read() == Book()
    issued = command(kafka).append(lambda book: events.key_issued("key-1"))
    assert set(issued.keys) == {"key-1"}
    command(kafka).append(lambda book: events.price("p1", {"other_out": "0.6"}))

    def revoke(book: Book) -> Draft:
        assert book.keys["key-1"].version == 1
        return events.key_revoked("key-1")

    revoked = command(kafka).append(revoke)
    assert revoked.keys["key-1"].revoked_at is not None
    assert command(kafka).read() == revoked and len(revoked.prices) == 1


def test_one_command_may_append_several_times(kafka: KafkaAccess) -> None:
    one = command(kafka)
    one.append(lambda book: events.key_issued("key-1"))
    assert set(one.append(lambda book: events.key_issued("key-2")).keys) == {"key-1", "key-2"}


def test_what_the_fold_refuses_is_never_written(kafka: KafkaAccess) -> None:
    command(kafka).append(lambda book: events.key_issued("key-1"))
    with pytest.raises(RegistryRefused, match="at version 1 by now"):
        command(kafka).append(lambda book: events.key_issued("key-1"))

    async def count() -> int:
        return len([read async for read in read_to_end(kafka, "registry", "test")])

    assert asyncio.run(count()) == 1


async def test_of_two_commands_that_race_one_wins_and_the_other_is_refused(
    kafka: KafkaAccess,
) -> None:
    one, other = command(kafka), command(kafka)
    await one.change(lambda book: events.key_issued("key-1"))

    def late(book: Book) -> Draft:
        return events.key_revoked("key-1")

    produce = other._produce

    async def after_the_other(event: object) -> int:
        # The other machine's command has read the log already, and comes second all the same.
        await one.change(late)
        return await produce(event)  # type: ignore[arg-type]

    other._produce = after_the_other  # type: ignore[method-assign]
    with pytest.raises(RegistryRefused, match=r"another command was faster.*key key-1 is at ver"):
        await other.change(late)
    assert (await command(kafka).book()).keys["key-1"].version == 2


async def test_of_many_commands_at_once_exactly_one_wins(kafka: KafkaAccess) -> None:
    said = await asyncio.gather(
        *(command(kafka).change(lambda book: events.key_issued("key-1")) for _ in range(5)),
        return_exceptions=True,
    )
    won = [book for book in said if isinstance(book, Book)]
    lost = [wrong for wrong in said if isinstance(wrong, RegistryRefused)]
    assert (len(won), len(lost)) == (1, 4)


async def test_broken_records_are_passed_over_by_every_reader(kafka: KafkaAccess) -> None:
    scribe = Scribe()
    stale = record_of(scribe.write(events.key_revoked("key-9")))
    await put(kafka, (b"{", []), (b"", [("ce_id", b"x")]), (stale.value, stale.headers))
    book = await command(kafka).change(lambda book: events.key_issued("key-1"))
    assert set(book.keys) == {"key-1"}


async def test_an_event_of_a_newer_version_stops_every_command(kafka: KafkaAccess) -> None:
    record = record_of(Scribe().write(events.key_issued("key-1")))
    newer = [(k, b"tollbook.key.issued.v9" if k == "ce_type" else v) for k, v in record.headers]
    await put(kafka, (record.value, newer))
    with pytest.raises(UnknownEvent, match="upgrade this reader"):
        await command(kafka).change(lambda book: events.key_issued("key-2"))
    assert len([read async for read in read_to_end(kafka, "registry", "test")]) == 1


def test_with_kafka_away_a_change_is_refused_with_words() -> None:
    with pytest.raises(KafkaError, match=r"127.0.0.1:9 .*; nothing was changed") as refused:
        command(NOBODY).append(lambda book: events.key_issued("key-1"))
    assert "go on with the keys" in str(refused.value)


def test_without_topics_a_change_says_how_to_make_them(kafka: KafkaAccess) -> None:
    elsewhere = msgspec.structs.replace(kafka, prefix="nothing-here")
    with pytest.raises(TopicsWrong, match=r"nothing-here.registry-log is not on .*topics create"):
        command(elsewhere).append(lambda book: events.key_issued("key-1"))


async def test_a_change_that_is_too_large_is_refused(kafka: KafkaAccess) -> None:
    models = [f"model-{number}-{'x' * 1000}" for number in range(2000)]
    with pytest.raises(RegistryRefused, match="too large"):
        await command(kafka).change(lambda book: events.key_issued("key-1", models=models))


async def test_records_say_who_wrote_them_and_when(kafka: KafkaAccess) -> None:
    one = command(kafka)
    await one.change(lambda book: events.key_issued("key-1"))
    (read,) = [read async for read in read_to_end(kafka, "registry", "test")]
    event = event_of(read.headers, read.value)
    assert (event.source, event.sequence, event.topic) == (one.source, 1, "registry")
    assert read.key == b"key-1"


def test_a_change_that_no_worker_passes_on_is_told(kafka: KafkaAccess) -> None:
    registry = command(kafka)
    issued, price = events.key_issued("key-1"), events.price("p1", {"other_out": "0.6"})
    for draft in (issued, price):
        registry.append(lambda _, draft=draft: draft)  # type: ignore[misc]
        assert not registry.passed_on(draft.payload, 0.5)
    with working(kafka):
        assert registry.passed_on(issued.payload, 60) and registry.passed_on(price.payload, 60)
        revoked = events.key_revoked("key-1")
        registry.append(lambda _: revoked)
        assert registry.passed_on(revoked.payload, 60)
        never = events.key_revoked("key-1", base=2)
        assert not registry.passed_on(never.payload, 0.5)
    assert not command(NOBODY).passed_on(issued.payload, 0.5)
