"""How fast `tollbook worker` folds what waits on Kafka, with its CPU and memory on the way."""

import asyncio
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ledger.events import Event, RequestFinished
from streams.kafka.access import KafkaAccess
from tests.streams.topics_house import produce
from tests.streams.worker_house import usages, worker_process
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
        wanted = asyncio.run(fill(access, count))
        worker = worker_process(access, Path(folder))
        try:
            wait_until("the worker has begun", lambda: ended(access) > 0)
            first, began, used = ended(access), time.perf_counter(), cpu(worker.pid)
            early = memory_mib(worker.pid)
            wait_until("all is folded", lambda: ended(access) >= wanted, SECONDS_MAX)
            seconds, used = time.perf_counter() - began, cpu(worker.pid) - used
            done = (wanted - first) * count / wanted
            print(
                f"worker: {done / seconds:,.0f} events/s of wall clock, {done / used:,.0f} per CPU "
                f"second; resident {early:.0f} MiB at the start, {memory_mib(worker.pid):.0f} MiB "
                f"after {count:,} events"
            )
        finally:
            worker.stop()


async def fill(access: KafkaAccess, count: int) -> int:
    """`count` events of whole requests, spread over `KEYS` keys; how many requests end in them."""
    made, ends = lives(), 0
    for start in range(0, count, CHUNK):
        part = [next(made) for _ in range(min(CHUNK, count - start))]
        ends += sum(event.type == RequestFinished.TYPE for event in part)
        await produce(access, part)
    return ends


def lives() -> Iterator[Event]:
    scribe = events.Scribe()
    number = 0
    while True:
        number += 1
        for draft in events.life(f"r{number}", key_id=f"key-{number % KEYS}"):
            if draft.payload.TOPIC == "requests":
                yield scribe.write(draft)


def ended(access: KafkaAccess) -> int:
    """Requests with an end in the live totals; asked seldom, because it costs the same cores."""
    time.sleep(0.5)
    return sum(usage.ended for usage in usages(access).values())


def cpu(pid: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mib(pid: int) -> float:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
