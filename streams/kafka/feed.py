"""What a gateway knows from Kafka: keys and prices, views of backends, live totals of keys.

On start it reads three compacted topics to their ends, then follows them. What it knows is kept in
a snapshot on disk every few seconds. With Kafka away at start it goes on from that snapshot and
says how old it is; with Kafka lost later it goes on with what it has, up to a stated age.

It runs in the gateway's event loop and never holds it for longer than a few hundred records.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec
from aiokafka import AIOKafkaConsumer, ConsumerRecord

from ledger.clock import Clock
from ledger.errors import LedgerError, MalformedEvent
from ledger.folds.book import Book
from ledger.folds.book_entries import BookPages
from ledger.folds.live import KeyUsage, usage_of
from ledger.folds.routing import RoutingView, readable_views
from streams.errors import KafkaError, LogError
from streams.kafka import snapshot
from streams.kafka.access import KafkaAccess
from streams.kafka.read import POLL_MS, RECORDS_MAX, batches_to, ends_of, reader

log = logging.getLogger("tollbook.feed")

REGISTRY, ROUTING, USAGE = "registry-state", "routing-state", "usage-by-key"
FEED_TOPICS: Final = (REGISTRY, ROUTING, USAGE)

START_SECONDS_MAX: Final = 10.0
"""How long a start waits for Kafka where there is a snapshot to go on from."""

PROBE_SECONDS: Final = 2.0
"""How often brokers are asked for the topics' ends: only so is it noticed that they are away."""
PROBE_SECONDS_MAX: Final = 5.0

SNAPSHOT_SECONDS: Final = 5.0
SNAPSHOT_IDLE_SECONDS: Final = 60.0
"""Where nothing changed, the snapshot is written as seldom, only to say that it still holds."""

AGAIN_SECONDS: Final = (0.5, 1.0, 2.0, 5.0)
"""Pauses before brokers are tried again; the last one stands."""

WORKER_SECONDS_MAX: Final = 30.0
"""Each gateway says every two seconds what it sees of its backends, and a worker passes that on;
one that takes over from another needs up to fifteen."""

STALE_SECONDS_MAX: Final = 86_400
"""How old keys may be and still open. Nobody can say then what was revoked meanwhile."""


class Known:
    """Values by topic and key, and the book that they make. A broken entry leaves what was."""

    def __init__(self) -> None:
        self.values: dict[str, dict[str, bytes]] = {name: {} for name in FEED_TOPICS}
        self.book = Book()
        self.broken: dict[str, str] = {}
        self.records = 0
        self._pages = BookPages()
        self._moved = False

    def put(self, topic: str, key: str, value: bytes | None) -> None:
        """Take one record; null is a tombstone."""
        self.records += 1
        if topic == REGISTRY:
            try:
                self._pages.put(key, value)
            except MalformedEvent as wrong:
                self.broken[key] = str(wrong)
                return
            self.broken.pop(key, None)
            self._moved = True
        if value is None:
            self.values[topic].pop(key, None)
        else:
            self.values[topic][key] = value

    def keep(self, key: str, value: bytes) -> None:
        """Let an older `value` stand for an entry of the registry that is broken now."""
        said = self.broken[key]
        self.put(REGISTRY, key, value)
        self.broken[key] = said

    def settle(self) -> None:
        """Bring `book` up to date with all that was put."""
        if self._moved:
            self._moved = False
            self.book = self._pages.book()


