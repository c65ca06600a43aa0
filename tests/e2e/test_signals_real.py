"""How busy the real llama.cpp says that it is: names and units as they are read for routing."""

import asyncio
import threading

import pytest

from gateway.backends.http import HttpClient
from gateway.backends.pool import Backend
from gateway.scraper import Scraper
from gateway.stats import Stats
from ledger.clock import SystemClock
from streams.log.memory import MemoryJournal
from tests.support.llama import KEY, MODEL, llama_server
from tests.support.processes import call

pytestmark = pytest.mark.e2e

TOKENS = 24
REQUESTS = 2


async def test_llamacpp_tells_its_requests_and_how_full_its_cache_is() -> None:
    clock = SystemClock()
    client = HttpClient(connect_seconds=5)
    journal = MemoryJournal("/gateway/test/1", clock=clock)
    with llama_server() as url:
        backend = Backend("llama", url, key=KEY, engine="llamacpp", models=None, any_model=True)
        backend.up = True
        scraper = Scraper(
            "box", [backend], client, journal, clock, Stats(), seconds=1000, signal_seconds=0
        )
        signals = backend.signals
        try:
            await scraper.start()
            assert (signals.running, signals.waiting, signals.kv_usage) == (0, 0, 0.0)
            assert (signals.prefix_hits, signals.prefix_queries) == (0, 0)
            body = {"model": MODEL, "prompt": "One day a king", "max_tokens": TOKENS}
            asked = [
                threading.Thread(target=call, args=(f"{url}/v1/completions", body, KEY))
                for _ in range(REQUESTS)
            ]
            for one in asked:
                one.start()
            most = 0
            fullest = 0.0
            while any(one.is_alive() for one in asked):
                # Reads anew, as `stop` does: it is the same reading.
                await scraper.stop()
                await asyncio.sleep(0.2)
                most = max(most, signals.running or 0)
                fullest = max(fullest, signals.kv_usage or 0.0)
            await scraper.stop()
        finally:
            await client.close()
    assert most == REQUESTS
    # Its context is of 8,192 tokens or more; each request holds its prompt and what it made.
    assert 0 < fullest < REQUESTS * (TOKENS + 20) / 2048
    assert (signals.running, signals.kv_usage) == (0, 0.0)
    assert signals.prefix_queries is not None and signals.prefix_queries >= REQUESTS * 4
