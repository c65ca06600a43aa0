"""From an answer's last byte to its row in the shared ledger, with everything on this machine."""

import asyncio
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
import psycopg

from ledger.clock import SystemClock, to_us
from tests.bench import machinery
from tests.cluster.world import Cluster
from tests.kill.world import Fleet
from tests.support.fake_backend import KEY
from tests.support.kafka import access_to, running_broker, running_postgres
from tests.support.processes import descendants, free_port

RATES: Final = (150, 300, 450, 600, 800, 1000)
SECONDS: Final = 15.0
BEHIND_SECONDS_MAX: Final = 2.0
WINDOW_SECONDS: Final = 5.0
"""How far back the watch looks: all rows at each look would be the load."""
POLL_SECONDS: Final = 0.1


class _Server(msgspec.Struct):
    url: str


def bench_whole(_: int) -> None:
    """Raise the rate until the ledger is more than two seconds behind an answer (p99)."""
    machinery.build()
    with ExitStack() as stack:
        broker = stack.enter_context(running_broker())
        postgres = stack.enter_context(running_postgres())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        backend: Any = _Server(stack.enter_context(_backend()))
        fleet = Fleet(folder, [backend], folder, {})
        url = postgres.create_database("bench")
        access = access_to(broker, partitions=6)
        cluster = stack.enter_context(Cluster(fleet, folder / "c", access, url, gateways=1))
        cluster.begin_all()
        asyncio.run(_load(cluster, 50, 3.0))
        for rate in RATES:
            if not _one_rate(cluster, rate, broker.pid, postgres.pid):
                break


def _one_rate(cluster: Cluster, rate: int, broker: int, postgres: int) -> bool:
    """Measure and print one rate; true if it is within the bound."""
    watch = _Watch(cluster.ledger_url)
    house = cluster.houses[0]
    relay = cluster.relay(house)
    assert relay is not None, "the gateway has a relay"
    parts = {
        "gateway": [house.now.pid],
        "relay": [relay],
        "writer": [cluster.roles["write"].pid],
        "worker": [cluster.roles["worker"].pid],
        "Kafka": [broker],
        "Postgres": [postgres, *descendants(postgres)],
    }
    before = {name: sum(map(_cpu, pids)) for name, pids in parts.items()}
    with watch:
        answered, seconds = asyncio.run(_load(cluster, rate, SECONDS))
        used = {name: sum(map(_cpu, pids)) - before[name] for name, pids in parts.items()}
        late = watch.all_of(answered)
    p99 = statistics.quantiles(late, n=100)[98]
    shares = ", ".join(f"{name} {100 * took / seconds:.0f} %" for name, took in used.items())
    print(
        f"{len(answered) / seconds:.0f} requests/s: in the ledger {statistics.median(late):.2f} s "
        f"(p50), {p99:.2f} s (p99) after the answer; of a core: {shares}",
        flush=True,
    )
    return p99 <= BEHIND_SECONDS_MAX and len(answered) / seconds > 0.9 * rate


def _cpu(pid: int) -> float:
    return machinery.cpu(pid).seconds if os.path.exists(f"/proc/{pid}/stat") else 0.0


async def _load(cluster: Cluster, rate: int, seconds: float) -> tuple[dict[str, float], float]:
    """Plain requests at `rate` a second: when each was answered, by its id; how long it took."""
    answered: dict[str, float] = {}
    key = cluster.keys[0]
    headers = {"authorization": f"Bearer {key}"}
    body = {"model": "fake-n16", "messages": [{"role": "user", "content": "hello"}]}

    async def one(session: aiohttp.ClientSession) -> None:
        url = f"{cluster.houses[0].url}/v1/chat/completions"
        async with session.post(url, json=body, headers=headers) as answer:
            await answer.read()
            assert answer.status == 200, answer.status
            answered[answer.headers["x-request-id"]] = time.monotonic()

    began = time.monotonic()
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
        asyncio.TaskGroup() as group,
    ):
        for number in range(int(rate * seconds)):
            await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
            group.create_task(one(session))
    return answered, time.monotonic() - began


class _Watch:
    """Looks into the ledger all the time, and notes when each finished request was first there."""

    def __init__(self, url: str) -> None:
        self._url = url.replace("+psycopg", "")
        self._first: dict[str, float] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> "_Watch":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopping.set()
        self._thread.join()

    def all_of(self, answered: dict[str, float]) -> list[float]:
        """By how much the ledger was behind each answer; what was not seen in time is infinite."""
        end = time.monotonic() + WINDOW_SECONDS
        while time.monotonic() < end and not answered.keys() <= self._first.keys():
            time.sleep(POLL_SECONDS)
        never = float("inf")
        return [max(0.0, self._first.get(name, never) - at) for name, at in answered.items()]

    def _work(self) -> None:
        clock = SystemClock()
        query = "SELECT request_id FROM requests WHERE state = 'finished' AND accepted_us >= %s"
        with psycopg.connect(self._url, autocommit=True) as ledger:
            while not self._stopping.wait(POLL_SECONDS):
                since = to_us(clock.now()) - int(WINDOW_SECONDS * 1e6)
                found = ledger.execute(query, (since,)).fetchall()
                now = time.monotonic()
                for (name,) in found:
                    self._first.setdefault(name, now)


@contextmanager
def _backend() -> Iterator[str]:
    """The fast fake backend, with the key that clusters use."""
    port = free_port()
    argv = [str(machinery.BIN / "fakebackend"), "-addr", f"127.0.0.1:{port}", "-key", KEY]
    with machinery.process(argv):
        url = f"http://127.0.0.1:{port}"
        machinery.wait_until("the fake backend", lambda: machinery.answers(url + "/health"))
        yield url
