"""What the tests of the ledger writer share: events onto real topics, writers, and the result."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from aiokafka import AIOKafkaProducer
from sqlalchemy import func, select

from ledger.clock import SystemClock
from ledger.events import Event
from ledger.sql import tables
from ledger.sql.hashes import projection_hash
from ledger.sql.session import open_ledger
from streams.kafka.access import KafkaAccess, producer_options
from streams.kafka.records import record_of
from streams.kafka.writer import KafkaWriter, WriterOptions

WAIT_SECONDS_MAX = 150.0
"""A bound only: a test that gets there has failed."""


async def until(
    true: Callable[[], bool | Awaitable[bool]], what: str, seconds: float = WAIT_SECONDS_MAX
) -> None:
    """Wait for something to become true."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while True:
        said = true()
        if said if isinstance(said, bool) else await said:
            return
        assert loop.time() < end, f"waited too long until {what}"
        await asyncio.sleep(0.05)


@asynccontextmanager
async def producing(access: KafkaAccess) -> AsyncIterator[AIOKafkaProducer]:
    producer = AIOKafkaProducer(**producer_options(access, "test"))
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


async def produce(access: KafkaAccess, events: Iterable[Event]) -> None:
    """Send `events` as the relay does; returns when all are acked."""
    async with producing(access) as producer:
        waiting = []
        for event in events:
            record = record_of(event)
            waiting.append(
                await producer.send(
                    access.topic(record.topic),
                    key=record.key,
                    value=record.value,
                    headers=record.headers,
                )
            )
        await asyncio.gather(*waiting)


async def produce_raw(
    access: KafkaAccess, name: str, value: bytes | None, key: bytes = b"key-1", **more: object
) -> tuple[int, int]:
    """Send a record that may be no event; its partition and offset."""
    async with producing(access) as producer:
        sent = await producer.send_and_wait(access.topic(name), value=value, key=key, **more)
    return sent.partition, sent.offset


class Running:
    """One writer at work in this process."""

    def __init__(
        self, access: KafkaAccess, target: Path | str, options: WriterOptions | None = None
    ) -> None:
        self.said: list[str] = []
        self.stalls: list[str] = []
        self.stop = asyncio.Event()
        self.writer = KafkaWriter(
            access,
            target,
            SystemClock(),
            self.said.append,
            self.stalls.append,
            options or WriterOptions(),
        )
        self.task = asyncio.create_task(self.writer.run(self.stop))

    async def end(self) -> None:
        """Stop it in order. Raises what it raised."""
        self.stop.set()
        await self.task


@asynccontextmanager
async def writing(
    access: KafkaAccess, target: Path | str, options: WriterOptions | None = None
) -> AsyncIterator[Running]:
    running = Running(access, target, options)
    try:
        yield running
    except BaseException:
        running.stop.set()
        await asyncio.gather(running.task, return_exceptions=True)
        raise
    await running.end()


class Books:
    """A ledger that is looked at from outside while writers work."""

    def __init__(self, target: Path | str) -> None:
        self.target = target
        open_ledger(target).close()

    def events(self) -> int:
        with open_ledger(self.target, readonly=True) as ledger, ledger.read() as read:
            return int(read.value(select(func.count()).select_from(tables.events)))

    def ids(self) -> set[str]:
        with open_ledger(self.target, readonly=True) as ledger, ledger.read() as read:
            return {row[0] for row in read.rows(select(tables.events.c.id))}

    def hashes(self) -> dict[str, str]:
        with open_ledger(self.target, readonly=True) as ledger, ledger.read() as read:
            return projection_hash(read)

    def positions(self) -> dict[str, int]:
        with open_ledger(self.target, readonly=True) as ledger, ledger.read() as read:
            table = tables.positions
            return {row[0]: row[1] for row in read.rows(select(table.c.log, table.c.next_offset))}

    def poison(self) -> list[tuple[str, int]]:
        with open_ledger(self.target, readonly=True) as ledger, ledger.read() as read:
            table = tables.poison
            columns = select(table.c.log, table.c.log_offset)
            return sorted((row[0], row[1]) for row in read.rows(columns))

    async def until_holds(self, count: int) -> None:
        async def holds() -> bool:
            return await asyncio.to_thread(self.events) >= count

        await until(holds, f"the ledger holds {count} events, it has {self.events()}")

    async def until_taken(self, events: Sequence[Event]) -> None:
        """Wait until every one of `events` that is kept is in."""
        wanted = {event.id for event in events if event.topic not in tables.NOT_KEPT_TOPICS}

        async def holds() -> bool:
            return wanted <= await asyncio.to_thread(self.ids)

        await until(holds, "the ledger holds every event")


def settings_file(folder: Path, access: KafkaAccess, ledger: str | None) -> Path:
    """A configuration for processes: the brokers and topics of `access`, the ledger at a URL."""
    [address] = access.bootstrap
    lines = [
        "[kafka]",
        f'bootstrap = ["{address}"]',
        f'prefix = "{access.prefix}"',
        f"partitions = {access.partitions}",
        f"replication = {access.replication}",
    ]
    if ledger is not None:
        (folder / "ledger-url").write_text(ledger)
        lines += ["[ledger]", f'url = "file:{folder / "ledger-url"}"']
    path = folder / "tollbook.toml"
    path.write_text("\n".join(lines))
    return path
