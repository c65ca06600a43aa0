"""Reading topics from their beginning to the end that they have now, without a consumer group.

"To the end" means up to what the broker called the end when the reading began: whoever writes on
meanwhile does not keep a reader from getting there.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import msgspec
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError as ClientError

from streams.errors import KafkaError, TopicsWrong
from streams.kafka.access import KafkaAccess, consumer_options
from streams.topics import TOPICS

START_SECONDS_MAX: Final = 20.0
"""How long brokers may take to be found, and a topic to be described."""

READ_SECONDS_MAX: Final = 60.0
"""How long a read to the end may stand still before it is given up."""

RECORDS_MAX: Final = 500
"""Records between two points at which other tasks of the loop get their turn."""

POLL_MS: Final = 250


class Read(msgspec.Struct, frozen=True):
    """One record as it stands in a topic. A null `value` is a tombstone."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]
    timestamp_ms: int


@contextmanager
def in_words(access: KafkaAccess) -> Iterator[None]:
    """Turn what the client raises into `KafkaError` with the brokers' addresses.

    A connection that breaks under a request can end it as if our own task had been cancelled.
    """
    task = asyncio.current_task()
    try:
        yield
    except asyncio.CancelledError as cut:
        if task is None or task.cancelling():
            raise
        raise KafkaError(f"Kafka at {access.where} broke the connection") from cut
    except (ClientError, OSError) as wrong:
        late = "it did not answer in time" if isinstance(wrong, TimeoutError) else ""
        said = str(wrong) or late or type(wrong).__name__
        raise KafkaError(f"Kafka at {access.where} cannot be reached or refuses: {said}") from wrong


def hush() -> None:
    """Keep the client's own log quiet: it repeats itself every second while brokers are away, and
    everything that it raises is said by us, once."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL + 1)


def partitions_of(access: KafkaAccess, names: Iterable[str]) -> list[TopicPartition]:
    """Every partition of the topics `names` of `streams.topics.TOPICS`, as the settings say."""
    return [
        TopicPartition(access.topic(name), number)
        for name in names
        for number in range(TOPICS[name].partitions(access.partitions))
    ]


@asynccontextmanager
async def reader(
    access: KafkaAccess, names: Sequence[str], role: str
) -> AsyncIterator[AIOKafkaConsumer]:
    """A consumer at the beginning of all partitions of the topics `names`, in no group.

    Raises `TopicsWrong` for a topic that is not there and `KafkaError` if no broker can be
    reached within `START_SECONDS_MAX`.
    """
    hush()
    with in_words(access):
        consumer = AIOKafkaConsumer(**consumer_options(access, role), group_id=None)
        try:
            async with asyncio.timeout(START_SECONDS_MAX):
                await consumer.start()
                there = await consumer.topics()
            missing = [access.topic(name) for name in names if access.topic(name) not in there]
            if missing:
                raise TopicsWrong(
                    f"topic {', '.join(missing)} is not on Kafka at {access.where}; "
                    "`tollbook topics create` makes it"
                )
            consumer.assign(partitions_of(access, names))
            await consumer.seek_to_beginning()
            yield consumer
        finally:
            await stop(consumer)


async def stop(consumer: AIOKafkaConsumer) -> None:
    """End `consumer` and all that belongs to it.

    While requests hang, `stop` of aiokafka 0.14 breaks off as if our own task had been cancelled,
    and leaves tasks and sockets behind; so they are ended here.
    """
    task = asyncio.current_task()
    try:
        await consumer.stop()
    except asyncio.CancelledError:
        pending = list(consumer._fetcher._pending_tasks)
        for request in pending:
            request.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        await consumer._client.close()
        if task is None or task.cancelling():
            raise


async def ends_of(consumer: AIOKafkaConsumer) -> dict[TopicPartition, int]:
    """The end of each assigned partition now. Raises `TimeoutError` after `START_SECONDS_MAX`."""
    async with asyncio.timeout(START_SECONDS_MAX):
        ends: dict[TopicPartition, int] = await consumer.end_offsets(list(consumer.assignment()))
    return ends


async def batches_to(
    consumer: AIOKafkaConsumer, ends: dict[TopicPartition, int]
) -> AsyncIterator[list[ConsumerRecord[bytes | None, bytes | None]]]:
    """Everything from where `consumer` stands up to `ends`, in small batches; a batch may hold
    records beyond.

    Raises `TimeoutError` if nothing at all comes for `READ_SECONDS_MAX`.
    """
    loop = asyncio.get_running_loop()
    heard = loop.time()
    before = -1
    while True:
        places = [await consumer.position(partition) for partition in ends]
        if all(place >= end for place, end in zip(places, ends.values(), strict=True)):
            return
        if sum(places) != before:
            before, heard = sum(places), loop.time()
        elif loop.time() - heard > READ_SECONDS_MAX:
            raise TimeoutError(f"nothing came for {READ_SECONDS_MAX:.0f} s before the end")
        came = await consumer.getmany(timeout_ms=POLL_MS, max_records=RECORDS_MAX)
        for records in came.values():
            yield list(records)
        await asyncio.sleep(0)


async def read_to_end(access: KafkaAccess, name: str, role: str) -> AsyncIterator[Read]:
    """Every record of the topic `name` from its beginning up to the end that it has now.

    Records of one partition come in order. Raises `TopicsWrong` if the topic is not there and
    `KafkaError` if brokers cannot be reached. Close the generator (`contextlib.aclosing`) if it is
    left before its end.
    """
    async with reader(access, [name], role) as consumer:
        ends = await ends_of(consumer)
        async for records in batches_to(consumer, ends):
            for record in records:
                if record.offset < ends[TopicPartition(record.topic, record.partition)]:
                    yield _read(record)


async def latest_values(access: KafkaAccess, name: str, role: str) -> dict[bytes, bytes]:
    """The last value of each key of a compacted topic, without what is gone."""
    values: dict[bytes, bytes] = {}
    async for read in read_to_end(access, name, role):
        if read.key is None:
            continue
        if read.value is None:
            values.pop(read.key, None)
        else:
            values[read.key] = read.value
    return values


def _read(record: ConsumerRecord[bytes | None, bytes | None]) -> Read:
    return Read(
        record.partition,
        record.offset,
        record.key,
        record.value,
        tuple(record.headers),
        record.timestamp,
    )
