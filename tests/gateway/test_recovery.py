"""Backends that fail and come back, over real sockets: a pool, a relay and a prober, and fakes."""

import asyncio
import contextlib
import os
import resource
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from gateway import prober as probers
from gateway.backends import pool as pools
from gateway.backends.http import HttpClient
from gateway.backends.pool import Backend, Pool
from gateway.backends.port import BackendFailed
from gateway.call import Call
from gateway.errors import ApiError
from gateway.prober import Nowhere, Prober
from gateway.relay import Relay
from gateway.routing import breaker as rule
from gateway.settings import TimeoutSettings
from gateway.stats import Stats
from gateway.wire.endpoints import CHAT
from gateway.wire.requests import asked
from ledger.clock import SystemClock
from ledger.identity import mint_id
from streams.log.memory import MemoryJournal
from tests.support.fake_backend import KEY, FakeBackend, fake_backend

PROBE_SECONDS = 0.1
SOON_SECONDS = 5.0


class Clinic:
    """Everything but the doors, with backends `b-1`, `b-2`, … behind it."""

    def __init__(self, urls: list[str], limits: TimeoutSettings) -> None:
        self.clock, self.stats = SystemClock(), Stats()
        self.client = HttpClient(connect_seconds=1)
        self.journal = MemoryJournal("/gateway/test/1", clock=self.clock)
        backends = [
            Backend(f"b-{n}", url, key=KEY, engine=None, models=None, any_model=False)
            for n, url in enumerate(urls, start=1)
        ]
        self.pool = Pool(backends, self.client, self.clock)
        self.relay = Relay(
            self.journal,
            self.pool,
            self.client,
            self.clock,
            limits,
            self.stats,
            wait_durable=False,
        )
        self.prober = Prober(self.relay, self.pool, self.journal, self.clock, self.stats, seconds=0)
        self.pool.generate = self.prober.revive

    def __getitem__(self, backend_id: str) -> Backend:
        return self.pool.backends[backend_id]

    async def ask(self, body: str = '{"model":"fake"}') -> tuple[str | None, int]:
        """One request: who answered last, and with which status."""
        data = body.encode()
        now = self.clock.monotonic()
        call = Call(
            f"req_{mint_id()}", "key-1", CHAT, asked(data), now, asyncio.current_task(), body=data
        )
        reply = Nowhere()
        try:
            await self.relay.serve(call, {"content-type": "application/json"}, reply)
        except ApiError as error:
            reply.status = error.status
        return None if call.backend is None else call.backend.backend_id, reply.status

    async def until(self, what: str, true: Callable[[], object]) -> None:
        for _ in range(int(SOON_SECONDS / 0.01)):
            if true():
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"not within {SOON_SECONDS} s: {what}")


@asynccontextmanager
async def clinic(*urls: str, **limits: float) -> AsyncIterator[Clinic]:
    made = Clinic(list(urls), TimeoutSettings(**limits))
    await made.pool.start()

    async def beat() -> None:
        while True:
            made.relay.tick()
            await asyncio.sleep(0.02)

    beating = asyncio.create_task(beat())
    try:
        yield made
    finally:
        made.prober.end()
        beating.cancel()
        await made.pool.stop()
        await made.client.close()
        for backend in made.pool.backends.values():
            assert (backend.in_flight, backend.breaker.trials) == (0, 0)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "PROBE_SECONDS", PROBE_SECONDS)
    monkeypatch.setattr(pools, "PROBE_SECONDS_MAX", 0.5)


def state(backend: Backend) -> str:
    """Asked anew each time: tasks change it."""
    return backend.breaker.state


def up(backend: Backend) -> bool:
    return backend.up


def breaks(fake: FakeBackend, script: str) -> None:
    """From now on it treats every request by `script`, though it lists its models as before."""
    fake.next(*[script] * 500)


def mends(fake: FakeBackend) -> None:
    fake.counts.next.clear()


