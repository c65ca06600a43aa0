"""Where on Kafka given events stand: topic, partition and offset, looked up when somebody asks.

Each is looked for in the partition of its key, from a minute before it was recorded on, and if it
is not there from the beginning: a gateway's clock may be wrong. Nothing is kept of what is read.
"""

import asyncio
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Final

import msgspec
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.partitioner import DefaultPartitioner

from ledger.clock import to_us
from ledger.events import Event
from streams.errors import CodecError
from streams.kafka.access import KafkaAccess
from streams.kafka.read import POLL_MS, RECORDS_MAX, in_words, reader
from streams.kafka.records import event_of, record_of

ROLE: Final = "find"
SECONDS_MAX: Final = 30.0
"""How long a search may take in all; what was found until then is told."""

EARLIER: Final = timedelta(minutes=1)
"""How far a gateway's clock may be before the brokers' without a search from the beginning."""

Name = tuple[str, str, int]
"""Source, topic and sequence of an event."""


class Search(msgspec.Struct):
    """`places` of what was found, as TOPIC/PARTITION@OFFSET; `whole` is false if time ran out."""

    places: dict[Name, str] = {}
    whole: bool = True


async def find_on_kafka(access: KafkaAccess, events: Sequence[Event]) -> Search:
    """Where `events` stand. Raises `KafkaError` if brokers cannot be reached, `TopicsWrong` if
    their topics are not there."""
    search = Search()
    if not events:
        return search
    topics = sorted({event.topic for event in events})
    async with reader(access, topics, ROLE) as consumer:
        by_partition: dict[TopicPartition, list[Event]] = {}
        for event in events:
            by_partition.setdefault(_partition_of(access, consumer, event), []).append(event)
        try:
            async with asyncio.timeout(SECONDS_MAX):
                with in_words(access):
                    for partition, sought in by_partition.items():
                        await _find(consumer, partition, sought, search.places)
        except TimeoutError:
            search.whole = False
    return search


def _partition_of(access: KafkaAccess, consumer: AIOKafkaConsumer, event: Event) -> TopicPartition:
    topic = access.topic(event.topic)
    numbers = sorted(consumer.partitions_for_topic(topic))
    number: int = DefaultPartitioner()(record_of(event).key, numbers, numbers)
    return TopicPartition(topic, number)


async def _find(
    consumer: AIOKafkaConsumer,
    partition: TopicPartition,
    events: Sequence[Event],
    places: dict[Name, str],
) -> None:
    sought = {_name(event) for event in events}
    first = min(event.recordedtime for event in events) - EARLIER
    begun = await consumer.offsets_for_times({partition: max(to_us(first) // 1000, 0)})
    starts = await consumer.beginning_offsets([partition])
    ends = await consumer.end_offsets([partition])
    start, end = starts[partition], ends[partition]
    at = begun.get(partition)
    likely = end if at is None else at.offset
    consumer.assign([partition])
    for low, high in ((likely, end), (start, likely)):
        await _look(consumer, partition, (low, high), sought, places)
        if not sought:
            return


async def _look(
    consumer: AIOKafkaConsumer,
    partition: TopicPartition,
    span: tuple[int, int],
    sought: set[Name],
    places: dict[Name, str],
) -> None:
    """Read `partition` from the first offset of `span` to the second, or until all is found."""
    low, high = span
    if low >= high:
        return
    consumer.seek(partition, low)
    while sought and await consumer.position(partition) < high:
        came = await consumer.getmany(partition, timeout_ms=POLL_MS, max_records=RECORDS_MAX)
        for records in came.values():
            _note(records, partition, sought, places)
        await asyncio.sleep(0)


def _note(
    records: Iterable[ConsumerRecord[bytes | None, bytes | None]],
    partition: TopicPartition,
    sought: set[Name],
    places: dict[Name, str],
) -> None:
    for record in records:
        try:
            name = _name(event_of(record.headers, record.value))
        except CodecError:
            continue
        if name in sought:
            sought.discard(name)
            places[name] = f"{partition.topic}/{partition.partition}@{record.offset}"


def _name(event: Event) -> Name:
    return event.source, event.topic, event.sequence
