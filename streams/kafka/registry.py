"""The registry log on Kafka: one order of all changes, in one partition that is never deleted.

Every command writes into it, from any machine. Each event carries the version it was made from,
and the fold takes the first that came: so of two commands that raced one wins, and the other reads
back that it lost. What lost stays in the log and has no effect, for every reader alike.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord
from aiokafka.errors import MessageSizeTooLargeError

from ledger.clock import Clock
from ledger.errors import MalformedEvent, RegistryRefused
from ledger.events import (
    BackendChanged,
    BackendRegistered,
    BackendRemoved,
    Draft,
    Event,
    KeyIssued,
    KeyRevoked,
    Payload,
    PriceListed,
    PricePublished,
    payload_of,
)
from ledger.folds.book import Book, BookFold, Refused, fold_book
from ledger.folds.book_entries import BACKEND_PREFIX, KEY_PREFIX, PRICE_PREFIX, BookPages
from streams.codec import decode, encode
from streams.errors import CodecError, KafkaError, TopicsWrong
from streams.kafka.access import KafkaAccess, producer_options
from streams.kafka.read import POLL_MS, batches_to, ends_of, reader
from streams.kafka.records import event_of, record_of
from streams.log.registry import advance

REGISTRY: Final = "registry"
STATE: Final = "registry-state"
CHANGE_SECONDS_MAX: Final = 30.0
"""How long a command may take in all. It takes a fraction of a second where brokers are well."""
PRODUCE_MS: Final = 10_000
"""How long an event may wait for its acknowledgement before the client gives it up."""


class KafkaRegistry:
    """Reads the registry log and appends to it as `source`. One short-lived object per command."""

    def __init__(self, access: KafkaAccess, source: str, *, clock: Clock) -> None:
        self.source = source
        self._access = access
        self._clock = clock
        self._last = 0
        self._sent = False

    def read(self) -> Book:
        """Keys and prices as the log has them now. Blocks; not for a running event loop.

        Raises `KafkaError` if no broker can be reached and `UnknownEvent` for a newer version.
        """
        return asyncio.run(self.book())

    def append(self, make: Callable[[Book], Draft]) -> Book:
        """Append what `make` makes of the newest book; returns the book with it.

        `make` is called once and may raise `RegistryRefused` itself. Blocks until the event was
        read back; not for a running event loop. Raises `RegistryRefused` if the fold does not take
        the event, also where another command was faster; `KafkaError` if brokers cannot be
        reached, and `UnknownEvent` for a log with events of a newer version: nothing is changed
        then, unless the message says that it is not known.
        """
        return asyncio.run(self.change(make))

    def passed_on(self, said: Payload, seconds: float) -> bool:
        """True as soon as gateways can read the change `said`, which was appended; false if no
        worker has passed it on within `seconds`, or that cannot be seen. Blocks."""
        try:
            return asyncio.run(_passed_on(self._access, said, seconds))
        except (TimeoutError, KafkaError, MalformedEvent):
            return False

    async def book(self) -> Book:
        """`read`, for a running event loop."""
        with self._in_time():
            async with (
                asyncio.timeout(CHANGE_SECONDS_MAX),
                reader(self._access, [REGISTRY], "registry") as consumer,
            ):
                return (await _fold(consumer)).book()

    async def change(self, make: Callable[[Book], Draft]) -> Book:
        """`append`, for a running event loop."""
        self._sent = False
        with self._in_time():
            async with (
                asyncio.timeout(CHANGE_SECONDS_MAX),
                reader(self._access, [REGISTRY], "registry") as consumer,
            ):
                fold = await _fold(consumer)
                book = fold.book()
                event = self._event(make(book))
                folded = fold_book(book, event, payload_of(event))
                if isinstance(folded, Refused):
                    raise RegistryRefused(folded.reason)
                offset = await self._produce(event)
                return await _read_back(consumer, fold, event, offset)

    def _event(self, draft: Draft) -> Event:
        self._last += 1
        return decode(encode(draft, self.source, self._last, self._clock.now()))

    async def _produce(self, event: Event) -> int:
        """Send `event`; its offset, once every copy that is in step has it."""
        record = record_of(event)
        options = producer_options(self._access, "registry") | {"request_timeout_ms": PRODUCE_MS}
        producer = AIOKafkaProducer(**options)
        try:
            await producer.start()
            self._sent = True
            said = await producer.send_and_wait(
                self._access.topic(REGISTRY),
                record.value,
                key=record.key,
                headers=record.headers,
                partition=0,
            )
        except MessageSizeTooLargeError as wrong:
            raise RegistryRefused(f"this change is too large to be recorded: {wrong}") from wrong
        finally:
            await producer.stop()
        return int(said.offset)

    @contextmanager
    def _in_time(self) -> Iterator[None]:
        """Say of every failure of Kafka whether something may have changed."""
        try:
            yield
        except TopicsWrong:
            raise
        except (KafkaError, TimeoutError) as wrong:
            said = str(wrong) or f"Kafka at {self._access.where} did not answer in time"
            if self._sent:
                raise KafkaError(
                    f"{said}; it is not known whether this change was taken: list keys or prices "
                    "before you repeat it"
                ) from wrong
            raise KafkaError(
                f"{said}; nothing was changed. Running gateways go on with the keys that they know"
            ) from wrong


async def _fold(consumer: AIOKafkaConsumer) -> BookFold:
    """Everything in the log now, and perhaps a little of what comes meanwhile."""
    fold = BookFold(Book())
    async for records in batches_to(consumer, await ends_of(consumer)):
        for record in records:
            _take(fold, record)
    return fold


async def _read_back(consumer: AIOKafkaConsumer, fold: BookFold, event: Event, offset: int) -> Book:
    """Go on from where `consumer` stands up to our own `event`, at `offset`."""
    while True:
        for records in (await consumer.getmany(timeout_ms=POLL_MS)).values():
            for record in records:
                if record.offset < offset:
                    _take(fold, record)
                    continue
                refused = fold.take(event, payload_of(event))
                if refused is None:
                    return fold.book()
                raise RegistryRefused(
                    f"another command was faster, and this one has no effect: {refused.reason}"
                )


async def _passed_on(access: KafkaAccess, said: Payload, seconds: float) -> bool:
    match said:
        case KeyIssued() | KeyRevoked():
            name = KEY_PREFIX + said.key_id
        case PricePublished():
            name = PRICE_PREFIX + said.model
        case BackendRegistered() | BackendChanged() | BackendRemoved():
            name = BACKEND_PREFIX + said.backend_id
        case PriceListed():
            name = PRICE_PREFIX + said.entries[0].model
        case _:
            return True  # gateways need not know of it
    pages = BookPages()
    async with asyncio.timeout(seconds), reader(access, [STATE], "registry") as consumer:
        while True:
            for records in (await consumer.getmany(timeout_ms=POLL_MS)).values():
                for record in records:
                    if record.key == name.encode():
                        pages.put(name, record.value)
            book = pages.book()
            if isinstance(said, PriceListed):
                if any(price.price_id == said.entries[0].price_id for price in book.prices):
                    return True
                continue
            known = [key.version for key in book.keys.values()]
            known += [price.version for price in book.prices]
            known += [server.version for server in book.backends.values()]
            if max(known, default=0) >= said.version:
                return True


def _take(fold: BookFold, record: ConsumerRecord[bytes | None, bytes | None]) -> None:
    try:
        event = event_of(record.headers, record.value)
    except CodecError:
        # Poison: the ledger writer sets it aside, and every reader passes it over in the same way.
        return
    advance(fold, event)
