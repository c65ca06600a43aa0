"""An OpenAI-compatible model server that misbehaves on demand, over real sockets.

What it does with a request is read from the model's name (see `script.py`), or from a queue of
scripts that a test puts in front (`backend.next`, or `POST /_next`). It keeps its own exact counts,
so that a test can hold the ledger against them. It is its own small HTTP/1.1 server, because only
then can it break off in the middle of a chunk.

In a test: `async with fake_backend(engine="vllm") as backend:`. In a process of its own:
`python -m tests.support.fake_backend --port 9100 --engine llamacpp`.
"""

import argparse
import asyncio
import contextlib
import json
from collections import Counter, deque
from collections.abc import AsyncIterator
from typing import Any, Literal

import msgspec

from tests.support import shapes
from tests.support.http1 import STREAM_HEAD, Request, head, take_request
from tests.support.script import Script, parse
from tests.support.shapes import Call, Engine, Json

KEY = "sk-backend-secret"
CALLS_KEPT_MAX = 200_000
SEEN_KEPT_MAX = 64

End = Literal["open", "done", "aborted", "cut", "stalled", "error", "status"]


class Served(msgspec.Struct, kw_only=True):
    """What the backend did for one call. `completion` is what it produced, sent or not.

    `tag` is the caller's `user` field, by which a test finds its own calls again.
    """

    number: int
    path: str
    model: str
    tag: str | None
    stream: bool
    prompt: int = 0
    cached: int = 0
    completion: int = 0
    end: End = "open"


class Seen(msgspec.Struct, kw_only=True):
    """A call as it arrived: what a gateway let through."""

    path: str
    headers: dict[str, str]
    body: Any
    raw: bytes


class Gone(Exception):
    """The caller has hung up, or the script breaks the connection off here."""


class Counts(msgspec.Struct):
    """The backend's own books since the last reset."""

    unauthorized: int = 0
    with_usage: int = 0
    with_running: int = 0
    connections: int = 0
    calls: deque[Served] = msgspec.field(default_factory=lambda: deque(maxlen=CALLS_KEPT_MAX))
    seen: deque[Seen] = msgspec.field(default_factory=lambda: deque(maxlen=SEEN_KEPT_MAX))
    next: deque[Script] = msgspec.field(default_factory=deque)


class FakeBackend:
    """One running fake: its address, its key, and its books."""

    def __init__(self, engine: Engine, key: str, models: tuple[str, ...], name: str) -> None:
        self.engine, self.key, self.models, self.name = engine, key, models, name
        self.counts = Counts()
        self.number = 0
        self.connections: set[Connection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def calls(self) -> list[Served]:
        """Every call since the last reset, in order of arrival."""
        return list(self.counts.calls)

    @property
    def seen(self) -> list[Seen]:
        """The last calls as they arrived: headers and bodies."""
        return list(self.counts.seen)

    def next(self, *flags: str) -> None:
        """Treat the next calls so, one each, whatever their model's name: `next("e500", "n3")`."""
        self.counts.next.extend(parse(f"-{text}") for text in flags)

    def reset(self) -> None:
        self.counts = Counts()

    def stats(self) -> Json:
        """The books as one JSON object, as `GET /_stats` gives them."""
        counts, ends = self.counts, Counter(call.end for call in self.counts.calls)
        return {
            "requests": len(counts.calls),
            "streams": sum(call.stream for call in counts.calls),
            "unauthorized": counts.unauthorized,
            "with_usage": counts.with_usage,
            "with_running": counts.with_running,
            "connections": counts.connections,
            "prompt_tokens": sum(call.prompt for call in counts.calls),
            "cached_tokens": sum(call.cached for call in counts.calls),
            "completion_tokens": sum(call.completion for call in counts.calls),
            "ends": dict(ends),
            "aborts": [
                {"model": call.model, "tag": call.tag, "chunks": call.completion}
                for call in counts.calls
                if call.end == "aborted"
            ],
            "last": [{"path": s.path, "headers": s.headers, "body": s.body} for s in counts.seen],
        }

    def break_connections(self) -> None:
        """Break every open connection off, as a machine that loses its power does."""
        for connection in list(self.connections):
            connection.abort()


class Connection(asyncio.Protocol):
    """One client connection: requests one after the other, each answered by a task."""

    def __init__(self, backend: FakeBackend) -> None:
        self.backend = backend
        self.buffer = bytearray()
        self.gone = asyncio.Event()
        self.writable = asyncio.Event()
        self.writable.set()
        self.task: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.backend.connections.add(self)
        self.backend.counts.connections += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.backend.connections.discard(self)
        self.gone.set()
        self.writable.set()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def abort(self) -> None:
        """Break off at once: the peer sees a reset or an end in the middle."""
        assert self.transport is not None
        self.transport.abort()
        self.gone.set()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if self.task is None:
            self._take_one()

    def _take_one(self) -> None:
        request = take_request(self.buffer)
        if request is not None:
            self.task = asyncio.get_running_loop().create_task(self._answer(request))
            self.backend.tasks.add(self.task)
            self.task.add_done_callback(self.backend.tasks.discard)

    async def _answer(self, request: Request) -> None:
        try:
            await Answer(self, request).run()
        except Gone:
            self.abort()
            return
        finally:
            self.task = None
        if not self.gone.is_set():
            self._take_one()

    async def write(self, data: bytes) -> None:
        """Send `data`; raises `Gone` if the peer has hung up before or meanwhile."""
        assert self.transport is not None
        if self.gone.is_set():
            raise Gone
        self.transport.write(data)
        if not self.writable.is_set():
            await self.writable.wait()

    async def pause(self, seconds: float) -> None:
        """Wait so long, or raise `Gone` the moment that the peer hangs up."""
        if seconds > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.gone.wait(), seconds)
        if self.gone.is_set():
            raise Gone


