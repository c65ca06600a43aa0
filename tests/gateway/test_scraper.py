"""What a gateway tells of its engines' counters: when, how often a fault, and what is not told."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.backends.pool import Backend
from gateway.backends.port import Answer, BackendFailed, Target
from gateway.scraper import FAULT_SECONDS, Scraper
from gateway.stats import Stats
from gateway.wire.requests import Engine
from ledger.events import BackendCounted, Event, payload_of
from streams.log.memory import MemoryJournal
from tests.streams.builders import FakeClock

PAGE = (
    b"process_start_time_seconds 1764459842.5\nvllm:prompt_tokens_total 7\n"
    b"vllm:num_requests_running 2\nvllm:num_requests_waiting 1\n"
)


class Pages:
    """A client whose every page is the next of a script, the last one for ever."""

    def __init__(self, *script: tuple[int, bytes] | BackendFailed) -> None:
        self.script = list(script)
        self.asked: list[tuple[str, str]] = []
        self.was_asked = asyncio.Event()

    async def open(
        self, target: Target, path: str, body: bytes, headers: Mapping[str, str]
    ) -> Answer:
        raise AssertionError(path)

    async def fetch(
        self, target: Target, path: str, *, seconds: float, body: bytes | None = None
    ) -> tuple[int, bytes]:
        self.asked.append((target.backend_id, path))
        self.was_asked.set()
        step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(step, BackendFailed):
            raise step
        return step


class House:
    def __init__(
        self,
        *script: tuple[int, bytes] | BackendFailed,
        engine: Engine | None = None,
        seconds: float = 0.01,
        names: tuple[str, ...] = ("b",),
    ) -> None:
        self.clock = FakeClock()
        self.journal = MemoryJournal("/gateway/test/1", clock=self.clock)
        self.pages = Pages(*script)
        self.stats = Stats()
        self.backends = [
            Backend(name, "http://h", key=None, engine=engine, models=None, any_model=True)
            for name in names
        ]
        for backend in self.backends:
            backend.up = True
        self.scraper = Scraper(
            "box#0",
            self.backends,
            self.pages,
            self.journal,
            self.clock,
            self.stats,
            seconds=seconds,
        )

    def events(self) -> list[Event]:
        return list(self.journal.events())

    def said(self) -> list[BackendCounted]:
        found = [payload_of(event) for event in self.events()]
        return [one for one in found if isinstance(one, BackendCounted)]

    async def until(self, count: int) -> None:
        """Let the background work until so many pages were asked for."""
        async with asyncio.timeout(10):
            while len(self.pages.asked) < count:
                self.pages.was_asked.clear()
                await self.pages.was_asked.wait()


async def test_a_reading_is_told_with_all_that_the_page_says() -> None:
    house = House((200, PAGE), names=("a", "b"), seconds=1000)
    await house.scraper.start()
    await house.scraper.stop()
    assert house.pages.asked == [("a", "/metrics"), ("b", "/metrics")] * 2
    assert len(house.said()) == 4
    assert house.said()[0] == BackendCounted(
        backend_id="a",
        gateway="box#0",
        engine="vllm",
        counters={"vllm:prompt_tokens_total": 7},
        process_started=datetime(2025, 11, 29, 23, 44, 2, 500_000, tzinfo=UTC),
        running=2,
        waiting=1,
    )
    assert [(one.id, one.subject) for one in house.events()] == [
        (f"/gateway/test/1/counted/{number}", backend)
        for number, backend in enumerate(("a", "b", "a", "b"), start=1)
    ]
    assert all(event.topic == "counters" for event in house.events())
    assert house.scraper.read_at.keys() == {"a", "b"}
    assert not house.stats.scrapes_failed


async def test_it_goes_on_reading_until_it_is_stopped() -> None:
    house = House((200, PAGE))
    await house.scraper.start()
    await house.until(5)
    await house.scraper.stop()
    asked = len(house.pages.asked)
    assert len(house.said()) == asked
    await asyncio.sleep(0.05)
    assert len(house.pages.asked) == asked


async def test_zero_seconds_read_nothing() -> None:
    house = House((200, PAGE), seconds=0)
    await house.scraper.start()
    await house.scraper.stop()
    assert house.pages.asked == []


async def test_the_same_fault_is_told_once_in_a_while() -> None:
    house = House((404, b""), engine="sglang")
    await house.scraper.start()
    await house.until(4)
    assert len(house.said()) == 1
    house.clock.advance(FAULT_SECONDS)
    await house.until(8)
    house.pages.script = [(200, PAGE)]
    await house.until(12)
    await house.scraper.stop()
    assert [one.fault for one in house.said()][:2] == [
        "/metrics answered 404; start SGLang with --enable-metrics"
    ] * 2
    assert house.said()[2].fault is None
    assert house.stats.scrapes_failed["b"] >= 7


@pytest.mark.parametrize(
    ("answer", "engine", "fault"),
    [
        (BackendFailed("unreachable", "no answer within 5 s"), None, "no answer within 5 s"),
        ((501, b""), "llamacpp", "/metrics answered 501; start llama.cpp with --metrics"),
        ((404, b""), "openai", "/metrics answered 404"),
        ((401, b""), "llamacpp", "/metrics refuses the server key (401)"),
        ((200, b"<html>"), "openai", "/metrics has no counter that is known here"),
        ((500, PAGE), "vllm", "/metrics answered 500"),
    ],
)
async def test_a_fault_is_told_in_words(
    answer: tuple[int, bytes] | BackendFailed, engine: Engine | None, fault: str
) -> None:
    house = House(answer, engine=engine, seconds=1000)
    await house.scraper.start()
    await house.scraper.stop()
    (said,) = house.said()
    assert (said.fault, said.counters, said.running) == (fault, {}, None)
    assert said.engine == (engine or "openai")
    assert not house.scraper.read_at


async def test_a_backend_that_is_down_is_not_waited_for_at_the_door() -> None:
    house = House((200, PAGE), names=("up", "down"))
    house.backends[1].up = False
    await house.scraper.start()
    assert house.pages.asked == [("up", "/metrics")]
    await house.until(5)
    await house.scraper.stop()
    assert ("down", "/metrics") in house.pages.asked


async def test_a_spool_that_is_nearly_full_is_left_to_requests() -> None:
    house = House((200, PAGE), seconds=1000)
    house.journal.close()
    await house.scraper.start()
    await house.scraper.stop()
    assert house.pages.asked == []


@pytest.mark.parametrize("started", [b"0", b"-5", b"1e15", b"1e300"])
async def test_a_start_that_no_date_can_hold_is_none(started: bytes) -> None:
    page = b"vllm:prompt_tokens_total 7\nprocess_start_time_seconds " + started
    house = House((200, page), seconds=1000)
    await house.scraper.start()
    await house.scraper.stop()
    assert house.said()[0].process_started is None


async def test_a_reading_is_small() -> None:
    page = (Path(__file__).parent / "pages" / "vllm-0.18-two-engines.txt").read_bytes()
    house = House((200, page), seconds=1000)
    await house.scraper.start()
    await house.scraper.stop()
    assert len(bytes(house.events()[0].data)) < 300