class Feed:
    """Follows the three topics. Make it, and call all of it, in one event loop.

    `book` is the newest that is known. `ready` is false until there is one that may be served.
    """

    def __init__(
        self,
        access: KafkaAccess,
        path: Path,
        clock: Clock,
        *,
        stale_seconds_max: float = STALE_SECONDS_MAX,
    ) -> None:
        self._access = access
        self._path = path
        self._clock = clock
        self._stale_seconds_max = stale_seconds_max
        self._known = Known()
        self._as_of: datetime | None = None
        self._names = {access.topic(name): name for name in FEED_TOPICS}
        self._live = False
        self._given_up = False
        self._fault: str | None = None
        self._progress = "no broker was reached yet"
        self._saved = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._started = self._passed_on = clock.monotonic()
        self.lag = 0

    @property
    def book(self) -> Book:
        """Keys and prices, as far as they are known."""
        return self._known.book

    @property
    def live(self) -> bool:
        """True while brokers answer and all that they had was read."""
        return self._live

    @property
    def ready(self) -> bool:
        """True if `book` may be served: it is followed, or a snapshot that is not too old."""
        if self._live:
            return True
        age = self.age_seconds()
        return age is not None and self._goes_on() and age <= self._stale_seconds_max

    def age_seconds(self) -> float | None:
        """How long ago Kafka was heard of; null if it never was, here or in a snapshot.

        A time that is ahead, because a clock was set back, is as far away as one that is behind.
        """
        if self._as_of is None:
            return None
        return abs((self._clock.now() - self._as_of).total_seconds())

    def waiting_for(self) -> str | None:
        """What keeps this from being ready, in words; null if nothing does."""
        if self.ready:
            return None
        age = self.age_seconds()
        if self._goes_on() and age is not None:
            return (
                f"the registry on Kafka at {self._access.where}: what is known of keys is "
                f"{duration(age)} old, and more than {duration(self._stale_seconds_max)} is not "
                f"served, because nobody knows what was revoked since: {self._fault}"
            )
        return f"the registry on Kafka at {self._access.where}: {self._fault or self._progress}"

    def note(self) -> str | None:
        """What somebody should know although all is ready; null if nothing."""
        if self._live:
            silent = self._clock.monotonic() - self._passed_on
            if silent <= WORKER_SECONDS_MAX:
                return None
            return (
                f"no worker has passed anything on for {duration(silent)}: what was issued or "
                "revoked since is not known here; see that `tollbook worker` runs"
            )
        age = self.age_seconds()
        if age is None:
            return None
        return f"keys are as they were {duration(age)} ago: {self._fault or self._progress}"

    def faults(self) -> Sequence[str]:
        """Entries of the registry that cannot be read; what was known of them before stands."""
        return tuple(self._known.broken.values())

    def routing(self) -> dict[tuple[str, str], RoutingView]:
        """Every view of every backend, by backend and gateway; what cannot be read is left out."""
        return readable_views(self._known.values[ROUTING].values())

    def usage(self, key_id: str) -> KeyUsage | None:
        """The live totals of one key; null if there are none that can be read."""
        value = self._known.values[USAGE].get(key_id)
        if value is None:
            return None
        try:
            return usage_of(value)
        except (msgspec.DecodeError, UnicodeDecodeError, LedgerError):
            return None

    def start(self) -> None:
        """Take the snapshot, if there is one, and begin to read."""
        try:
            found = snapshot.load(self._path, self._access.prefix)
        except LogError as wrong:
            log.warning("%s", wrong)
            found = None
        if found is not None:
            for topic in FEED_TOPICS:
                for key, value in found.values.get(topic, {}).items():
                    self._known.put(topic, key, value)
            self._known.settle()
            self._as_of = found.as_of
        self._tasks = [asyncio.create_task(self._run()), asyncio.create_task(self._keep())]

    async def stop(self) -> None:
        """End the reading and write the last snapshot."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        if self._live:
            await self._save()

    def failed(self) -> BaseException | None:
        """What ended the reading although nobody had asked for it: a fault of this program."""
        for task in self._tasks:
            if task.done():
                return RuntimeError("it ended") if task.cancelled() else task.exception()
        return None

    async def _run(self) -> None:
        tries = 0
        while True:
            heard = self._as_of
            try:
                await self._follow()
            except KafkaError as wrong:
                self._lost(str(wrong))
            tries = 0 if self._as_of != heard else tries + 1
            await asyncio.sleep(AGAIN_SECONDS[min(tries, len(AGAIN_SECONDS) - 1)])

    def _lost(self, words: str) -> None:
        if self._live or words != self._fault:
            log.error("%s; going on with what is known", words)
        self._live = False
        self._given_up = True
        self._fault = words

    async def _follow(self) -> None:
        """Read everything anew, then go on until brokers are lost. Raises `KafkaError`."""
        async with reader(self._access, FEED_TOPICS, "feed") as consumer:
            await self._read_anew(consumer)
            probed = self._clock.monotonic()
            while True:
                came = await consumer.getmany(timeout_ms=POLL_MS, max_records=RECORDS_MAX)
                self._take(self._known, came.values())
                if any(self._names[partition.topic] == ROUTING for partition in came):
                    self._passed_on = self._clock.monotonic()
                if self._clock.monotonic() - probed >= PROBE_SECONDS:
                    probed = self._clock.monotonic()
                    await self._probe(consumer)

    async def _read_anew(self, consumer: AIOKafkaConsumer) -> None:
        """Read to the ends into new tables, which then take the place of the old ones: what is
        gone from the topics is gone here."""
        known = Known()
        ends = await ends_of(consumer)
        total = sum(ends.values())
        told = self._clock.monotonic()
        async for records in batches_to(consumer, ends):
            self._take(known, [records])
            self._progress = f"{known.records} records read, the end is at most {total}"
            if self._clock.monotonic() - told > PROBE_SECONDS:
                told = self._clock.monotonic()
                log.info("reading keys, backends and usage: %s", self._progress)
        for key in known.broken:
            before = self._known.values[REGISTRY].get(key)
            if before is not None:
                known.keep(key, before)
        known.settle()
        self._known = known
        self._saved = -1
        self._passed_on = self._clock.monotonic()
        self._heard()
        if self._fault is not None:
            log.warning("Kafka at %s is back; keys are up to date", self._access.where)
        self._fault = None

    def _goes_on(self) -> bool:
        """True if Kafka was waited for long enough to go on with what is known."""
        return self._given_up or self._clock.monotonic() - self._started > START_SECONDS_MAX

    def _take(
        self,
        known: Known,
        batches: Iterable[Sequence[ConsumerRecord[bytes | None, bytes | None]]],
    ) -> None:
        broken = len(known.broken)
        for records in batches:
            for record in records:
                key = None if record.key is None else _text(record.key)
                if key is not None:
                    known.put(self._names[record.topic], key, record.value)
        known.settle()
        if len(known.broken) > broken:
            log.error("%s; what was known of it before stands", list(known.broken.values())[-1])

    async def _probe(self, consumer: AIOKafkaConsumer) -> None:
        async with asyncio.timeout(PROBE_SECONDS_MAX):
            ends = await ends_of(consumer)
            places = [await consumer.position(partition) for partition in ends]
        self.lag = sum(
            max(0, end - place) for place, end in zip(places, ends.values(), strict=True)
        )
        self._heard()

    def _heard(self) -> None:
        self._as_of = self._clock.now()
        self._live = True

    async def _keep(self) -> None:
        """Write the snapshot every few seconds if something changed, else seldom."""
        written = self._clock.monotonic()
        while True:
            await asyncio.sleep(SNAPSHOT_SECONDS)
            now = self._clock.monotonic()
            idle = self._saved == self._known.records
            if not self._live or (idle and now - written < SNAPSHOT_IDLE_SECONDS):
                continue
            written = now
            await self._save()

    async def _save(self) -> None:
        known, as_of = self._known, self._as_of
        assert as_of is not None, "only what was heard is kept"
        records = known.records
        try:
            await snapshot.save(self._path, self._access.prefix, as_of, known.values)
        except LogError as wrong:
            log.error("%s; a start with Kafka away would know only what is there", wrong)
        self._saved = records


def duration(seconds: float) -> str:
    """A length of time for a person."""
    for size, word in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {word}"
    return f"{seconds:.0f} s"


def _text(key: bytes) -> str | None:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return None
