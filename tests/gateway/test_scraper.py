"""What a gateway reads of its engines: load for routing, often, and counters as events, seldom; how
often a fault is told, and what is not told."""

import asyncio
from collections.abc import Callable, Mapping
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
        self.slots: tuple[int, bytes] | BackendFailed | None = None
        self.while_asked: Callable[[], object] = bool
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
        self.while_asked()
        if path == "/slots":
            if isinstance(self.slots, BackendFailed):
                raise self.slots
            return self.slots or (501, b"")
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
        signal_seconds: float = 0.0,
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
            signal_seconds=signal_seconds,
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
    assert house.events() == []
    assert house.backends[0].signals.running == 2, "what routing needs is read all the same"


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


async def test_load_is_read_often_and_counters_are_written_seldom() -> None:
    house = House((200, PAGE), seconds=0.2, signal_seconds=0.01)
    await house.scraper.start()
    assert house.backends[0].signals.waiting == 1, "before the door opens"
    await house.until(10)
    assert len(house.said()) == 1
    await house.until(50)
    assert len(house.said()) == 3
    await house.scraper.stop()


async def test_load_is_read_where_counters_are_not_wanted() -> None:
    house = House((200, PAGE), seconds=0, signal_seconds=0.01)
    await house.scraper.start()
    await house.until(3)
    await house.scraper.stop()
    assert house.said() == []
    signals = house.backends[0].signals
    assert (signals.running, signals.waiting, signals.kv_usage) == (2, 1, None)


async def test_what_is_sent_while_a_page_is_on_its_way_counts_on_top_of_it() -> None:
    house = House((200, PAGE), seconds=1000)
    (backend,) = house.backends
    backend.signals.pick()
    house.pages.while_asked = backend.signals.pick
    await house.scraper.start()
    assert (backend.signals.running, backend.signals.picked) == (2, 1)
    await house.scraper.stop()


async def test_an_engine_that_is_too_slow_to_answer_is_not_taken_for_idle() -> None:
    house = House((200, PAGE), BackendFailed("slow", "no answer within 5 s"), seconds=0.01)
    await house.scraper.start()
    (backend,) = house.backends
    backend.signals.pick()
    await house.until(3)
    await house.scraper.stop()
    assert (backend.signals.running, backend.signals.waiting, backend.signals.picked) == (2, 1, 1)


async def test_the_word_of_an_engine_that_is_not_heard_any_more_does_not_stand_for_ever() -> None:
    house = House((200, PAGE), BackendFailed("slow", "no answer within 5 s"), seconds=0.01)
    await house.scraper.start()
    (backend,) = house.backends
    await house.until(3)
    assert (backend.signals.running, backend.signals.waiting) == (2, 1)
    house.clock.advance(31)
    await house.until(len(house.pages.asked) + 2)
    await house.scraper.stop()
    assert (backend.signals.running, backend.signals.waiting) == (None, None)


async def test_an_engine_that_says_nothing_any_more_has_no_load_that_is_known() -> None:
    house = House((200, PAGE), (404, b""), seconds=0.01)
    await house.scraper.start()
    (backend,) = house.backends
    backend.signals.pick()
    await house.until(3)
    await house.scraper.stop()
    assert (backend.signals.running, backend.signals.waiting) == (None, None)
    assert backend.signals.picked == 0, "it does not grow for ever"


async def test_a_server_without_such_a_page_is_not_asked_often() -> None:
    house = House((404, b""), seconds=0, signal_seconds=0.01)
    await house.scraper.start()
    await asyncio.sleep(0.2)
    await house.scraper.stop()
    assert len(house.pages.asked) == 1


SLOTS = (
    b'[{"n_ctx":1000,"is_processing":true,"n_prompt_tokens":500},'
    b'{"n_ctx":1000,"is_processing":false}]'
)
LLAMA = b"llamacpp:prompt_tokens_total 7\nllamacpp:requests_processing 3\n"


@pytest.mark.parametrize(
    ("page", "slots", "asked", "load"),
    [
        ((200, LLAMA), (200, SLOTS), True, (3, 0.25)),
        ((501, b""), (200, SLOTS), True, (1, 0.25)),
        ((200, LLAMA), (501, b""), True, (3, None)),
        ((200, LLAMA + b"llamacpp:kv_cache_usage_ratio 0.5\n"), None, False, (3, 0.5)),
    ],
)
async def test_slots_of_llamacpp_say_what_its_metrics_lack(
    page: tuple[int, bytes],
    slots: tuple[int, bytes] | None,
    asked: bool,
    load: tuple[int, float | None],
) -> None:
    house = House(page, engine="llamacpp", seconds=1000)
    house.pages.slots = slots
    await house.scraper.start()
    signals = house.backends[0].signals
    assert (signals.running, signals.kv_usage) == load
    await house.scraper.stop()
    paths = [path for _, path in house.pages.asked]
    # Where there is no such page it is not asked for again at the end.
    wanted = 2 * [(200, SLOTS)] if asked and slots == (200, SLOTS) else [None] * asked
    assert paths.count("/slots") == len(wanted)


async def test_slots_that_are_late_cost_no_counters() -> None:
    house = House((200, LLAMA), engine="llamacpp", seconds=1000)
    house.pages.slots = BackendFailed("slow", "no answer within 1 s")
    await house.scraper.start()
    await house.scraper.stop()
    assert house.pages.asked == [("b", "/metrics"), ("b", "/slots")] * 2
    assert [one.fault for one in house.said()] == [None, None]
    assert house.backends[0].signals.running == 3


async def test_backends_come_and_go() -> None:
    house = House((200, PAGE), seconds=0.01, names=("a", "b"))
    await house.scraper.start()
    late = Backend("c", "http://h", key=None, engine=None, models=None, any_model=True)
    gone = house.backends.pop(0)
    house.backends.append(late)
    house.scraper.follow()
    house.scraper.follow()
    house.pages.asked.clear()
    await house.until(8)
    await house.scraper.stop()
    asked = {backend for backend, _ in house.pages.asked}
    assert asked == {"b", "c"}
    assert late.signals.running == 2 and gone.backend_id not in asked


async def test_a_backend_that_may_not_be_called_is_not_read() -> None:
    house = House((200, PAGE), seconds=0.01, names=("a", "b"))
    house.backends[0].held, house.backends[0].up = "its key cannot be resolved", False
    await house.scraper.start()
    await house.until(5)
    await house.scraper.stop()
    assert {backend for backend, _ in house.pages.asked} == {"b"}
