"""Carries an embedded ledger to Kafka, and from there into the ledger that gateways will share.

It sends every event as a relay would, in a fixed order, and writes down how far it is after each
window that brokers have acked, so it may be stopped at any moment and started again: what is sent
twice counts once. Then it takes the topics into the new ledger as one more writer of the group, and
compares the two.
"""

import asyncio
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
from aiokafka import AIOKafkaConsumer

from ledger.clock import Clock, to_us
from ledger.events import Event
from ledger.sql.carry import counted, events_after, noted_events, registry_after
from ledger.sql.hashes import projection_hash
from ledger.sql.names import KINDS, names_of, set_name
from ledger.sql.session import Ledger, open_ledger
from ledger.sql.writer import position
from streams.errors import KafkaError, StreamStopped
from streams.kafka.access import KafkaAccess
from streams.kafka.admin import create_topics
from streams.kafka.portions import Partition
from streams.kafka.read import ends_of, in_words, reader
from streams.kafka.records import record_of
from streams.kafka.relay.cursor import replace
from streams.kafka.relay.said import Trouble
from streams.kafka.relay.window import Outgoing, WindowSender
from streams.kafka.writer import KafkaWriter, WriterOptions
from streams.topics import LEDGER_TOPICS

CURSOR: Final = "move.json"
"""In the data directory: how far a move is; after it, that there was one and where to."""

ROLE: Final = "move"
WINDOW: Final = 2000
LOOK_SECONDS: Final = 0.5

Say = Callable[[str], None]
Step = Callable[[str, int, int], None]
"""Told which part is at work, how much is done, and of how much."""


class Cursor(msgspec.Struct):
    """How far a move to `kafka` is: the registry's place, and the last other event sent."""

    kafka: str
    place: int = 0
    last: tuple[str, str, int] | None = None
    sent: int = 0
    done: bool = False


class Moved(msgspec.Struct, frozen=True):
    """What a move did: events carried in all, and the hash of each projection in both ledgers."""

    events: int
    before: dict[str, str]
    after: dict[str, str]

    @property
    def parted(self) -> tuple[str, ...]:
        """The projections in which the two ledgers differ. Empty: all is as it was."""
        return tuple(name for name, was in self.before.items() if self.after[name] != was)


def read_cursor(data: Path) -> Cursor | None:
    """How far a move of the data directory `data` is; null if none was begun."""
    try:
        return msgspec.json.decode((data / CURSOR).read_bytes(), type=Cursor)
    except FileNotFoundError:
        return None


