"""What is in flight at a backend is owned by the life of the request: given back on every exit,
once, and never below nothing. A random script of everything that can end a request says so."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.backends.port import BackendFailed, Target
from gateway.call import Call
from gateway.errors import ApiError
from gateway.routing.breaker import Breaker
from gateway.wire.endpoints import CHAT
from gateway.wire.requests import asked
from gateway.wire.scrape import Page
from ledger.events import Draft
from streams.errors import SpoolFailed, SpoolFull
from streams.log.memory import MemoryJournal
from tests.gateway.desk import BODY, PLAIN, Desk, ScriptedAnswer, ScriptedClient, ScriptedReply
from tests.gateway.test_relay import DONE, USAGE, chunk, plain
from tests.streams.builders import FakeClock

ANSWERS = (
    "whole",
    "stream",
    "stream stands still",
    "stream breaks",
    "stream tells of an error",
    "empty stream",
    "head stands still",
    "500",
    "400",
    "401",
    "refused",
    "lost",
    "own limit",
    "a bug",
)

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.sampled_from(ANSWERS)),
        st.tuples(st.just("begin"), st.sampled_from(["stream stands still", "head stands still"])),
        st.tuples(st.sampled_from(["cancel", "hang up", "reply breaks"]), st.integers(0, 9)),
        st.tuples(st.just("time"), st.sampled_from([1, 12, 100])),
        st.tuples(st.just("disk"), st.sampled_from(["full", "failed", "well"])),
        st.tuples(st.just("turns"), st.integers(4, 9)),
        st.tuples(st.sampled_from(["go on", "read", "take", "half open"]), st.just(0)),
    ),
    min_size=20,
    max_size=60,
)


class Disk(MemoryJournal):
    """Fails as it is told, and `durable` takes some turns."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__("/gateway/test/1", clock=clock)
        self.state = "well"

    def append(self, *drafts: Draft) -> None:
        if self.state == "full" and any(draft.id.endswith("/accepted") for draft in drafts):
            raise SpoolFull("no room")
        if self.state == "failed":
            raise SpoolFailed("no disk")
        super().append(*drafts)

    async def durable(self) -> None:
        await asyncio.sleep(0)
        if self.state == "failed":
            raise SpoolFailed("no disk")


class Client(ScriptedClient):
    """Each call's answer is what the last request to begin was given."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.wanted: list[str] = []

    async def open(
        self, target: Target, path: str, body: bytes, headers: Mapping[str, str]
    ) -> ScriptedAnswer:
        await asyncio.sleep(0)
        match self.wanted.pop() if self.wanted else "whole":
            case "refused":
                raise BackendFailed("unreachable", "the connection was refused")
            case "lost":
                raise BackendFailed("lost", "the connection broke")
            case "own limit":
                raise BackendFailed("own_limit", "no more open files")
            case "a bug":
                raise RuntimeError("a fault of this program")
            case "head stands still":
                await self.gate.wait()
                return plain(b"{}")
            case "stream":
                return ScriptedAnswer(chunk("a"), USAGE + DONE)
            case "stream stands still":
                return ScriptedAnswer(chunk("a"), self.gate, USAGE + DONE)
            case "stream breaks":
                return ScriptedAnswer(chunk("a"), BackendFailed("lost", "broke"))
            case "stream tells of an error":
                return ScriptedAnswer(chunk("a"), b'data: {"error":{"message":"no"}}\n\n')
            case "empty stream":
                return ScriptedAnswer(DONE)
            case "whole":
                return plain(b"{}")
            case status:
                return plain(b"{}", status=int(status))


class House:
    def __init__(self) -> None:
        self.client = Client()
        self.disk = Disk(FakeClock())
        limits = {"first_byte_seconds": 10.0, "between_chunks_seconds": 5.0, "total_seconds": 60.0}
        self.desk = Desk(
            self.client, backends=3, journal=self.disk, wait_durable=True, limits=limits
        )
        self.tasks: list[tuple[Call, ScriptedReply, asyncio.Task[None]]] = []

    def begin(self, answer: str) -> None:
        body = BODY if "stream" in answer else PLAIN
        call = Call(f"r{len(self.tasks)}", "k", CHAT, asked(body), self.desk.clock.monotonic())
        call.body = body
        self.client.wanted.append(answer)
        reply = ScriptedReply()
        call.task = task = asyncio.create_task(self.desk.relay.serve(call, {}, reply))
        self.tasks.append((call, reply, task))

    async def step(self, what: str, which: int | str) -> None:
        """One thing that happens."""
        backends = self.desk.pool.backends.values()
        if what == "begin":
            self.begin(str(which))
        elif what == "time":
            self.desk.clock.advance(int(which))
            self.desk.relay.tick()
        elif what == "disk":
            self.disk.state = str(which)
        elif what == "turns":
            for _ in range(int(which)):
                await asyncio.sleep(0)
        elif what == "go on":
            self.client.gate.set()
            self.client.gate = asyncio.Event()
        elif what == "half open":
            for backend in backends:
                backend.breaker = Breaker("half_open", period=backend.breaker.period + 1)
        elif what == "read":
            for backend in backends:
                backend.signals.reading()
        elif what == "take":
            for backend in backends:
                backend.signals.take(Page(running=1), self.desk.clock.monotonic())
        elif self.tasks:
            self.disturb(what, *self.tasks[int(which) % len(self.tasks)])

    def disturb(
        self, what: str, call: Call, reply: ScriptedReply, task: asyncio.Task[None]
    ) -> None:
        if what == "cancel":
            task.cancel()
        elif what == "hang up" and not task.done():
            self.desk.relay.client_gone(call)
        elif what == "reply breaks":
            reply.ended = True

    def check(self) -> None:
        """Each backend has in flight exactly the open requests that lease it."""
        leased = Counter(
            call.leased.backend_id for call, _, _ in self.tasks if call.leased is not None
        )
        for backend in self.desk.pool.backends.values():
            assert backend.in_flight == leased[backend.backend_id]
            assert 0 <= backend.signals.picked <= backend.in_flight
            assert 0 <= backend.breaker.trials <= backend.in_flight
        assert sum(leased.values()) <= len(self.desk.relay.open)

    async def end(self) -> None:
        self.disk.state = "well"
        for _ in range(5):
            await self.step("go on", 0)
            await self.step("turns", 20)
        for _, _, task in self.tasks:
            task.cancel()
            with suppress(ApiError, asyncio.CancelledError, RuntimeError, AssertionError):
                await task


async def play(steps: list[tuple[str, int | str]]) -> House:
    house = House()
    for what, which in steps:
        await house.step(what, which)
        house.check()
    await house.end()
    return house


@settings(deadline=None, max_examples=150)
@given(STEPS)
def test_in_flight_is_given_back_on_every_exit(steps: list[tuple[str, int | str]]) -> None:
    house = asyncio.run(play(steps))
    house.check()
    assert not house.desk.relay.open
    for backend in house.desk.pool.backends.values():
        assert (backend.in_flight, backend.signals.picked, backend.breaker.trials) == (0, 0, 0)


async def test_a_request_counts_before_its_first_write_is_durable() -> None:
    """Of a burst within one fsync each request has to see those before it."""
    house = House()
    for _ in range(6):
        house.begin("whole")
    await asyncio.sleep(0)
    assert house.client.called == []
    assert [backend.in_flight for backend in house.desk.pool.backends.values()] == [2, 2, 2]
    assert [backend.signals.picked for backend in house.desk.pool.backends.values()] == [2, 2, 2]
    await house.end()
