"""The ledger writer: takes the event topics into the ledger, once, from where the ledger stands.

The consumer group only says who reads which partition. Where to read is asked of the ledger at
each assignment, and one SQL transaction stores events and moves positions from what was read, so a
writer that was overtaken in a rebalance writes nothing. While the ledger takes one batch the next
one is fetched.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.errors import IllegalStateError
from aiokafka.errors import KafkaError as ClientError

from ledger.clock import Clock
from ledger.errors import LedgerUnavailable, PositionMoved
from ledger.sql.chain import STEP, advance
from ledger.sql.session import Ledger, open_ledger
from ledger.sql.writer import Batch, LedgerWriter, Poison, Written
from ledger.words import counted
from streams.errors import KafkaError, StreamStopped, TopicsWrong
from streams.kafka.access import KafkaAccess, consumer_options
from streams.kafka.admin import check_topics, retentions
from streams.kafka.deadletter import LetterBox
from streams.kafka.portions import ROLE, Partition, Portion, portion_of
from streams.kafka.read import hush, in_words, stop
from streams.kafka.watchdog import Watchdog
from streams.local.process import Once, against
from streams.topics import LEDGER_TOPICS

BATCH_EVENTS_MAX: Final = 12_000
"""Events in one transaction: about a second of Postgres, after which others get the ledger."""

ROUND_SECONDS: Final = 0.2
"""Between two small transactions: each costs a commit, however few events it takes."""

FETCH_MS: Final = 200
SESSION_MS: Final = 10_000
"""How long a killed writer keeps its partitions."""
REBALANCE_MS: Final = 30_000
REVOKE_SECONDS: Final = 10.0
"""How long a rebalance waits for the transaction under way; the ledger fences what is later."""
POLL_INTERVAL_MS: Final = 24 * 3_600_000
"""Not a watch on us: a writer that waits for the ledger is well, and we have a watchdog."""

PAUSE_SECONDS, PAUSE_SECONDS_MAX = 0.5, 5.0
MEASURE_SECONDS: Final = 2.0
ASK_SECONDS_MAX: Final = 10.0
RETENTION_LOOK_SECONDS: Final = 60.0
CHAIN_SECONDS: Final = 2.0
"""How often a chain that got far goes on; each time takes a tenth of a second at most."""

Say = Callable[[str], None]
T = TypeVar("T")


class WriterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator may set. `accept_gaps`: go on behind records that are gone for good."""

    poison_per_minute: int = 100
    stall_seconds: float = 120.0
    accept_gaps: bool = False


class LogView(msgspec.Struct):
    """How one partition stands.

    `position` is where it is read next and `written` up to where the ledger has it, `end` is
    Kafka's; `timestamp` is that of the last record read, in milliseconds.
    """

    partition: Partition
    position: int
    written: int
    end: int
    timestamp: int | None = None
    halted: bool = False


