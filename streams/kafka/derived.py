"""Advances derived topics by records of the topics they are made from. Knows nothing of Faust.

Whoever fetches the records may hand them over twice, leave some out, or have committed offsets that
were never worked off: what counts is the position that stands in the derived topic itself. Each of
its records says, in the header `tollbook-through`, up to where everything before it is in the
records up to it. So values and position can not come apart, and the group's offsets are no more
than a hint where to fetch.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from ledger.clock import Clock
from ledger.errors import MalformedEvent, UnknownEvent
from ledger.events import payload_of
from ledger.folds.fitness import nameless, unfit
from streams.errors import CodecError, KafkaError, StreamStopped
from streams.kafka.access import KafkaAccess, producer_options
from streams.kafka.deadletter import LetterBox
from streams.kafka.letters import DeadLetter
from streams.kafka.read import READ_SECONDS_MAX, Read, batches_to, ends_of, in_words, reader
from streams.kafka.records import event_of
from streams.projector import Projector, RegistryProjector, RoutingProjector, UsageProjector

THROUGH: Final = "tollbook-through"
"""Header of every record of a derived topic: the offset behind the last one that is folded in."""

ROLE: Final = "worker"


class Fold(msgspec.Struct, frozen=True, kw_only=True):
    """A derived topic: the topic `source` whose partition P makes partition P of `derived`.

    Where `lasting` is true, the totals would be wrong for ever if records were lost before they
    were read; else the newest ones are enough.
    """

    source: str
    derived: str
    make: Callable[[], Projector]
    lasting: bool = True


FOLDS: Final = (
    Fold(source="requests", derived="usage-by-key", make=UsageProjector),
    Fold(source="backends", derived="routing-state", make=RoutingProjector, lasting=False),
    Fold(source="registry", derived="registry-state", make=RegistryProjector),
)


class _Partition(msgspec.Struct):
    """One partition at work: its values, and the offset of the next record to take.

    `late` are keys whose values were written over by a worker that had lost the partition; they are
    right again, and are written again, at the offset `highest`.
    """

    projector: Projector
    next_offset: int
    late: tuple[str, ...] = ()
    highest: int = 0


class Derived:
    """Works on one of `FOLDS`. All of it is called in one event loop."""

    def __init__(self, access: KafkaAccess, fold: Fold, *, clock: Clock, pause_max: float) -> None:
        """A process that stood still for longer than `pause_max` seconds may have lost its
        partitions to another one and must not write any more."""
        self.fold = fold
        self.dead = 0
        self.taken = 0
        self._access = access
        self._clock = clock
        self._pause_max = pause_max
        self._alive = clock.monotonic()
        self._topic = access.topic(fold.source)
        self._derived = access.topic(fold.derived)
        self._producer: AIOKafkaProducer | None = None
        self._box = LetterBox(access, ROLE)
        self._partitions: dict[int, _Partition] = {}
        self._turn = asyncio.Lock()
        self._epoch = 0

    async def start(self) -> None:
        """Connect. Raises `KafkaError` if no broker can be reached."""
        with in_words(self._access):
            producer = AIOKafkaProducer(**producer_options(self._access, ROLE))
            try:
                await producer.start()
            except BaseException:
                await producer.stop()
                raise
            self._producer = producer

    async def stop(self) -> None:
        """Disconnect. What was taken is on Kafka already."""
        await self._box.close()
        if self._producer is not None:
            await self._producer.stop()
            self._producer = None

    def tick(self) -> None:
        """Say that this process runs; to be called every second, also while `take` is at work.

        Raises `KafkaError` after a pause in which another worker may have taken over.
        """
        pause = self._clock.monotonic() - self._alive
        if pause > self._pause_max:
            raise KafkaError(
                f"this worker stood still for {pause:.0f} s, so that another one may have taken "
                "over its partitions"
            )
        self._alive += pause

    def forget(self, partitions: Iterable[int]) -> None:
        """Drop what is known of partitions that somebody else may write to from now on."""
        self._epoch += 1
        for number in partitions:
            self._partitions.pop(number, None)

    async def place(self, partitions: Iterable[int]) -> dict[int, int]:
        """The next offset of each of `partitions`, as the derived topic says; raises as `take`."""
        async with self._turn:
            await self._load(set(partitions) - self._partitions.keys())
        return {number: known for number, known in self.positions().items() if number in partitions}

    def positions(self) -> dict[int, int]:
        """The next offset of each partition at work."""
        return {number: known.next_offset for number, known in self._partitions.items()}

    async def take(self, reads: Sequence[Read]) -> dict[int, int]:
        """Work off `reads`, and return only when all that follows from them is on Kafka.

        Returns the partitions in which records are missing before those given, with the offset
        that has to be fetched next; nothing behind such a gap was taken. Raises `StreamStopped`
        for an event of a newer version, or if records are gone for good, and `KafkaError` if the
        broker does not take what is written; what is on Kafka is right in every case.
        """
        self.tick()
        async with self._turn:
            await self._load({read.partition for read in reads} - self._partitions.keys())
            return await self._take([read for read in reads if read.partition in self._partitions])

    async def _take(self, reads: Sequence[Read]) -> dict[int, int]:
        before = self.positions()
        letters: list[DeadLetter] = []
        gaps: dict[int, int] = {}
        stopped: UnknownEvent | None = None
        for read in reads:
            known = self._partitions[read.partition]
            if read.partition in gaps or read.offset < known.next_offset:
                continue
            if read.offset > known.next_offset:
                if not await self._skip(read, known):
                    gaps[read.partition] = known.next_offset
                    continue
                known.next_offset = read.offset
            try:
                letter = self._advance(read, known.projector)
            except UnknownEvent as wrong:
                stopped = wrong
                break
            if letter is not None:
                letters.append(letter)
            known.next_offset += 1
            self.taken += 1
        for known in self._partitions.values():
            if known.late and known.next_offset >= known.highest:
                known.projector.again(known.late)
                known.late = ()
        if letters:
            await self._box.put(letters)
            self.dead += len(letters)
        await self._write(before, reads)
        if stopped is not None:
            raise StreamStopped(f"{self._topic}: {stopped}") from stopped
        return gaps

    def _advance(self, read: Read, projector: Projector) -> DeadLetter | None:
        """Take one record; a letter if it is none of ours. Raises `UnknownEvent`."""
        try:
            event = event_of(read.headers, read.value)
            if event.topic != self.fold.source:
                raise CodecError(f"{event.name} belongs into the topic {event.topic}")
        except CodecError as wrong:
            return self._letter(read, str(wrong))
        try:
            payload = payload_of(event)
        except MalformedEvent as wrong:
            projector.broken(event, read.offset)
            return self._letter(read, str(wrong))
        # What the ledger sets aside may not count here either.
        if nameless(event) is not None:
            return None
        if unfit(event, payload) is None:
            projector.take(event, payload, read.offset, read.timestamp_ms)
        else:
            projector.broken(event, read.offset)
        return None

    def _letter(self, read: Read, reason: str) -> DeadLetter:
        return DeadLetter(
            topic=self._topic,
            partition=read.partition,
            offset=read.offset,
            reason=reason,
            by=ROLE,
            key=read.key,
            value=read.value,
            headers=list(read.headers),
        )

    async def _write(self, before: dict[int, int], reads: Sequence[Read]) -> None:
        """Write what has changed and wait for every ack. All but the last record of a partition
        say the old position: if this is cut short, the rest is worked off again."""
        times = {read.partition: read.timestamp_ms for read in reads}
        waiting = []
        with in_words(self._access):
            for number, time_ms in times.items():
                known = self._partitions[number]
                changed = list(known.projector.changed().items())
                for count, (key, value) in enumerate(changed, 1):
                    last = count == len(changed)
                    through = known.next_offset if last else before[number]
                    waiting.append(
                        await self._connected().send(
                            self._derived,
                            value,
                            key=key.encode(),
                            partition=number,
                            timestamp_ms=max(time_ms, 0),
                            headers=[(THROUGH, b"%d" % through)],
                        )
                    )
            for future in waiting:
                await future

    async def _skip(self, read: Read, known: _Partition) -> bool:
        """True if no record is left on the broker before `read`, so that it comes next: they are
        deleted, or the offsets between hold what is no record, as marks of transactions are."""
        partition = TopicPartition(self._topic, read.partition)
        async with reader(self._access, [self.fold.source], ROLE) as consumer:
            with in_words(self._access):
                start: int = (await consumer.beginning_offsets([partition]))[partition]
                if start <= known.next_offset:
                    return await _comes_next(consumer, partition, known.next_offset, read.offset)
        if self.fold.lasting:
            raise StreamStopped(
                f"{self._topic}/{read.partition}: the records from {known.next_offset} to "
                f"{start - 1} were deleted before this worker had read them, so "
                f"{self._derived} cannot be continued; empty that topic and put back what is "
                "missing, or begin anew under another kafka.prefix"
            )
        known.next_offset = start
        return read.offset == start

    async def _load(self, wanted: Iterable[int]) -> None:
        """Read the partitions `wanted` of the derived topic to their ends."""
        numbers = sorted(wanted)
        if not numbers:
            return
        epoch = self._epoch
        places = {number: _Place(self.fold.make()) for number in numbers}
        sources = [TopicPartition(self._topic, number) for number in numbers]
        async with reader(self._access, [self.fold.derived, self.fold.source], ROLE) as consumer:
            with in_words(self._access):
                consumer.assign([TopicPartition(self._derived, number) for number in numbers])
                await consumer.seek_to_beginning()
                async for records in batches_to(consumer, await ends_of(consumer)):
                    for record in records:
                        places[record.partition].put(record.key, record.value, record.headers)
                starts = await consumer.beginning_offsets(sources)
                ends = await consumer.end_offsets(sources)
        for source in sources:
            known = places[source.partition].partition(starts[source])
            if known.next_offset > ends[source]:
                raise StreamStopped(
                    f"{self._topic}/{source.partition} ends at {ends[source]}, but "
                    f"{self._derived} was made from it up to {known.next_offset}: one of the two "
                    "topics was made anew. Empty the other one too, or begin anew under another "
                    "kafka.prefix"
                )
            if epoch == self._epoch:
                self._partitions[source.partition] = known

    def _connected(self) -> AIOKafkaProducer:
        if self._producer is None:
            raise KafkaError("the worker is not connected to Kafka; start it first")
        return self._producer


async def _comes_next(
    consumer: AIOKafkaConsumer, partition: TopicPartition, first: int, offset: int
) -> bool:
    """True if the record at `offset`, which is there, is the next one from `first` on."""
    consumer.assign([partition])
    consumer.seek(partition, first)
    async with asyncio.timeout(READ_SECONDS_MAX):
        found: int = (await consumer.getone()).offset
    return found == offset


class _Place:
    """What stands in one partition of a derived topic, and where to go on."""

    def __init__(self, projector: Projector) -> None:
        self._projector = projector
        self._values: dict[str, bytes] = {}
        self._late: dict[str, int] = {}
        self._last: int | None = None
        self._highest = -1

    def put(
        self, key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes]]
    ) -> None:
        """Take the next record of the partition."""
        said = dict(headers).get(THROUGH)
        if key is None or said is None or not said.isdigit():
            raise StreamStopped(
                "a derived topic holds a record that no worker wrote; only the worker may write "
                "there. Delete the records of that topic, and the worker makes them anew"
            )
        name, through = key.decode(errors="replace"), int(said)
        self._late.pop(name, None)
        if through < self._highest:
            # Written by a worker that had lost this partition: its value lacks what came behind.
            self._late[name] = through
        self._highest = max(self._highest, through)
        self._last = through
        if value is None:
            self._values.pop(name, None)
        else:
            self._values[name] = value

    def partition(self, start: int) -> _Partition:
        """The partition to go on with, from `start` on if nothing was ever written.

        Raises `MalformedEvent` for a value that is none.
        """
        for name, value in self._values.items():
            self._projector.load(name, value)
        return _Partition(
            projector=self._projector,
            next_offset=start if self._last is None else min([self._last, *self._late.values()]),
            late=tuple(name for name in self._late if name in self._values),
            highest=self._highest,
        )
