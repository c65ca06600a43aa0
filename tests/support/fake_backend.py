"""A model server that misbehaves on demand, over real sockets, at every endpoint of the gateway.

What it does with a request is read from the model's name (see `script.py`), from a member `script`
of the body, or from a queue of scripts that a test puts in front (`backend.next`, `POST /_next`).
It keeps its own exact counts, so that a test can hold the ledger against them. It is its own small
HTTP/1.1 server, because only then can it break off in the middle of a chunk. What the engines say
is in `shapes.py` and `fake/`.

`backend.always` is the script of every call while it is set; one that was told to `freeze` accepts
connections and says nothing at all, until it is told to `thaw`.

In a test: `async with fake_backend(engine="vllm") as backend:`. In a process of its own:
`python -m tests.support.fake_backend --port 9100 --engine llamacpp`.
"""

import argparse
import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import msgspec

from tests.support import shapes
from tests.support.fake import metrics, plain
from tests.support.fake.answer import Gone, Play
from tests.support.fake.books import Counts, Seen, Served
from tests.support.fake.dialects import DIALECTS
from tests.support.fake.metrics import EngineCounters
from tests.support.http1 import Request, fields_of, head, take_request
from tests.support.script import parse
from tests.support.shapes import Engine, Json

__all__ = ["KEY", "FakeBackend", "Seen", "Served", "fake_backend"]

KEY = "sk-backend-secret"

ASKED = ("/v1/models", "/tokenize", "/apply-template", "/v1/messages/count_tokens", *DIALECTS)
"""Paths that want the key."""

NEVER_MIND = ("/v1/audio/transcriptions", "/v1/audio/translations", "/v1/audio/speech")
"""What llama.cpp answers with 501 for a model of text."""


