"""A gateway that starts does not wait for a server that it knows to hang."""

import asyncio

from gateway.backends.http import HttpClient
from gateway.backends.pool import PROBE_SECONDS_MAX, Backend, Pool
from ledger.clock import SystemClock
from tests.gateway.doors import SOON_SECONDS
from tests.support.fake_backend import KEY, FakeBackend, fake_backend


def told(fake: FakeBackend, name: str) -> Backend:
    return Backend(name, fake.url, key=KEY, engine=None, models=None, any_model=False)


def is_up(backend: Backend) -> bool:
    """Asked anew each time: tasks change it."""
    return backend.up


async def test_a_start_waits_for_a_server_that_hangs_only_while_nothing_is_known() -> None:
    clock = SystemClock()
    client = HttpClient(connect_seconds=1)
    async with fake_backend() as fit, fake_backend() as hung:
        hung.freeze()
        backends = told(fit, "fit"), told(hung, "hung")
        pool = Pool(backends, client, clock)
        backends[1].failed("it hung before")
        backends[1].probed(clock.monotonic())
        assert backends[1].breaker.state == "open"
        try:
            # Less than it would be given if nothing were known of it.
            async with asyncio.timeout(PROBE_SECONDS_MAX - 1):
                await pool.start()
            assert (is_up(backends[0]), is_up(backends[1])) == (True, False)
            hung.thaw()
            for _ in range(int(SOON_SECONDS / 0.02)):
                if is_up(backends[1]):
                    break
                await asyncio.sleep(0.02)
            assert is_up(backends[1])
        finally:
            await pool.stop()
            await client.close()
