"""Keys and prices as one serving process knows them: from the log on this disk, or from Kafka."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from gateway.errors import Overloaded
from ledger.errors import LedgerError
from ledger.folds.book import Book
from ledger.folds.routing import RoutingView
from streams.errors import StreamsError
from streams.local.routed import RoutedFile
from streams.log.registry import RegistryTail

log = logging.getLogger("tollbook.gateway")

Gauge = tuple[str, str, dict[str, str], float]


class Registry(Protocol):
    """What serving asks of the registry. All of it is called in the event loop and is cheap."""

    def start(self) -> None:
        """Begin to follow it."""
        ...

    async def stop(self) -> None:
        """End what `start` began."""
        ...

    def poll(self) -> None:
        """Called a few times a second. Raises only for a fault of this program."""
        ...

    def book(self) -> Book:
        """The newest that is known. Raises `Overloaded` while nothing may be served from it."""
        ...

    def waiting_for(self) -> Sequence[str]:
        """What is missing before new requests are welcome, in words."""
        ...

    def notes(self) -> Sequence[str]:
        """What somebody should know although nothing is missing."""
        ...

    def gauges(self) -> Iterable[Gauge]:
        """Its metrics."""
        ...

    def routing(self) -> Iterable[RoutingView]:
        """What all gateways said last of all backends, this one before it ended too."""
        ...

    def routing_complete(self) -> bool:
        """True if `routing` gives all there is, and not only what a snapshot had."""
        ...


class LocalRegistry:
    """The registry log in the data directory, and the views that its runner keeps in a file. What
    is known stays while it cannot be read."""

    def __init__(self, tail: RegistryTail, routed: RoutedFile) -> None:
        self._tail = tail
        self._routed = routed
        self._fault: str | None = None

    def start(self) -> None:
        self._routed.start()
        self.poll()

    async def stop(self) -> None:
        return

    def poll(self) -> None:
        try:
            self._tail.poll()
        except (StreamsError, LedgerError) as wrong:
            # Known keys go on working; the fault is shown at /health/ready and in the log once.
            if self._fault != str(wrong):
                log.error("the registry cannot be read: %s", wrong)
            self._fault = str(wrong)
        else:
            self._fault = None

    def book(self) -> Book:
        return self._tail.book

    def waiting_for(self) -> Sequence[str]:
        return () if self._fault is None else (f"the registry: {self._fault}",)

    def notes(self) -> Sequence[str]:
        return ()

    def gauges(self) -> Iterable[Gauge]:
        return ()

    def routing(self) -> Iterable[RoutingView]:
        return self._routed.views().values()

    def routing_complete(self) -> bool:
        return True


class Feed(Protocol):
    """What is asked of `streams.kafka.feed.Feed`, which is imported only where Kafka is set."""

    lag: int

    @property
    def book(self) -> Book: ...
    @property
    def live(self) -> bool: ...
    @property
    def ready(self) -> bool: ...
    def start(self) -> None: ...
    async def stop(self) -> None: ...
    def failed(self) -> BaseException | None: ...
    def waiting_for(self) -> str | None: ...
    def note(self) -> str | None: ...
    def faults(self) -> Sequence[str]: ...
    def age_seconds(self) -> float | None: ...
    def routing(self) -> Mapping[tuple[str, str], RoutingView]: ...


class KafkaFed:
    """The registry as it comes from Kafka, and from a snapshot while Kafka is away."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed

    def start(self) -> None:
        self.feed.start()

    async def stop(self) -> None:
        await self.feed.stop()

    def poll(self) -> None:
        failed = self.feed.failed()
        if failed is not None:
            raise failed

    def book(self) -> Book:
        if not self.feed.ready:
            raise Overloaded(
                "The gateway does not know the API keys at this moment: it waits for "
                f"{self.feed.waiting_for()}. Try again soon.",
                code="registry_unavailable",
            )
        return self.feed.book

    def waiting_for(self) -> Sequence[str]:
        waiting = self.feed.waiting_for()
        return () if waiting is None else (waiting,)

    def notes(self) -> Sequence[str]:
        note = self.feed.note()
        return (*(() if note is None else (note,)), *self.feed.faults())

    def gauges(self) -> Iterable[Gauge]:
        age = self.feed.age_seconds()
        yield "tollbook_feed_live", "1 while keys come from Kafka.", {}, self.feed.live
        yield "tollbook_feed_lag_records", "Records of the feed not read yet.", {}, self.feed.lag
        if age is not None:
            yield "tollbook_feed_age_seconds", "Since Kafka was last heard of.", {}, age

    def routing(self) -> Iterable[RoutingView]:
        return self.feed.routing().values()

    def routing_complete(self) -> bool:
        return self.feed.live