class Mover:
    """One move of the embedded ledger `source` in the directory `data`.

    The caller keeps everybody else from `data`, and closes `source`. `target` is the new ledger's
    address.
    """

    def __init__(
        self,
        data: Path,
        source: Ledger,
        access: KafkaAccess,
        target: Path | str,
        clock: Clock,
        say: Say,
        step: Step = lambda what, done, total: None,
    ) -> None:
        self._data = data
        self._source = source
        self._access = access
        self._target = target
        self._clock = clock
        self._say = say
        self._step = step
        self._cursor = Cursor(f"{access.where} {access.prefix}")
        self._sender = WindowSender(access, Trouble(say))

    async def run(self) -> Moved:
        """Carry everything, wait until the new ledger has it, and compare.

        Raises `KafkaError` for an installation that has events of its own, or if brokers cannot
        take or give; then it goes on where it stopped when it is run again.
        """
        await create_topics(self._access)
        with open_ledger(self._target) as target:
            await self._begin(target)
            with self._source.read() as read:
                total, _ = counted(read)
                await self._send_all(total)
                await self._until_taken(target)
                noted = noted_events(read)
                if noted:
                    # Only now: what was set aside must not come before what it contradicts.
                    await self._send(noted)
                    await self._until_taken(target)
                before = projection_hash(read)
                self._carry_names(target)
            with target.read() as read:
                after = projection_hash(read)
        moved = Moved(total, before, after)
        if not moved.parted:
            self._cursor.done = True
            self._save()
        return moved

    async def close(self) -> None:
        """Let go of the connections."""
        await self._sender.close()

    async def _begin(self, target: Ledger) -> None:
        """Go on with a move that was begun, or see that the new installation is empty."""
        begun = read_cursor(self._data)
        if begun is not None:
            if begun.kafka != self._cursor.kafka:
                raise KafkaError(
                    f"a move of {self._data} to {begun.kafka} was begun; give the same --kafka and "
                    f"prefix to go on, or delete {self._data / CURSOR} to begin anew elsewhere"
                )
            self._cursor = begun
            return
        ends = await self._ends()
        with target.read() as read:
            held, _ = counted(read)
        if held or any(ends.values()):
            raise KafkaError(
                f"the installation {self._cursor.kafka} has events of its own ({held:,} in its "
                "ledger), and keys and prices of two installations cannot become one; give a "
                "kafka.prefix and a ledger that are new, nothing was changed"
            )
        self._save()

    async def _send_all(self, total: int) -> None:
        cursor = self._cursor
        with self._source.read() as read:
            for run in registry_after(read, cursor.place):
                await self._send(run)
                cursor.place += len(run)
                self._went(len(run), total)
            for run in events_after(read, cursor.last):
                for start in range(0, len(run), WINDOW):
                    window = run[start : start + WINDOW]
                    await self._send(window)
                    last = window[-1]
                    cursor.last = (last.source, last.topic, last.sequence)
                    self._went(len(window), total)

    def _went(self, count: int, total: int) -> None:
        self._cursor.sent += count
        self._save()
        self._step("sending events to Kafka", self._cursor.sent, total)

    async def _send(self, events: Sequence[Event]) -> None:
        refused = await self._sender.send([self._outgoing(event) for event in events])
        for index, reason in refused.items():
            raise KafkaError(
                f"Kafka refuses {events[index].name} of {events[index].topic}: {reason}; raise the "
                "broker's limit and repeat the command, it goes on where it stopped"
            )

    def _outgoing(self, event: Event) -> Outgoing:
        record = record_of(event)
        return Outgoing(
            self._access.topic(record.topic),
            record.key,
            record.value,
            record.headers,
            to_us(event.recordedtime) // 1000,
        )

    async def _until_taken(self, target: Ledger) -> None:
        """Be a writer until the new ledger stands where Kafka's topics end now."""
        ends = await self._ends()
        stop = asyncio.Event()
        stalls: list[str] = []
        # What was set aside in the old ledger is so in the new one, however much of it there is.
        options = WriterOptions(poison_per_minute=sys.maxsize)
        writer = KafkaWriter(
            self._access, self._target, self._clock, self._say, stalls.append, options
        )
        task = asyncio.create_task(writer.run(stop))
        try:
            while True:
                taken = await asyncio.to_thread(_taken, target, ends)
                self._step("taking them into the ledger", taken, sum(ends.values()))
                if taken >= sum(ends.values()):
                    break
                await asyncio.wait({task}, timeout=LOOK_SECONDS)
                if task.done():
                    task.result()
                if stalls or writer.halted():
                    raise StreamStopped(
                        "the new ledger does not take all of it: "
                        f"{'; '.join([*stalls, *writer.halted()])}"
                    )
        finally:
            stop.set()
            await asyncio.gather(task, return_exceptions=True)

    async def _ends(self) -> dict[str, int]:
        """The end of each log that the ledger takes, by its name in the ledger."""
        names = {self._access.topic(name): name for name in LEDGER_TOPICS}
        async with reader(self._access, LEDGER_TOPICS, ROLE) as consumer:
            ends = await self._asked(consumer)
        return {
            Partition(topic, number, names[topic]).log: end for (topic, number), end in ends.items()
        }

    async def _asked(self, consumer: AIOKafkaConsumer) -> dict[tuple[str, int], int]:
        with in_words(self._access):
            return {tuple(place): end for place, end in (await ends_of(consumer)).items()}

    def _carry_names(self, target: Ledger) -> None:
        with self._source.read() as read:
            named = {kind: names_of(read, kind) for kind in KINDS}
        with target.write() as tx:
            for kind, names in named.items():
                for of, name in names.items():
                    set_name(tx, kind, of, name)

    def _save(self) -> None:
        replace(self._data / CURSOR, msgspec.json.encode(self._cursor))


def _taken(target: Ledger, ends: dict[str, int]) -> int:
    """How many of the records before `ends` the ledger has taken."""
    with target.read() as read:
        return sum(min(position(read, log), end) for log, end in ends.items())
