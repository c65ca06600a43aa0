"""A few events of a command to Kafka, each acknowledged before the next goes out."""

import asyncio
from collections.abc import Sequence
from typing import Final

from aiokafka import AIOKafkaProducer

from ledger.clock import Clock
from ledger.events import Draft, Event
from streams.codec import decode, encode
from streams.errors import KafkaError
from streams.kafka.access import KafkaAccess, producer_options
from streams.kafka.read import hush, in_words
from streams.kafka.records import record_of

SEND_SECONDS_MAX: Final = 60.0
"""How long a command waits for all of its acknowledgements."""


def numbered(drafts: Sequence[Draft], source: str, clock: Clock) -> list[Event]:
    """`drafts` as the first events of `source`, which is new: a sequence for each topic from 1."""
    last: dict[str, int] = {}
    events = []
    for draft in drafts:
        topic = draft.payload.TOPIC
        last[topic] = last.get(topic, 0) + 1
        events.append(decode(encode(draft, source, last[topic], clock.now())))
    return events


def send_events(access: KafkaAccess, events: Sequence[Event]) -> None:
    """Send `events` in their order. Blocks until every copy in step has them; not for a running
    event loop. Raises `KafkaError`; then the first of them may have been taken."""
    asyncio.run(_send(access, events))


async def _send(access: KafkaAccess, events: Sequence[Event]) -> None:
    hush()
    try:
        with in_words(access):
            async with asyncio.timeout(SEND_SECONDS_MAX):
                await _send_all(access, events)
    except TimeoutError as wrong:
        raise KafkaError(f"Kafka at {access.where} did not answer in time") from wrong


async def _send_all(access: KafkaAccess, events: Sequence[Event]) -> None:
    producer = AIOKafkaProducer(**producer_options(access, "command"))
    try:
        await producer.start()
        for event in events:
            record = record_of(event)
            await producer.send_and_wait(
                access.topic(record.topic), record.value, key=record.key, headers=record.headers
            )
    finally:
        await producer.stop()
