"""What the tests of the relay share: a relay in this process, and what came out on the topics."""

import contextlib
from collections.abc import AsyncIterator, Iterable

from ledger.events import Event, Payload, RequestAbandoned, SourceClosed, payload_of
from streams.errors import CodecError
from streams.kafka.access import KafkaAccess
from streams.kafka.read import Read, read_to_end
from streams.kafka.records import event_of
from streams.kafka.relay.said import Trouble
from streams.kafka.relay.window import WindowSender
from streams.kafka.relay.work import Relay
from tests.streams.house import House

TOPICS = ("requests", "tokens", "sources", "backends", "counters")


@contextlib.asynccontextmanager
async def relaying(house: House, access: KafkaAccess, keep: int = 1 << 30) -> AsyncIterator[Relay]:
    """A relay that starts now. It holds no lock; at the end it dies as by `kill -9`, unless the
    test closes it."""
    sender = WindowSender(access, Trouble(house.said.append))
    relay = Relay(
        house.layout,
        access,
        sender,
        house.clock,
        say=house.said.append,
        name="test",
        keep_bytes=keep,
    )
    try:
        yield relay
    finally:
        await sender.close()
        for outbox in relay._outboxes.values():
            outbox.close()
        own = relay._spools.own
        if own is not None:
            house.die(own)
            house._spools.append(own)


async def relay_all(house: House, access: KafkaAccess, keep: int = 1 << 30) -> None:
    """What a relay does between its start and its orderly end."""
    async with relaying(house, access, keep) as relay:
        await relay.catch_up()
        await relay.close()


async def read(access: KafkaAccess, name: str) -> list[Read]:
    """Every record of a topic, partition by partition."""
    found = [record async for record in read_to_end(access, name, "test")]
    return sorted(found, key=lambda record: (record.partition, record.offset))


async def sent(access: KafkaAccess, *names: str) -> list[Event]:
    """Every event on the topics, repetitions too."""
    found = []
    for name in names or TOPICS:
        for record in await read(access, name):
            with contextlib.suppress(CodecError):
                found.append(event_of(record.headers, record.value))
    return found


def once(events: Iterable[Event]) -> dict[tuple[str, str, int], Event]:
    """`events` by their names; each name must always say the same."""
    found: dict[tuple[str, str, int], Event] = {}
    for event in events:
        name = event.source, event.topic, event.sequence
        assert found.setdefault(name, event) == event, f"{name} says two things"
    return found


def payloads(events: Iterable[Event]) -> list[Payload]:
    return [payload_of(event) for event in events]


def abandonments(events: Iterable[Event]) -> list[RequestAbandoned]:
    return [said for said in payloads(events) if isinstance(said, RequestAbandoned)]


def closings(events: Iterable[Event]) -> dict[str, SourceClosed]:
    """The closing of each source; of several the last one found."""
    found = [said for said in payloads(events) if isinstance(said, SourceClosed)]
    return {said.closed_source: said for said in found}