class FakeBackend:
    """One running fake: its address, its key, and its books."""

    def __init__(
        self,
        engine: Engine,
        key: str,
        models: tuple[str, ...],
        name: str,
        *,
        tokenizes: bool = True,
    ) -> None:
        self.tokenizes = tokenizes
        self.engine, self.key, self.models, self.name = engine, key, models, name
        self.counts = Counts()
        self.counters = EngineCounters()
        self.number = 0
        self.connections: set[Connection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.always: str | None = None
        self.lists = 0  # times that it was asked for its models, and answered
        self.awake = asyncio.Event()
        self.awake.set()

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
        """Begin new books; the engine's own counters go on."""
        self.counts = Counts()

    def restart_counters(self) -> None:
        """What a restart of the engine does to its own counters."""
        self.counters = EngineCounters(started=self.counters.started + 60)

    def stats(self) -> Json:
        return self.counts.stats()

    def freeze(self) -> None:
        """Accept connections and requests and answer none, as a process that is stopped does."""
        self.awake.clear()

    def thaw(self) -> None:
        """Go on where `freeze` found it; what hung up meanwhile is forgotten."""
        self.awake.set()

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
        self.closes = self.asked_to_close = False
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

    def close(self) -> None:
        """Close once everything written has left the process."""
        assert self.transport is not None
        self.transport.close()

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
        self.asked_to_close = request.headers.get("connection", "").lower() == "close"
        try:
            await self._while_frozen()
            await Answer(self, request).run()
        except Gone:
            self.abort()
            return
        finally:
            self.task = None
        if self.closes or self.asked_to_close:
            self.close()
        elif not self.gone.is_set():
            self._take_one()

    async def write(self, data: bytes) -> None:
        """Send `data`; raises `Gone` if the peer has hung up before or meanwhile."""
        assert self.transport is not None
        await self._while_frozen()
        if self.asked_to_close and data.startswith(b"HTTP/1.1 "):
            line, _, rest = data.partition(b"\r\n")
            data = b"%b\r\nConnection: close\r\n%b" % (line, rest)
        self.transport.write(data)
        if not self.writable.is_set():
            await self.writable.wait()

    async def _while_frozen(self) -> None:
        await self.backend.awake.wait()
        if self.gone.is_set():
            raise Gone

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
        if path in ASKED and not self._authorized():
            self.backend.counts.unauthorized += 1
            await self._json(401, shapes.error_of(401, "Invalid API Key"))
        elif path in DIALECTS:
            await self._dialect(path)
        else:
            await self._other(path)

    def _authorized(self) -> bool:
        key, headers = self.backend.key, self.request.headers
        given = (headers.get("authorization"), headers.get("x-api-key"))
        return not key or f"Bearer {key}" == given[0] or key == given[1]

    async def _other(self, path: str) -> None:
        engine = self.backend.engine
        match path:
            case "/v1/models":
                self.backend.lists += 1
                data = [
                    {"id": name, "object": "model", "created": 1, "owned_by": engine}
                    for name in self.backend.models
                ]
                await self._json(200, {"object": "list", "data": data})
            case "/tokenize" | "/apply-template" | "/v1/messages/count_tokens":
                await self._tokens(path)
            case "/health":
                await self._json(200, {"status": "ok"})
            case "/metrics":
                running = sum(call.end == "open" for call in self.backend.counts.calls)
                name = self.backend.models[0] if self.backend.models else ""
                text = metrics.page(engine, self.backend.counters, running, name).encode()
                await self.connection.write(head(200, "text/plain", len(text)) + text)
            case _:
                await self._control(path)

    async def _control(self, path: str) -> None:
        """What a test in another process asks of the fake itself."""
        answer: Json = {}
        match path:
            case "/_stats":
                answer = self.backend.stats()
            case "/_calls":
                answer = {"calls": msgspec.to_builtins(self.backend.calls)}
            case "/_reset":
                self.backend.reset()
            case "/_restart_counters":
                self.backend.restart_counters()
            case "/_next":
                self.backend.next(*json.loads(self.request.body))
            case _:
                await self._json(404, shapes.error_of(404, "File Not Found"))
                return
        await self._json(200, answer)

    async def _json(self, status: int, body: Json) -> None:
        data = json.dumps(body).encode()
        await self.connection.write(head(status, "application/json", len(data)) + data)

    async def _tokens(self, path: str) -> None:
        """Counts of tokens, which no model is run for."""
        engine, body = self.backend.engine, json.loads(self.request.body)
        if not self.backend.tokenizes:
            await self._json(404, shapes.error_of(404, "Not Found"))
            return
        self.backend.counts.tokenized += 1
        answer: Json | None = {"prompt": plain.templated(body)}
        if path == "/v1/messages/count_tokens":
            answer = {"input_tokens": plain.words(plain.templated(body))}
        elif path == "/tokenize":
            answer = plain.tokenized(engine, body)
        elif engine != "llamacpp":
            await self._json(404, shapes.error_of(404, "Not Found"))
            return
        if answer is None:
            await self._json(422, shapes.error_of(422, "this engine tokenizes no such body"))
            return
        await self._json(200, answer)

    async def _dialect(self, path: str) -> None:
        backend, request, dialect = self.backend, self.request, DIALECTS[path]
        backend.number += 1
        try:
            body = fields_of(request)
        except ValueError:
            await self._json(400, shapes.error_of(400, "the body is not JSON"))
            return
        backend.counts.seen.append(
            Seen(path=path, headers=request.headers, body=body, raw=request.body)
        )
        if backend.engine == "llamacpp" and path in NEVER_MIND:
            await self._json(501, shapes.error_of(501, "The model does not support audio."))
            return
        queue = backend.counts.next
        told = body.get("script")
        spelled = str(body.get("model", "")) if told is None else f"-{told}"
        if backend.always is not None:
            spelled = f"-{backend.always}"
        script = queue.popleft() if queue else parse(spelled)
        call = shapes.call_of(
            asked(path, body),
            backend.engine,
            backend.number,
            dialect.chat,
            script,
            named=dialect.named,
        )
        served = Served(
            number=call.number,
            path=path,
            model=call.model,
            tag=body.get("user"),
            stream=_streams(path, body),
            lists=backend.lists,
            request_id=request.headers.get("x-request-id"),
        )
        backend.counts.calls.append(served)
        # Measured: llama.cpp closes behind a stream, although it says that it will not.
        self.connection.closes = backend.engine == "llamacpp" and served.stream
        backend.counts.with_usage += call.include_usage
        backend.counts.with_running += call.running
        try:
            await Play(self.connection, call, served, dialect, backend.counters).run()
        except Gone:
            if served.end == "open":
                served.end = "aborted"
            raise


def asked(path: str, body: Json) -> Json:
    """The body with what only audio endpoints spell in their own way, spelled as elsewhere."""
    if not path.startswith("/v1/audio/t"):
        return body
    options = {
        "include_usage": _true(body.get("stream_include_usage")),
        "continuous_usage_stats": _true(body.get("stream_continuous_usage_stats")),
    }
    return body | {"stream_options": options}


def _streams(path: str, body: Json) -> bool:
    if path == "/v1/audio/speech":
        return body.get("stream_format") == "sse"
    return _true(body.get("stream"))


def _true(value: object) -> bool:
    """A form has only texts."""
    return value is True or str(value).lower() in ("true", "1")


@contextlib.asynccontextmanager
async def fake_backend(
    engine: Engine = "fake",
    key: str = KEY,
    models: tuple[str, ...] = ("fake",),
    port: int = 0,
    name: str = "b1",
    *,
    tokenizes: bool = True,
) -> AsyncIterator[FakeBackend]:
    """A fake that serves on loopback until the block ends; `port` 0 takes a free one. Without
    `tokenizes` it has no tokenizer to be asked, as OpenAI itself has none."""
    backend = FakeBackend(engine, key, models, name, tokenizes=tokenizes)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(backend), "127.0.0.1", port)
    backend.port = server.sockets[0].getsockname()[1]
    try:
        yield backend
    finally:
        server.close()
        backend.thaw()
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
