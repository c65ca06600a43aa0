"""How fast `tollbook worker` folds what waits on Kafka, with its CPU and memory on the way."""

import asyncio
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from aiokafka import AIOKafkaConsumer, TopicPartition

from ledger.events import Event
from streams.kafka.access import KafkaAccess, consumer_options
from streams.kafka.read import stop
from tests.streams.topics_house import produce
from tests.streams.worker_house import worker_process
from tests.support import events
from tests.support.kafka import access_to, running_broker
from tests.support.processes import wait_until

KEYS: Final = 50
CHUNK: Final = 10_000
SECONDS_MAX: Final = 600.0


def bench_worker(count: int) -> None:
    """Put `count` events of requests onto Kafka, then start a worker and watch it."""
    with running_broker() as broker, tempfile.TemporaryDirectory() as folder:
        access = access_to(broker, partitions=6)
        asyncio.run(fill(access, count))
        worker = worker_process(access, Path(folder))
        try:
            wait_until("the worker has begun", lambda: asyncio.run(worked_off(access)) > 0)
            first, began, used = (
                asyncio.run(worked_off(access)),
                time.perf_counter(),
                cpu(worker.pid),
            )
            early = memory_mib(worker.pid)
            wait_until("all is folded", lambda: finished(access, count), SECONDS_MAX)
            seconds, used = time.perf_counter() - began, cpu(worker.pid) - used
            print(
                f"worker: {(count - first) / seconds:,.0f} events/s of wall clock, "
                f"{(count - first) / used:,.0f} per CPU second; resident {early:.0f} MiB after "
                f"{first:,} events, {memory_mib(worker.pid):.0f} MiB after {count:,}"
            )
        finally:
            worker.stop()


async def fill(access: KafkaAccess, count: int) -> None:
    """`count` events of whole requests, spread over `KEYS` keys."""
    made = lives()
    for start in range(0, count, CHUNK):
        await produce(access, [next(made) for _ in range(min(CHUNK, count - start))])


def lives() -> Iterator[Event]:
    scribe = events.Scribe()
    number = 0
    while True:
        number += 1
        for draft in events.life(f"r{number}", key_id=f"key-{number % KEYS}"):
            if draft.payload.TOPIC == "requests":
                yield scribe.write(draft)


def finished(access: KafkaAccess, count: int) -> bool:
    """True once all is committed; asked seldom, because asking costs the same cores."""
    time.sleep(1)
    return asyncio.run(worked_off(access)) >= count


async def worked_off(access: KafkaAccess) -> int:
    """How many records of requests the worker's group has committed."""
    consumer = AIOKafkaConsumer(
        **consumer_options(access, "bench"), group_id=access.group("worker")
    )
    await consumer.start()
    try:
        topic = access.topic("requests")
        places = [
            await consumer.committed(TopicPartition(topic, number))
            for number in range(access.partitions)
        ]
    finally:
        await stop(consumer)
    return sum(place or 0 for place in places)


def cpu(pid: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mib(pid: int) -> float:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