async def test_one_that_was_gone_has_trials_within_a_probe_and_then_its_share() -> None:
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(fake_backend(name="one"))
        async with fake_backend(name="two") as two:
            port = two.port
            made = await stack.enter_async_context(clinic(one.url, two.url))
            assert {(await made.ask())[0] for _ in range(40)} == {"b-1", "b-2"}
        # Gone: whoever comes meanwhile is answered by the other one, and only one request tries.
        assert Counter([await made.ask() for _ in range(40)]) == {("b-1", 200): 40}
        assert state(made["b-2"]) == "open"
        assert made.stats.attempts_failed["b-2", "unreachable"] <= 1
        await asyncio.sleep(3 * PROBE_SECONDS)
        again = await stack.enter_async_context(fake_backend(name="two", port=port))
        await made.until("it is on trial", lambda: state(made["b-2"]) == "half_open")
        assert [(await made.ask())[0] for _ in range(2)] == ["b-2", "b-2"], "trials come first"
        assert state(made["b-2"]) == "closed"
        assert again.calls and not made["b-2"].in_flight
        share = rule.share(made["b-2"].breaker, made.clock.monotonic())
        assert share < 0.3, "and not all at once"
        few = Counter([(await made.ask())[0] for _ in range(60)])
        assert few["b-2"] < few["b-1"] / 2


async def test_trials_are_few_however_many_wait() -> None:
    async with (
        fake_backend(name="one") as one,
        fake_backend(name="two") as two,
        clinic(one.url, two.url) as made,
    ):
        backend = made["b-2"]
        backend.faulty("gone", made.clock.monotonic(), sure=True)
        await made.until("it is on trial", lambda: state(backend) == "half_open")
        breaks(two, "d300")
        asking = [asyncio.create_task(made.ask()) for _ in range(40)]
        await asyncio.sleep(0.1)
        assert backend.in_flight == backend.breaker.trials == rule.TRIALS
        await asyncio.gather(*asking)


@pytest.mark.parametrize("script", ["e500", "e503", "h1", "e401", "k0"])
async def test_one_that_lists_its_models_and_answers_nobody_is_dead_until_a_token_comes(
    script: str,
) -> None:
    """As an engine that died behind a server whose /health says 200."""
    async with (
        fake_backend(name="one") as one,
        fake_backend(name="two") as two,
        clinic(one.url, two.url, first_byte_seconds=0.3) as made,
    ):
        breaks(two, script)
        body = '{"model":"fake","stream":true}' if script == "k0" else '{"model":"fake"}'
        backend = made["b-2"]
        for _ in range(60):
            await made.ask(body)
            if state(backend) == "open":
                break
        assert state(backend) == "open" and backend.listed
        assert backend.failures == rule.IN_A_ROW
        rung = "key" if script == "e401" else "generation"
        await made.until("a token was asked for", lambda: backend.rung == rung)
        await asyncio.sleep(3 * PROBE_SECONDS)
        assert not up(backend), "it lists its models all the time"
        assert "its /health answers 200" in str(backend.fault)
        served = len(two.calls)
        assert {(await made.ask(body))[0] for _ in range(10)} == {"b-1"}
        assert len(two.calls) - served <= 2, "probes only"
        mends(two)
        await made.until("it is on trial", lambda: state(backend) == "half_open")
        assert up(backend) and backend.fault is None
        assert {(await made.ask())[0] for _ in range(2)} == {"b-2"}
        assert state(backend) == "closed"


async def test_faults_of_clients_open_nothing() -> None:
    async with fake_backend(name="one") as one, clinic(one.url) as made:
        backend = made["b-1"]
        before = backend.breaker
        for status in (400, 404, 413, 422, 429, 501):
            breaks(one, f"e{status}")
            for _ in range(100):
                assert (await made.ask())[1] == status
            mends(one)
        assert backend.breaker == before and not backend.failures and up(backend)


async def test_a_client_who_leaves_opens_nothing() -> None:
    async with fake_backend(name="one") as one, clinic(one.url) as made:
        breaks(one, "d5000")
        for _ in range(5):
            task = asyncio.create_task(made.ask())
            await made.until("it waits", lambda: made.relay.open)
            (call,) = made.relay.open.values()
            made.relay.client_gone(call)
            await task
        assert state(made["b-1"]) == "closed" and not made["b-1"].failures


