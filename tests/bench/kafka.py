"""What each process of the Kafka mode can do: `python -m tests.bench.kafka relay [--events N]`.

On a real broker on this machine, which shares its cores with what is measured; so each figure has
the CPU of the process itself beside it. It asserts nothing: a person reads it.
"""

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ledger.clock import SystemClock
from ledger.sql.session import open_ledger
from streams.kafka.access import KafkaAccess
from streams.kafka.relay.said import Trouble
from streams.kafka.relay.window import WindowSender
from streams.kafka.relay.work import Relay
from streams.kafka.writer import KafkaWriter, WriterOptions
from streams.local.layout import Layout
from streams.local.process import collect_seldom
from streams.log.spool import SpoolWriter
from tests.bench.kafka_whole import bench_whole
from tests.bench.kafka_worker import bench_worker
from tests.streams.builders import accepted, attempted, delivered, finished
from tests.streams.topics_house import produce, until
from tests.support.events import Scribe, after, life
from tests.support.kafka import access_to, running_broker, running_postgres

EVENTS_OF_A_REQUEST: Final = 5


def fill(layout: Layout, count: int) -> tuple[SpoolWriter, int]:
    """A living spool with `count` events or a few more, of 50 keys; and how many it has."""
    layout.make()
    spool = SpoolWriter.create(
        layout.spool("bench"), "/gateway/bench/bench", clock=SystemClock(), limit_bytes=1 << 34
    )
    requests = -(-count // EVENTS_OF_A_REQUEST)
    for number in range(requests):
        rid, key = f"r{number}", f"key-{number % 50}"
        drafts = [
            accepted(rid),
            attempted(rid),
            delivered(rid, 1, 3),
            delivered(rid, 2, 9),
            finished(rid),
        ]
        spool.append(*(type(d)(d.id, key, d.time, d.payload) for d in drafts))
    return spool, requests * EVENTS_OF_A_REQUEST


async def relay(access: KafkaAccess, folder: Path, events: int) -> None:
    """Events per second from a spool to acks, with the CPU and memory of this process."""
    layout = Layout(folder)
    spool, total = fill(layout, events)
    collect_seldom()
    sender = WindowSender(access, Trouble(print))
    work = Relay(layout, access, sender, SystemClock(), say=lambda _: None, name="bench")
    # The first window finds brokers and leaders.
    await work.step()
    before = work.status(None).sent
    began, cpu = time.perf_counter(), time.process_time()
    while work.status(None).sent < total:
        await work.step()
    seconds, used = time.perf_counter() - began, time.process_time() - cpu
    done = total - before
    await work.close()
    await sender.close()
    spool.close()
    print(
        f"relay: {done / seconds:,.0f} events/s of wall clock, {done / used:,.0f} per CPU second "
        f"({1e6 * used / done:.1f} µs an event), {memory_mib():.0f} MiB resident"
    )


async def writer(access: KafkaAccess, url: str, events: int) -> None:
    """Events per second from topics to Postgres, with the CPU and memory of this process."""
    drafts = [
        draft
        for number in range(-(-events // EVENTS_OF_A_REQUEST))
        for draft in life(f"r{number}", after(number % 3600), f"key-{number % 50}")
    ]
    told = Scribe("/gateway/bench/bench").write_all(*drafts)
    requests = sum(event.topic == "requests" for event in told)
    await produce(access, told)
    # They are not the writer's memory.
    del told, drafts
    clock, stop = SystemClock(), asyncio.Event()
    work = KafkaWriter(access, url, clock, print, print, WriterOptions())
    running = asyncio.create_task(work.run(stop))
    await until(lambda: work.counts["inserted"] > 0, "the first batch is in")
    # The first batch finds the group, brokers and the ledger.
    before, began, cpu = work.counts["inserted"], time.perf_counter(), time.process_time()
    await until(lambda: work.counts["inserted"] >= requests, "all of it is in", 3600)
    seconds, used = time.perf_counter() - began, time.process_time() - cpu
    done, memory = requests - before, memory_mib()
    stop.set()
    await running
    print(
        f"writer: {done / seconds:,.0f} request events/s of wall clock, {done / used:,.0f} per CPU "
        f"second ({1e6 * used / done:.1f} µs an event, tokens not counted); this process used "
        f"{100 * used / seconds:.0f} % of a core, {memory:.0f} MiB resident"
    )


def bench_writer(events: int) -> None:
    with (
        running_broker() as broker,
        running_postgres() as postgres,
    ):
        url = postgres.create_database("bench")
        open_ledger(url).close()
        asyncio.run(writer(access_to(broker, partitions=6), url, events))


def memory_mib() -> float:
    """Resident memory of this process; 0 where there is no /proc."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def bench_relay(events: int) -> None:
    with running_broker() as broker, tempfile.TemporaryDirectory() as folder:
        asyncio.run(relay(access_to(broker, partitions=6), Path(folder), events))


PARTS: Final[dict[str, Callable[[int], None]]] = {
    "writer": bench_writer,
    "relay": bench_relay,
    "worker": bench_worker,
    "whole": bench_whole,
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.kafka", description=__doc__)
    parser.add_argument("part", choices=sorted(PARTS))
    parser.add_argument("--events", type=int, default=200_000)
    options = parser.parse_args()
    PARTS[options.part](options.events)


if __name__ == "__main__":
    main()
