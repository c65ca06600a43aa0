"""Sends one window of records after another: nothing of the next before all of this one is acked.

aiokafka gives up a batch that has waited too long for a leader and sends the next one, so order
across windows is kept here: each partition has one batch on its way, and after any failure the
producer is thrown away (its sequence numbers are no longer those of the broker).
"""

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec
from aiokafka import AIOKafkaProducer, errors
from aiokafka.partitioner import murmur2
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.structs import RecordMetadata

from ledger.clock import Clock, SystemClock
from streams.errors import KafkaError
from streams.kafka.access import KafkaAccess, producer_options
from streams.kafka.records import Headers
from streams.kafka.relay.said import Trouble

BATCH_BYTES, BATCH_BYTES_MIN = 512 * 1024, 16 * 1024
"""Up to about a thousand records in one batch; brokers take 1 MiB unless told otherwise."""

LOG_APPEND_TIME: Final = 1
"""The kind of a record's timestamp that the broker's own clock has set."""

START_SECONDS_MAX: Final = 10.0
SILENCE_SECONDS: Final = 3.0
"""Without an ack for this long Kafka is said to be away. The batch stays on its way."""

STOP_SECONDS_MAX: Final = 3.0
UNCLEAR_TRIES: Final = 5
"""An answer that blames nobody is taken to mean the record after this many times alone."""

PLACES_MAX: Final = 10_000
"""Keys whose partition is remembered: hashing one costs as much as sending it."""

REFUSED: Final = (
    errors.MessageSizeTooLargeError,
    errors.RecordListTooLargeError,
    errors.InvalidTimestampError,
    errors.UnsupportedForMessageFormatError,
    errors.PolicyViolationError,
)
"""What a broker answers to a record that it will never take."""


class Outgoing(msgspec.Struct, frozen=True):
    """A record with the broker's name of its topic; `timestamp_ms` since 1970."""

    topic: str
    key: bytes
    value: bytes | None
    headers: Headers
    timestamp_ms: int


class _Lane:
    """One partition's share of a window: runs of indexes that are not acked yet, in order."""

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.runs: list[list[int]] = [[]]

    def split(self, most: int) -> int | None:
        """After a batch of `most` records was refused: halve it. A lone record is taken out."""
        first = self.runs.pop(0)
        if most == 1:
            if first[1:]:
                self.runs.insert(0, first[1:])
            return first[0]
        half = most // 2
        rest = [first[:half], first[half:most], first[most:]]
        self.runs[0:0] = [run for run in rest if run]
        return None


class _Failed(Exception):
    """A batch of `count` records at the front of `lane` was not taken."""

    def __init__(self, lane: _Lane, count: int, reason: Exception) -> None:
        super().__init__(str(reason))
        self.lane, self.count, self.reason = lane, count, reason


