"""A relay on a table: real code in the middle, a journal in memory, backends that read a script.

What needs sockets or processes is tested over them; this is for moments that no socket hits at
will: a failed write, an fsync that takes long, a limit that passes.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.backends.pool import Backend, Pool
from gateway.backends.port import BackendFailed, Target
from gateway.call import Call
from gateway.relay import Relay
from gateway.settings import TimeoutSettings
from gateway.stats import Stats
from gateway.wire.endpoints import CHAT, Endpoint
from gateway.wire.requests import Engine, asked
from ledger.events import Draft, Payload, payload_of
from streams.log.memory import MemoryJournal
from streams.log.port import Journal
from tests.streams.builders import FakeClock

BODY = b'{"model":"m","stream":true}'
PLAIN = b'{"model":"m"}'

Step = bytes | BackendFailed | asyncio.Event


class ScriptedAnswer:
    """Gives its steps one by one: bytes, a failure, or a wait for an event."""

    def __init__(
        self,
        *steps: Step,
        status: int = 200,
        content_type: str = "text/event-stream",
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        self.status, self.content_type = status, content_type
        self.headers = list(headers)
        self.steps = list(steps)
        self.closed = 0

    async def read(self) -> bytes:
        while self.steps:
            step = self.steps.pop(0)
            if isinstance(step, BackendFailed):
                try:
                    raise step
                finally:
                    del step  # or its trace and this frame would keep each other
            if isinstance(step, bytes):
                await asyncio.sleep(0)
                return step
            await step.wait()
        return b""

    async def read_all(self) -> bytes:
        parts = []
        while part := await self.read():
            parts.append(part)
        return b"".join(parts)

    def close(self) -> None:
        self.closed += 1


class ScriptedClient:
    """Answers each call by the next of its script."""

    def __init__(self, *script: ScriptedAnswer | BackendFailed | asyncio.Event) -> None:
        self.script = list(script)
        self.called: list[str] = []
        self.tokenizer: bytes | None = None
        self.asked: list[tuple[str, bytes | None]] = []

    async def open(
        self, target: Target, path: str, body: bytes, headers: Mapping[str, str]
    ) -> ScriptedAnswer:
        self.called.append(target.backend_id)
        step = self.script.pop(0)
        if isinstance(step, BackendFailed):
            try:
                raise step
            finally:
                del step
        if isinstance(step, asyncio.Event):
            await step.wait()
            return await self.open(target, path, body, headers)
        return step

    async def fetch(
        self, target: Target, path: str, *, seconds: float, body: bytes | None = None
    ) -> tuple[int, bytes]:
        self.asked.append((path, body))
        if self.tokenizer is None:
            raise BackendFailed("unreachable", "this script has no tokenizer")
        return 200, self.tokenizer


class ScriptedReply:
    """Keeps what was sent to the client."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.headers: list[tuple[bytes, bytes]] = []
        self.sent = b""
        self.ended = False

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        assert self.status is None, "an answer has one head"
        self.status, self.headers = status, headers

    async def body(self, data: bytes, *, more: bool) -> None:
        assert not self.ended, "nothing comes behind the end"
        self.sent += data
        self.ended = not more


class Desk:
    """A relay with `backends` servers, and everything around it within reach."""

    def __init__(
        self,
        client: ScriptedClient,
        *,
        backends: int = 1,
        engine: Engine = "openai",
        journal: Journal | None = None,
        wait_durable: bool = False,
        key: str | None = "sk-server-key-of-the-backend",
        limits: Mapping[str, float] | None = None,
        drain_to_end: Sequence[str] = (),
    ) -> None:
        self.clock = FakeClock()
        self.client, self.stats = client, Stats()
        own = MemoryJournal("/gateway/test/1", clock=self.clock)
        self.memory = journal if isinstance(journal, MemoryJournal) else own
        self.journal: Journal = journal or own
        self.pool = Pool(
            [
                Backend(
                    f"b-{number}", "http://x", key=key, engine=engine, models=("m",), any_model=True
                )
                for number in range(1, backends + 1)
            ],
            client,
            self.clock,
        )
        self.relay = Relay(
            self.journal,
            self.pool,
            client,
            self.clock,
            TimeoutSettings(**(limits or {})),
            self.stats,
            wait_durable=wait_durable,
            drain_to_end=drain_to_end,
        )
        self.reply = ScriptedReply()
        self.call: Call | None = None

    def begin(self, body: bytes = BODY, endpoint: Endpoint = CHAT) -> Any:
        """Serve one request in a task of its own."""
        request_id = f"req_{len(self.memory.events())}"
        wish, now = asked(body, endpoint), self.clock.monotonic()
        self.call = Call(request_id, "key-1", endpoint, wish, now, body=body)
        serving = self.relay.serve(self.call, {}, self.reply)
        self.call.task = asyncio.create_task(serving)
        return self.call.task

    async def settle(self) -> None:
        """Let everything run that can run now."""
        for _ in range(20):
            await asyncio.sleep(0)

    def facts(self) -> list[Payload]:
        return [payload_of(event) for event in self.memory.events()]

    def last(self) -> Any:
        return self.facts()[-1]


class SlowJournal(MemoryJournal):
    """One whose `durable` waits until it is let go, and fails if told so."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__("/gateway/test/1", clock=clock)
        self.let_go = asyncio.Event()
        self.failure: Exception | None = None

    async def durable(self) -> None:
        await self.let_go.wait()
        if self.failure is not None:
            raise self.failure


class FullDisk(MemoryJournal):
    """One that takes no more once `failure` is set."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__("/gateway/test/1", clock=clock)
        self.failure: Exception | None = None

    def append(self, *drafts: Draft) -> None:
        if self.failure is not None:
            raise self.failure
        super().append(*drafts)