class KafkaWriter(ConsumerRebalanceListener):  # type: ignore[misc]
    """One writer, of which there may be several. `target` is the ledger's path or URL."""

    def __init__(
        self,
        access: KafkaAccess,
        target: Path | str,
        clock: Clock,
        say: Say,
        on_stall: Callable[[str], None],
        options: WriterOptions,
    ) -> None:
        self.access = access
        self.views: dict[str, LogView] = {}
        self.counts = {"inserted": 0, "duplicates": 0, "conflicts": 0, "poison": 0}
        self.waiting: set[str] = set()
        self._target = target
        self._clock = clock
        self._say = say
        self._options = options
        self._once = Once(say)
        self._names = {access.topic(name): name for name in LEDGER_TOPICS}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ledger")
        self._ledger: Ledger | None = None
        self._writer: LedgerWriter | None = None
        self._letters = LetterBox(access, ROLE)
        self._watchdog = Watchdog(clock, options.stall_seconds, on_stall)
        self._consumer: AIOKafkaConsumer = None
        self._retentions: dict[str, int | None] = {}
        self._stop = asyncio.Event()
        self._lost = self._away = True
        self._generation = 0
        self._writing: asyncio.Task[None] | None = None
        self._poisoned: deque[float] = deque()
        self._chained = clock.monotonic()

    async def run(self, ended: asyncio.Event) -> None:
        """Write until `ended` is set.

        Raises `StreamStopped` where somebody has to look: too much poison, or records that are
        gone; `TopicsWrong` for topics that are not as they should be. Brokers or a ledger that are
        away are waited for.
        """
        hush()
        self._stop = ended
        self._watchdog.start()
        pause = PAUSE_SECONDS
        try:
            while not ended.is_set():
                try:
                    await self._session()
                    pause = PAUSE_SECONDS
                except (TopicsWrong, StreamStopped):
                    raise
                except (KafkaError, LedgerUnavailable) as wrong:
                    self._trouble("session", f"{wrong}; trying again, nothing is lost")
                    await self._wait(pause)
                    pause = min(2 * pause, PAUSE_SECONDS_MAX)
        finally:
            self._watchdog.stop()
            await self._letters.close()
            if self._ledger is not None:
                await self._in_thread(self._ledger.close)
            self._thread.shutdown()

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        """Finish the transaction under way, or leave it to the fence."""
        self._away = True
        self._lose_place()
        if self._writing is not None:
            await asyncio.wait({self._writing}, timeout=REVOKE_SECONDS)

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        """Begin anew from what the ledger says, also in partitions that we had before."""
        self._away = False
        self._lose_place()

    def halted(self) -> list[str]:
        """The logs that may not be read on."""
        return [log for log, view in self.views.items() if view.halted]

    def age_seconds(self, view: LogView) -> float:
        """How long ago Kafka took the last record that was read here; 0 before the first."""
        if view.timestamp is None:
            return 0.0
        return max(0.0, self._clock.now().timestamp() - view.timestamp / 1000)

    def _lose_place(self) -> None:
        """What was fetched and not written counts no more: ask the ledger where to read."""
        self._generation += 1
        self._lost = True

    async def _session(self) -> None:
        """One life of a consumer, until the end or an error of the client."""
        with in_words(self.access):
            await self._open()
            consumer = AIOKafkaConsumer(
                **consumer_options(self.access, ROLE)
                | {
                    "group_id": self.access.group(ROLE),
                    "session_timeout_ms": SESSION_MS,
                    "rebalance_timeout_ms": REBALANCE_MS,
                    "max_poll_interval_ms": POLL_INTERVAL_MS,
                }
            )
            self._consumer = consumer
            self._away = True
            self._lose_place()
            try:
                consumer.subscribe(topics=list(self._names), listener=self)
                await consumer.start()
                measuring = asyncio.create_task(self._measure())
                try:
                    await self._rounds(measuring)
                finally:
                    measuring.cancel()
                    await asyncio.gather(measuring, return_exceptions=True)
                    await self._settle()
            finally:
                await stop(consumer)
                self.views = {}

    async def _open(self) -> None:
        """Find the ledger and check the topics. Raises what both raise."""
        await check_topics(self.access)
        self._retentions = await retentions(self.access)
        if self._ledger is None:
            self._ledger = await self._in_thread(lambda: open_ledger(self._target))
            self._writer = LedgerWriter(self._ledger, self._clock)

    async def _rounds(self, measuring: asyncio.Task[None]) -> None:
        """Fetch, and write what was fetched while the next is fetched."""
        while not self._stop.is_set():
            if measuring.done():
                measuring.result()
            if self._lost:
                await self._settle()
                await self._take_up()
                continue
            generation, began = self._generation, self._clock.monotonic()
            fetched = await self._consumer.getmany(
                timeout_ms=FETCH_MS, max_records=BATCH_EVENTS_MAX
            )
            await self._look_for_gaps(fetched)
            if generation != self._generation:
                continue
            portions = self._sort(fetched)
            self._count_poison(portions)
            await self._settle()
            if generation != self._generation or not portions:
                continue
            self._writing = asyncio.create_task(self._write(portions, generation))
            if sum(len(records) for records in fetched.values()) < BATCH_EVENTS_MAX // 2:
                await self._wait(ROUND_SECONDS - (self._clock.monotonic() - began))

    async def _settle(self) -> None:
        """Wait for the write under way. Raises what it raised."""
        writing = self._writing
        if writing is not None:
            try:
                await writing
            finally:
                self._writing = None

    async def _look_for_gaps(self, fetched: dict[TopicPartition, list[Any]]) -> None:
        """A client that is too far behind is taken to the first record that is left. See it."""
        for place, records in fetched.items():
            view = self.views.get(self._partition(place).log)
            if view is not None and records[0].offset > view.position:
                starts = await self._consumer.beginning_offsets([place])
                if starts[place] > view.position:
                    self._lose_place()

    def _sort(self, fetched: dict[TopicPartition, list[Any]]) -> list[Portion]:
        """What was fetched as portions; our places move on, and halted partitions stay."""
        portions = []
        for place, records in fetched.items():
            view = self.views.get(self._partition(place).log)
            if view is None or view.halted:
                continue
            portion = portion_of(view.partition, view.position, records)
            if portion.halt is not None:
                view.halted = True
                self._consumer.pause(place)
                self._once(portion.halt)
            if portion.batch.next_offset > view.position:
                view.position = portion.batch.next_offset
                view.timestamp = portion.timestamp
                portions.append(portion)
        return portions

    def _count_poison(self, portions: list[Portion]) -> None:
        """Raises `StreamStopped` if more was poisoned within a minute than an accident would."""
        now = self._clock.monotonic()
        letters = [letter for portion in portions for letter in portion.letters]
        self._poisoned.extend(now for _ in letters)
        while self._poisoned and now - self._poisoned[0] > 60:
            self._poisoned.popleft()
        most = self._options.poison_per_minute
        if len(self._poisoned) > most:
            last = letters[-1]
            raise StreamStopped(
                f"{counted(len(self._poisoned), 'record')} within a minute "
                f"{'is no event' if len(self._poisoned) == 1 else 'are no events'}, and {most} are "
                f"set as the most; the last is {last.place}: {last.reason}. Something writes to "
                "these topics that should not, or readers have to be upgraded first; nothing is "
                "lost. --poison-max-per-minute sets another bound"
            )

    async def _write(self, portions: list[Portion], generation: int) -> None:
        """One transaction, tried until it is written or its partitions are ours no more."""
        letters = [letter for portion in portions for letter in portion.letters]
        batches = [portion.batch for portion in portions]
        pause = PAUSE_SECONDS
        while generation == self._generation:
            try:
                await self._letters.put(letters)
                letters = []
                written = await self._store(batches)
            except PositionMoved as moved:
                self._once(f"{moved}; the positions are asked again")
                self._lose_place()
                return
            except (LedgerUnavailable, KafkaError) as wrong:
                self._trouble("batch", f"{wrong}; trying again, nothing is lost")
                if self._stop.is_set():
                    return
                await self._wait(pause)
                pause = min(2 * pause, PAUSE_SECONDS_MAX)
            else:
                self._account(written, portions)
                return

    async def _store(self, batches: list[Batch]) -> Written:
        writer, ledger = self._writer, self._ledger
        assert writer is not None, "the ledger is opened before the first batch is fetched"
        assert ledger is not None, "a writer has a ledger"
        now = self._clock.monotonic()
        if now - self._chained >= CHAIN_SECONDS:
            self._chained = now
            # Before the batch, since what fails here must not be taken for a failure of that.
            await self._in_thread(lambda: advance(ledger, STEP))
        return await self._in_thread(lambda: writer.write_all(batches))

    def _account(self, written: Written, portions: list[Portion]) -> None:
        self._well("batch", "session")
        for portion in portions:
            view = self.views.get(portion.batch.log)
            if view is not None:
                view.written = max(view.written, portion.batch.next_offset)
        poison = [one for portion in portions for one in portion.batch.poison]
        self.counts["inserted"] += written.inserted
        self.counts["duplicates"] += written.duplicates
        self.counts["conflicts"] += max(0, written.conflicts - len(poison))
        self.counts["poison"] += len(poison)
        if written.conflicts:
            logs = ", ".join(sorted({portion.batch.log for portion in portions}))
            self._say(
                f"{logs}: {against(written.conflicts)}, see `tollbook audit` and `tollbook "
                "dead-letters list`"
            )

    async def _take_up(self) -> None:
        """Ask the ledger where to read each of our partitions, and go there."""
        generation = self._generation
        places = [] if self._away else sorted(self._consumer.assignment())
        if not places:
            # In a rebalance, or there are more writers than partitions.
            self._watchdog.excuse()
            self.views = {}
            await self._wait(FETCH_MS / 1000)
            return
        logs = {place: self._partition(place) for place in places}
        positions = await self._positions([partition.log for partition in logs.values()])
        starts = await self._consumer.beginning_offsets(places)
        ends = await self._consumer.end_offsets(places)
        views = {}
        for place, partition in logs.items():
            position, start, end = positions[partition.log], starts[place], ends[place]
            if not start <= position <= end:
                position = await self._out_of_range(partition.log, position, start, end)
            views[partition.log] = LogView(partition, position, position, end)
        if generation != self._generation:
            return
        try:
            self._consumer.resume(*self._consumer.paused())
            for place, partition in logs.items():
                self._consumer.seek(place, views[partition.log].position)
        except IllegalStateError:
            # Assigned anew between two awaits; the listener is about to be told.
            return
        self.views = views
        self._lost = False
        self._well("session", "positions")

    async def _positions(self, logs: list[str]) -> dict[str, int]:
        """Where the ledger stands in each of `logs`. A ledger that is away is waited for, as a
        member of the group: leaving it would only trouble the other writers."""
        writer = self._writer
        assert writer is not None, "the ledger is opened before the consumer starts"
        pause = PAUSE_SECONDS
        while True:
            try:
                return await self._in_thread(lambda: {log: writer.position(log) for log in logs})
            except LedgerUnavailable as wrong:
                if self._stop.is_set():
                    raise
                self._trouble("positions", f"{wrong}; trying again, nothing is lost")
                await self._wait(pause)
                pause = min(2 * pause, PAUSE_SECONDS_MAX)

    async def _out_of_range(self, log: str, position: int, start: int, end: int) -> int:
        """The place to go on from, if gaps were accepted. Raises `StreamStopped` if not."""
        if position > end:
            raise StreamStopped(
                f"the ledger has taken {log} up to {position}, but it ends at {end}: the topic was "
                "made anew, or this is another Kafka. Nothing was written; set kafka.prefix to "
                "one that this ledger has not read, or put back the ledger that belongs to it"
            )
        words = (
            f"{log}: records {position} to {start} are gone from Kafka, and this ledger had not "
            "taken them"
        )
        if not self._options.accept_gaps:
            raise StreamStopped(
                f"{words}. Their retention is over, or this ledger is an older copy: put back a "
                "newer one, or go on without them by --accept-gaps, which the audit will show"
            )
        self._say(f"{words}; going on without them")
        gap = Poison(position, words, b"")
        await self._store([Batch(log, position, start, [], [gap])])
        return start

    async def _measure(self) -> None:
        """Ask brokers for the ends, for the metrics and for the watchdog."""
        pause = min(MEASURE_SECONDS, self._options.stall_seconds / 4)
        due = self._clock.monotonic()
        while True:
            await asyncio.sleep(pause)
            try:
                await self._look_at_ends()
                if self._clock.monotonic() >= due:
                    due = self._clock.monotonic() + RETENTION_LOOK_SECONDS
                    await self._look_at_retention()
            except (ClientError, OSError) as wrong:
                said = str(wrong) or type(wrong).__name__
                self._trouble("ends", f"Kafka at {self.access.where} cannot be asked: {said}")
                continue
            self._well("ends")
            if self.waiting or self._away:
                self._watchdog.excuse()
            else:
                self._watchdog.look(
                    {
                        log: (view.written, view.end)
                        for log, view in self.views.items()
                        if not view.halted
                    }
                )

    async def _look_at_ends(self) -> None:
        async with asyncio.timeout(ASK_SECONDS_MAX):
            ends = await self._consumer.end_offsets(list(self._consumer.assignment()))
        for place, end in ends.items():
            view = self.views.get(self._partition(place).log)
            if view is not None:
                view.end = end

    async def _look_at_retention(self) -> None:
        """Warn of every partition of which the next record has lived half of its time."""
        now_ms = int(1000 * self._clock.now().timestamp())
        behind = [view for view in self.views.values() if view.position < view.end]
        for view in behind:
            partition = view.partition
            kept = self._retentions.get(partition.name)
            if kept is None:
                continue
            place = TopicPartition(partition.topic, partition.number)
            found = (await self._consumer.offsets_for_times({place: now_ms - kept // 2}))[place]
            if found is None or view.position < found.offset:
                self._once(
                    f"{partition.log} is read at {view.position} of {view.end}, and Kafka deletes "
                    f"what is there in less than {kept / 7_200_000:.1f} hours; start more writers "
                    "or raise the topic's retention.ms"
                )

    def _partition(self, place: TopicPartition) -> Partition:
        return Partition(place.topic, place.partition, self._names[place.topic])

    def _trouble(self, what: str, words: str) -> None:
        self.waiting.add(what)
        self._watchdog.excuse()
        self._once(words)

    def _well(self, *what: str) -> None:
        if self.waiting:
            self.waiting.difference_update(what)
            if not self.waiting:
                self._once.forget()
                self._say("going on")

    async def _in_thread(self, do: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, do)

    async def _wait(self, seconds: float) -> None:
        """Sleep, but not past the end."""
        if seconds > 0:
            try:
                async with asyncio.timeout(seconds):
                    await self._stop.wait()
            except TimeoutError:
                return