async def leaves(made: Clinic) -> None:
    """A client asks, and is gone before it has anything."""
    known = set(made.relay.open)
    task = asyncio.create_task(made.ask())
    await made.until("it waits", lambda: made.relay.open.keys() - known)
    (name,) = made.relay.open.keys() - known
    made.relay.client_gone(made.relay.open[name])
    await task


async def test_one_that_hangs_is_found_though_no_client_waits_for_its_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probers, "GENERATION_SECONDS_MAX", 0.3)
    async with fake_backend(name="one") as one, clinic(one.url) as made:
        backend = made["b-1"]
        breaks(one, "d5000")
        await leaves(made)
        await made.until("a token was asked for", lambda: state(backend) == "open")
        assert backend.rung == "generation" and up(backend) is False
        mends(one)
        await made.until("it is on trial", lambda: state(backend) == "half_open")


async def test_one_that_is_busy_with_others_is_not_shut_for_a_client_who_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probers, "GENERATION_SECONDS_MAX", 0.3)
    async with fake_backend(name="one") as one, clinic(one.url) as made:
        backend = made["b-1"]
        breaks(one, "d5000")
        await leaves(made)
        await made.until("a token was asked for", lambda: made.relay.open)
        backend.answered(None, made.clock.monotonic())
        await made.until("it did not come", lambda: not made.relay.open)
        await asyncio.sleep(3 * PROBE_SECONDS)
        assert (state(backend), backend.unheard_since) == ("closed", None)
        asked = len(one.calls)
        await asyncio.sleep(0.5 + 3 * PROBE_SECONDS)
        assert len(one.calls) == asked, "once for those who left, and not again and again"


async def test_a_list_that_is_late_does_not_shut_one_that_answers() -> None:
    async with fake_backend(name="one") as one, clinic(one.url) as made:
        backend, now = made["b-1"], made.clock.monotonic
        slow = BackendFailed("slow", "no answer within 5 s")

        async def late(*_: object, **__: object) -> tuple[int, bytes]:
            raise slow

        made.client.fetch = late  # type: ignore[method-assign]
        backend.answered(None, now())
        await asyncio.sleep(2 * PROBE_SECONDS)
        assert up(backend), "it answered a request meanwhile"
        await made.until("it is silent for too long", lambda: not up(backend))
        assert (backend.rung, backend.fault) == ("list", "no answer within 5 s")


async def test_a_gateway_without_file_descriptors_says_nothing_of_its_backends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with fake_backend() as fake, clinic(fake.url) as made:
        asked: list[str] = []

        async def fetch(*_: object, **__: object) -> tuple[int, bytes]:
            asked.append("again")
            raise BackendFailed("own_limit", "no file descriptor is left")

        monkeypatch.setattr(made.client, "fetch", fetch)
        await made.until("it was asked", lambda: len(asked) > 1)
        assert (state(made["b-1"]), up(made["b-1"])) == ("closed", True)


async def test_no_file_descriptor_is_told_from_no_backend() -> None:
    client = HttpClient(connect_seconds=1)
    backend = Backend("b", "http://127.0.0.1:9", key=None, engine=None, models=None, any_model=True)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []
    try:
        highest = max(int(name) for name in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 8, limits[1]))
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        with pytest.raises(BackendFailed) as failed:
            await client.fetch(backend, "/v1/models", seconds=1)
        assert failed.value.reason == "own_limit"
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        await client.close()


async def test_a_fault_of_ours_leaves_no_backend_unwatched() -> None:
    async with fake_backend(name="one") as one, clinic(one.url) as made:
        fetch, fails = made.client.fetch, True

        async def broken(*args: object, **more: object) -> tuple[int, bytes]:
            if fails:
                raise ZeroDivisionError
            return await fetch(*args, **more)  # type: ignore[arg-type]

        made.client.fetch = broken  # type: ignore[method-assign]
        made["b-1"].failed("gone")
        await asyncio.sleep(3 * PROBE_SECONDS)
        fails = False
        await made.until("it is asked again", lambda: up(made["b-1"]))