class Answer:
    """One request being answered."""

    def __init__(self, connection: Connection, request: Request) -> None:
        self.connection, self.request = connection, request
        self.backend = connection.backend

    async def run(self) -> None:
        path = self.request.path.partition("?")[0]
        if path in ("/v1/chat/completions", "/v1/completions", "/v1/models", "/tokenize"):
            expected = f"Bearer {self.backend.key}"
            if self.backend.key and self.request.headers.get("authorization") != expected:
                self.backend.counts.unauthorized += 1
                await self._json(401, shapes.error_of(401, "Invalid API Key"))
                return
        match path:
            case "/v1/chat/completions" | "/v1/completions":
                await self._generate(path)
            case "/v1/models":
                owner = self.backend.engine
                data = [
                    {"id": name, "object": "model", "created": 1, "owned_by": owner}
                    for name in self.backend.models
                ]
                await self._json(200, {"object": "list", "data": data})
            case "/tokenize":
                asked = json.loads(self.request.body)
                words = len(str(asked.get("content", asked.get("prompt", ""))).split())
                await self._json(200, {"tokens": list(range(words)), "count": words})
            case "/health":
                await self._json(200, {"status": "ok"})
            case "/metrics":
                await self._metrics()
            case _:
                await self._control(path)

    async def _control(self, path: str) -> None:
        """What a test in another process asks of the fake itself."""
        match path:
            case "/_stats":
                await self._json(200, self.backend.stats())
            case "/_calls":
                await self._json(200, {"calls": msgspec.to_builtins(self.backend.calls)})
            case "/_reset":
                self.backend.reset()
                await self._json(200, {})
            case "/_next":
                self.backend.next(*json.loads(self.request.body))
                await self._json(200, {})
            case _:
                await self._json(404, shapes.error_of(404, "File Not Found"))

    async def _metrics(self) -> None:
        stats = self.backend.stats()
        text = shapes.metrics_of(
            self.backend.engine,
            stats["prompt_tokens"],
            stats["cached_tokens"],
            stats["completion_tokens"],
            stats["ends"].get("open", 0),
        )
        await self.connection.write(head(200, "text/plain", len(text)) + text.encode())

    async def _json(self, status: int, body: Json) -> None:
        data = json.dumps(body).encode()
        await self.connection.write(head(status, "application/json", len(data)) + data)

    async def _generate(self, path: str) -> None:
        backend, request = self.backend, self.request
        backend.number += 1
        try:
            body = json.loads(request.body)
        except ValueError:
            await self._json(400, shapes.error_of(400, "the body is not JSON"))
            return
        backend.counts.seen.append(
            Seen(path=path, headers=request.headers, body=body, raw=request.body)
        )
        queue = backend.counts.next
        script = queue.popleft() if queue else parse(str(body.get("model", "")))
        call = shapes.call_of(
            body, backend.engine, backend.number, path.endswith("chat/completions"), script
        )
        served = Served(
            number=call.number,
            path=path,
            model=call.model,
            tag=body.get("user"),
            stream=body.get("stream") is True,
        )
        backend.counts.calls.append(served)
        backend.counts.with_usage += call.include_usage
        backend.counts.with_running += call.running
        try:
            await self._play(call, served)
        except Gone:
            if served.end == "open":
                served.end = "aborted"
            raise

    async def _play(self, call: Call, served: Served) -> None:
        script = call.script
        if script.hang:
            await self._stall(served)
        await self.connection.pause(script.delay_ms / 1000)
        if script.status is not None:
            served.end = "status"
            message = f"scripted {script.status}"
            await self._json(script.status, shapes.error_of(script.status, message))
            return
        served.prompt, served.cached = script.prompt, script.cached
        if served.stream:
            await self._stream(call, served)
        else:
            await self._whole(call, served)

    async def _stall(self, served: Served) -> None:
        """Send nothing more until the peer hangs up."""
        await self.connection.gone.wait()
        served.end = "stalled"
        raise Gone

    async def _whole(self, call: Call, served: Served) -> None:
        data = json.dumps(shapes.whole(call)).encode()
        step = call.script.interval_us / 1e6
        cut = call.script.cut
        for index in range(call.chunks):
            if index == cut:
                served.end = "cut"
                part = head(200, "application/json", len(data)) + data[: len(data) // 2]
                await self.connection.write(part)
                await self._break_off()
            await self.connection.pause(step)
            served.completion += 1
        served.end = "done"
        await self.connection.write(head(200, "application/json", len(data)) + data)

    async def _stream(self, call: Call, served: Served) -> None:
        script = call.script
        await self.connection.write(STREAM_HEAD)
        await self._events(call, [shapes.sse(call, item) for item in shapes.opening(call)])
        pending: list[bytes] = []
        for index in range(call.chunks):
            if index in (script.cut, script.stall, script.error):
                await self._events(call, pending)
                if await self._misbehave(call, served, index):
                    return
            await self._pace(script, index)
            pending.append(shapes.sse(call, shapes.token(call, index)))
            served.completion += 1
            if len(pending) >= script.per_write:
                await self._events(call, pending)
                pending.clear()
        pending += [shapes.sse(call, item) for item in shapes.closing(call)]
        if script.done:
            pending.append(shapes.sse(call, "[DONE]"))
        served.end = "done"
        await self._events(call, pending, last=True)

    async def _pace(self, script: Script, index: int) -> None:
        if script.interval_us:
            await self.connection.pause(script.interval_us / 1e6)
        elif index % 64 == 63:
            # A stream as fast as the socket takes it must still let others have the loop.
            await asyncio.sleep(0)

    async def _misbehave(self, call: Call, served: Served, index: int) -> bool:
        """Do what the script wants in front of chunk `index`; true if the answer ended in order."""
        if call.script.cut == index:
            served.end = "cut"
            await self._break_off()
        if call.script.stall == index:
            await self._stall(served)
        served.end = "error"
        fault = shapes.sse(call, shapes.error_of(500, "scripted fault in the stream"))
        await self._events(call, [fault], last=True)
        return True

    async def _break_off(self) -> None:
        """Close the connection in the middle, after what was written has left the process."""
        assert self.connection.transport is not None
        self.connection.transport.close()
        await self.connection.gone.wait()
        raise Gone

    async def _events(self, call: Call, events: list[bytes], *, last: bool = False) -> None:
        """Send `events` as one HTTP chunk, or in the slices that the script wants."""
        data = b"".join(events)
        if data:
            framed = b"%x\r\n%b\r\n" % (len(data), data)
            await self._sliced(call.script, framed + (b"0\r\n\r\n" if last else b""))
        elif last:
            await self.connection.write(b"0\r\n\r\n")

    async def _sliced(self, script: Script, data: bytes) -> None:
        size = script.slice_bytes or len(data)
        for start in range(0, len(data), size):
            await self.connection.write(data[start : start + size])
            if size < len(data):
                # Time for the peer to read: otherwise the kernel glues the slices together.
                await asyncio.sleep(0.0005)


@contextlib.asynccontextmanager
async def fake_backend(
    engine: Engine = "fake",
    key: str = KEY,
    models: tuple[str, ...] = ("fake",),
    port: int = 0,
    name: str = "b1",
) -> AsyncIterator[FakeBackend]:
    """A fake that serves on loopback until the block ends; `port` 0 takes a free one."""
    backend = FakeBackend(engine, key, models, name)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(backend), "127.0.0.1", port)
    backend.port = server.sockets[0].getsockname()[1]
    try:
        yield backend
    finally:
        server.close()
        backend.break_connections()
        await asyncio.gather(*backend.tasks)
        await server.wait_closed()


async def _serve(args: argparse.Namespace) -> None:
    models = tuple(args.models.split(","))
    async with fake_backend(args.engine, args.key, models, args.port, args.name) as backend:
        print(json.dumps({"url": backend.url, "port": backend.port}), flush=True)
        await asyncio.Event().wait()


def main() -> None:
    """Serve until killed; the first line on stdout says where, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--engine", choices=shapes.ENGINES, default="fake")
    parser.add_argument("--key", default=KEY)
    parser.add_argument("--models", default="fake", help="names to list, with commas")
    parser.add_argument("--name", default="b1")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
