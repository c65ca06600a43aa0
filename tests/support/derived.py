"""Values of derived topics, written past the worker, for tests of those who read them."""

import asyncio
from collections.abc import Mapping

from aiokafka import AIOKafkaProducer

from streams.kafka.access import KafkaAccess, producer_options


async def put(access: KafkaAccess, topic: str, values: Mapping[str, bytes | None]) -> None:
    """Write `values` by key into a derived topic; null is a tombstone."""
    producer = AIOKafkaProducer(**producer_options(access, "test"))
    await producer.start()
    try:
        sent = [
            await producer.send(access.topic(topic), value, key=key.encode())
            for key, value in values.items()
        ]
        await asyncio.gather(*sent)
    finally:
        await producer.stop()
