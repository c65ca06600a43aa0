"""One request being answered as its script says, well or badly."""

import asyncio
import json
from collections.abc import Awaitable
from typing import Protocol

from tests.support.fake.books import Served
from tests.support.fake.dialects import Dialect, Items
from tests.support.fake.metrics import EngineCounters
from tests.support.http1 import Packer, head
from tests.support.script import LATE, Script
from tests.support.shapes import Call, error_of, sse


class Gone(Exception):
    """The caller has hung up, or the script breaks the connection off here."""


class Wire(Protocol):
    """The connection of the caller. Both methods raise `Gone` once the caller has hung up."""

    gone: asyncio.Event

    def write(self, data: bytes) -> Awaitable[None]: ...

    def pause(self, seconds: float) -> Awaitable[None]: ...

    def close(self) -> None: ...


class Play:
    """Plays `call` on `wire` and keeps `served` and the engine's counters true at every moment."""

    def __init__(
        self, wire: Wire, call: Call, served: Served, dialect: Dialect, counters: EngineCounters
    ) -> None:
        self._wire, self._call, self._served = wire, call, served
        self._dialect, self._counters = dialect, counters
        self._packer = Packer(call.script.packed)

    async def run(self) -> None:
        script, served = self._call.script, self._served
        if script.status is None:
            # What a request waits for is that its prompt is read.
            self._read_prompt(script)
        if script.hang:
            await self._stall()
        await self._wire.pause(script.delay_ms / 1000)
        if script.status is not None:
            served.end = "status"
            body = json.dumps(error_of(script.status, f"scripted {script.status}")).encode()
            await self._wire.write(head(script.status, "application/json", len(body)) + body)
            return
        if served.stream and self._dialect.opening is not None:
            await self._stream()
        else:
            await self._whole()

    def _read_prompt(self, script: Script) -> None:
        served, counters = self._served, self._counters
        served.prompt, served.cached, served.written = script.prompt, script.cached, script.written
        counters.prompt += script.prompt
        counters.cached += script.cached
        counters.requests += 1

    def _produce(self, index: int, choice: int) -> None:
        """Count the tokens of one chunk, the moment that they exist."""
        call, served = self._call, self._served
        start, end = index * call.script.per_chunk, call.until(index)
        served.completion += end - start
        served.reasoning += min(max(call.reasoning, start), end) - start
        served.chunks += 1
        self._counters.completion += end - start

    async def _stall(self) -> None:
        """Send nothing more until the peer hangs up."""
        await self._wire.gone.wait()
        self._served.end = "stalled"
        raise Gone

    async def _break_off(self) -> None:
        """Close the connection in the middle, after what was written has left the process."""
        self._served.end = "cut"
        self._wire.close()
        await self._wire.gone.wait()
        raise Gone

    async def _whole(self) -> None:
        call, script = self._call, self._call.script
        answer = self._dialect.whole(call)
        kind = "audio/mpeg" if isinstance(answer, bytes) else "application/json"
        raw = json.dumps(answer).encode() if not isinstance(answer, bytes) else answer
        data = self._packer.packed(raw, last=True)
        first = head(200, kind, len(data), self._packer.name)
        chunks = call.chunks if self._dialect.generates else 0
        for index in range(chunks):
            if index == script.cut:
                await self._wire.write(first + data[: len(data) // 2])
                await self._break_off()
            await self._wire.pause(script.interval_us / 1e6)
            for choice in range(call.choices):
                self._produce(index, choice)
        if script.cut is not None and script.cut >= chunks:
            await self._wire.write(first + data[: len(data) // 2])
            await self._break_off()
        self._served.end = "done"
        await self._wire.write(first + data)

    async def _stream(self) -> None:
        call, script, dialect = self._call, self._call.script, self._dialect
        assert dialect.opening is not None
        assert dialect.token is not None
        assert dialect.closing is not None
        await self._wire.write(head(200, "text/event-stream", None, self._packer.name))
        await self._events(self._written(dialect.opening(call)))
        pending: list[bytes] = []
        steps = [(i, choice) for i in range(call.chunks) for choice in range(call.choices)]
        for place, (index, choice) in enumerate(steps):
            if place in (script.cut, script.stall, script.error):
                await self._events(pending)
                await self._misbehave(place)
                return
            await self._pace(script, place)
            pending += self._written(dialect.token(call, index, choice))
            self._produce(index, choice)
            if len(pending) >= script.per_write:
                await self._events(pending)
                pending.clear()
        if len(steps) in (script.cut, script.stall, script.error):
            await self._events(pending)
            await self._misbehave(len(steps))
            return
        pending += self._written(dialect.closing(call))
        if script.done and dialect.mark:
            pending.append(sse(call, "[DONE]"))
        if LATE in (script.cut, script.stall):
            await self._events(pending)
            await self._misbehave(LATE)
        self._served.end = "done"
        await self._events(pending, last=True)

    def _written(self, items: Items) -> list[bytes]:
        return [sse(self._call, item) for item in items]

    async def _pace(self, script: Script, place: int) -> None:
        if script.interval_us:
            await self._wire.pause(script.interval_us / 1e6)
        elif place % 64 == 63:
            # A stream as fast as the socket takes it must still let others have the loop.
            await asyncio.sleep(0)

    async def _misbehave(self, place: int) -> None:
        """Do what the script wants in front of chunk `place`, and end the answer by it."""
        script = self._call.script
        if script.cut == place:
            await self._break_off()
        if script.stall == place:
            await self._stall()
        assert self._dialect.fault is not None
        self._served.end = "error"
        fault = self._dialect.fault(self._call, "scripted fault in the stream")
        await self._events(self._written(fault), last=True)

    async def _events(self, events: list[bytes], *, last: bool = False) -> None:
        """Send `events` as one HTTP chunk, or in the slices that the script wants."""
        joined = b"".join(events)
        if last and self._call.script.open_end:
            joined = joined.rstrip(b"\r\n")
        data = self._packer.packed(joined, last=last) if joined or last else b""
        end = b"0\r\n\r\n" if last else b""
        if data:
            await self._sliced(b"%x\r\n%b\r\n" % (len(data), data) + end)
        elif last:
            await self._wire.write(end)

    async def _sliced(self, data: bytes) -> None:
        size = self._call.script.slice_bytes or len(data)
        for start in range(0, len(data), size):
            await self._wire.write(data[start : start + size])
            if size < len(data):
                # Time for the peer to read: otherwise the kernel glues the slices together.
                await asyncio.sleep(0.0005)