class WindowSender:
    """Sends windows to the brokers of `access`. Use from one task; `close` at the end.

    `skew_seconds` is how far this machine's clock is ahead of the broker's (negative: behind), as
    the last ack has shown; 0 if the broker's time lay between sending and ack.
    """

    def __init__(self, access: KafkaAccess, trouble: Trouble, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self.skew_seconds = 0.0
        self._access = access
        self._trouble = trouble
        self._producer: AIOKafkaProducer | None = None
        self._places: dict[tuple[str, bytes], int] = {}
        self._counts: dict[str, int] = {}
        self._unclear: dict[tuple[bytes, ...], int] = {}
        self._batch_bytes = BATCH_BYTES

    async def send(self, records: Sequence[Outgoing]) -> dict[int, str]:
        """Send all of `records`. Those the brokers refuse for good are returned: index to reason.

        Returns only when every other one is acked. Raises `KafkaError` if Kafka cannot take them
        now: send the window again, whole.
        """
        lanes = await self._lanes(records)
        refused: dict[int, str] = {}
        while True:
            producer = await self._ready()
            async with asyncio.TaskGroup() as group:
                drives = [
                    group.create_task(self._drive(producer, lane, records))
                    for lane in lanes
                    if lane.runs
                ]
            failures = [failed for drive in drives if (failed := drive.result()) is not None]
            if not failures:
                self._trouble.over()
                return refused
            await self._discard()
            for failed in failures:
                self._judge(failed, records, refused)

    async def close(self) -> None:
        """Let go of the connections; a batch that is still on its way is given up."""
        await self._discard()

    def _judge(self, failed: _Failed, records: Sequence[Outgoing], refused: dict[int, str]) -> None:
        """Whose fault it is: the record's, or Kafka's. Raises `KafkaError` for the latter."""
        reason = failed.reason
        if not isinstance(reason, REFUSED) and not self._unclear_too_often(failed, records):
            raise KafkaError(f"Kafka at {self._access.where}: {_words(reason)}") from reason
        alone = failed.lane.split(failed.count)
        if alone is not None:
            refused[alone] = _words(reason)
            self._batch_bytes = BATCH_BYTES
        elif isinstance(reason, errors.MessageSizeTooLargeError):
            # It may have been the batch that is too large, not one of its records.
            self._batch_bytes = max(BATCH_BYTES_MIN, self._batch_bytes // 2)

    def _unclear_too_often(self, failed: _Failed, records: Sequence[Outgoing]) -> bool:
        """Count an unknown error of a batch; true once its records have to be tried one by one."""
        if type(failed.reason) is not errors.UnknownError:
            return False
        name = _name(records[failed.lane.runs[0][0]])
        if len(self._unclear) > PLACES_MAX:
            self._unclear.clear()
        self._unclear[name] = self._unclear.get(name, 0) + 1
        return self._unclear[name] >= UNCLEAR_TRIES

    async def _lanes(self, records: Sequence[Outgoing]) -> list[_Lane]:
        producer = await self._ready()
        for topic in {record.topic for record in records}:
            if topic not in self._counts:
                self._counts[topic] = await self._partitions(producer, topic)
        lanes: dict[tuple[str, int], _Lane] = {}
        for index, record in enumerate(records):
            place = record.topic, self._partition(record)
            lane = lanes.get(place)
            if lane is None:
                lane = lanes[place] = _Lane(*place)
            lane.runs[0].append(index)
        return list(lanes.values())

    def _partition(self, record: Outgoing) -> int:
        """Where Kafka's own default partitioner puts the record's key."""
        name = record.topic, record.key
        found = self._places.get(name)
        if found is None:
            if len(self._places) > PLACES_MAX:
                self._places.clear()
            found = (murmur2(record.key) & 0x7FFFFFFF) % self._counts[record.topic]
            self._places[name] = found
        return found

    async def _drive(
        self, producer: AIOKafkaProducer, lane: _Lane, records: Sequence[Outgoing]
    ) -> _Failed | None:
        """Send a lane batch by batch, each after the ack of the one before; null if all is well."""
        while lane.runs:
            count, batch = self._fill(producer, lane.runs[0], records)
            began = self._clock.now()
            try:
                sent = await producer.send_batch(batch, lane.topic, partition=lane.partition)
                self._compare_clocks(began, await self._acked(sent))
            except errors.KafkaError as wrong:
                return _Failed(lane, count, wrong)
            lane.runs[0] = lane.runs[0][count:]
            if not lane.runs[0]:
                lane.runs.pop(0)
        return None

    def _fill(
        self, producer: AIOKafkaProducer, run: Sequence[int], records: Sequence[Outgoing]
    ) -> tuple[int, BatchBuilder]:
        """A batch with as many records of `run` as it takes, at least one; and how many."""
        batch = producer.create_batch()
        count = 0
        for index in run:
            record = records[index]
            taken = batch.append(
                timestamp=record.timestamp_ms,
                key=record.key,
                value=record.value,
                headers=record.headers,
            )
            if taken is None:
                break
            count += 1
        batch.close()
        return count, batch

    def _compare_clocks(self, began: datetime, acked: RecordMetadata) -> None:
        if acked.timestamp_type != LOG_APPEND_TIME:
            return
        appended = acked.timestamp / 1000
        ahead = began.timestamp() - appended
        behind = appended - self._clock.now().timestamp()
        # Its clock has whole milliseconds, so less than one is no difference.
        self.skew_seconds = ahead if ahead > 0.001 else -behind if behind > 0.001 else 0.0

    async def _acked(self, sent: "asyncio.Future[RecordMetadata]") -> RecordMetadata:
        while not sent.done():
            await asyncio.wait({sent}, timeout=SILENCE_SECONDS)
            if not sent.done():
                self._trouble.say(f"Kafka at {self._access.where} does not answer")
        acked = sent.result()
        self._trouble.over()
        return acked

    async def _ready(self) -> AIOKafkaProducer:
        if self._producer is None:
            options = producer_options(self._access, "relay") | {
                "max_batch_size": self._batch_bytes
            }
            producer = AIOKafkaProducer(**options)
            try:
                async with asyncio.timeout(START_SECONDS_MAX):
                    await producer.start()
            except (errors.KafkaError, OSError, TimeoutError) as wrong:
                await producer.stop()
                raise KafkaError(
                    f"Kafka at {self._access.where} cannot be reached: {_words(wrong)}"
                ) from wrong
            self._producer = producer
        return self._producer

    async def _partitions(self, producer: AIOKafkaProducer, topic: str) -> int:
        try:
            async with asyncio.timeout(START_SECONDS_MAX):
                return len(await producer.partitions_for(topic))
        except (errors.KafkaError, TimeoutError) as wrong:
            await self._discard()
            raise KafkaError(
                f"the topic {topic} at {self._access.where} cannot be used: {_words(wrong)}; "
                "`tollbook topics create` makes what is missing"
            ) from wrong

    async def _discard(self) -> None:
        producer, self._producer = self._producer, None
        self._counts.clear()
        self._places.clear()
        if producer is not None:
            # A batch that is on its way for ever would be waited for, for ever.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS_MAX):
                    await producer.stop()


def _name(record: Outgoing) -> tuple[bytes, ...]:
    said = dict(record.headers)
    return tuple(said.get(name, b"") for name in ("ce_source", "ce_topic", "ce_sequence"))


def _words(wrong: Exception) -> str:
    return str(wrong) or type(wrong).__name__
