"""Clients that write down what they see: each answer, each chunk, and when it came.

They know nothing of the gateway's books. What they hold against the ledger afterwards is only what
came out of their own sockets, found again by a tag that each request carries to the backend (as
`user`) and to the ledger (hashed, as the client's own `x-request-id`).
"""

import asyncio
import itertools
import random
import threading
import time
from collections.abc import Sequence
from typing import Any, Literal

import aiohttp
import msgspec

from tests.support.script import Script, parse

End = Literal["open", "whole", "broken", "hung_up"]
Endpoint = Literal["chat/completions", "completions"]

RETRY_SECONDS = 0.05
"""Pause of a client that was refused or broken off: it comes back at once, as clients do."""

ENDING_SECONDS_MAX = 20.0


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One request to be made. `limit` is its `max_tokens`, `hang_up` after how many chunks the
    client leaves."""

    tag: str
    key: str
    model: str
    stream: bool
    endpoint: Endpoint = "chat/completions"
    limit: int | None = None
    usage: bool = False
    hang_up: int | None = None

    @property
    def script(self) -> Script:
        """What the fake backend does with this model."""
        return parse(self.model)

    @property
    def tokens(self) -> int:
        """How many tokens a whole answer has."""
        chunks = self.script.chunks
        return chunks if self.limit is None else min(chunks, self.limit)

    def body(self) -> dict[str, Any]:
        """The request's JSON."""
        said: dict[str, Any] = {"model": self.model, "user": self.tag, "stream": self.stream}
        if self.endpoint == "completions":
            said["prompt"] = "Count."
        else:
            said["messages"] = [{"role": "user", "content": "Count."}]
        if self.limit is not None:
            said["max_tokens"] = self.limit
        if self.stream and self.usage:
            said["stream_options"] = {"include_usage": True}
        return said


class Seen(msgspec.Struct, kw_only=True):
    """What a client saw of one answer. Times are seconds of this machine's monotonic clock.

    `chunks` holds when each chunk with text came. An answer that ended in order is `whole`: a body
    with its full length, or a stream with its last bytes; `done` says that these were `[DONE]`.
    """

    ask: Ask
    sent: float
    ended: float = float("inf")
    end: End = "open"
    status: int | None = None
    request_id: str | None = None
    backend: str | None = None
    chunks: list[float] = []
    done: bool = False
    usage: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    wrong: str | None = None

    @property
    def served(self) -> bool:
        """True if the client has the whole answer and no reason to complain."""
        complete = self.done or not self.ask.stream
        return self.end == "whole" and self.status == 200 and complete and self.error is None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    message: _Delta | None = None
    text: str | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


_event = msgspec.json.Decoder(_Event)


def _text(event: _Event) -> str:
    for choice in event.choices:
        said = choice.delta or choice.message
        if said is not None:
            return (said.reasoning_content or "") + (said.content or "")
        return choice.text or ""
    return ""


class Client:
    """Sends requests over its own connections. Make it inside a running loop; `async with` it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=120),
        )

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._session.close()

    async def send(self, ask: Ask, seen: Seen | None = None) -> Seen:
        """Make one request and see it to its end, whatever that is. `seen` may be watched."""
        seen = seen or Seen(ask=ask, sent=time.monotonic())
        headers = {"authorization": f"Bearer {ask.key}", "x-request-id": ask.tag}
        url = f"{self._url}/v1/{ask.endpoint}"
        try:
            async with self._session.post(url, json=ask.body(), headers=headers) as answer:
                seen.status = answer.status
                seen.request_id = answer.headers.get("x-request-id")
                seen.backend = answer.headers.get("x-tollbook-backend")
                if answer.content_type == "text/event-stream":
                    await _see_stream(seen, answer)
                else:
                    _see_whole(seen, await answer.read())
            if seen.end == "open":
                seen.end = "whole"
        except (aiohttp.ClientError, OSError, TimeoutError):
            seen.end = "broken"
        seen.ended = time.monotonic()
        return seen


async def _see_stream(seen: Seen, answer: aiohttp.ClientResponse) -> None:
    tail = b""
    async for data in answer.content.iter_any():
        now = time.monotonic()
        *events, tail = (tail + data).split(b"\n\n")
        for event in events:
            _see_event(seen, event, now)
        if seen.ask.hang_up is not None and len(seen.chunks) >= seen.ask.hang_up:
            seen.end = "hung_up"
            answer.close()
            return
    if tail:
        seen.wrong = f"half an event at the end: {tail!r}"


def _see_event(seen: Seen, raw: bytes, now: float) -> None:
    if not raw.startswith(b"data: "):
        seen.wrong = f"no event: {raw!r}"
        return
    if raw == b"data: [DONE]":
        seen.done = True
        return
    event = _event.decode(raw[6:])
    if event.error is not None:
        seen.error = event.error
    if event.usage is not None:
        seen.usage = event.usage
    text = _text(event)
    if not text:
        return
    if text != f" t{len(seen.chunks)}":
        seen.wrong = f"{text!r} came as chunk {len(seen.chunks)}"
    seen.chunks.append(now)


def _see_whole(seen: Seen, body: bytes) -> None:
    event = _event.decode(body)
    seen.error, seen.usage = event.error, event.usage
    words = _text(event).split()
    # A plain completion has no place for its reasoning, so its words begin behind it.
    hidden = seen.ask.endpoint == "completions" and seen.status == 200
    first = min(seen.ask.script.reasoning, seen.ask.tokens) if hidden else 0
    if words != [f"t{first + index}" for index in range(len(words))]:
        seen.wrong = f"words are missing: {words}"
    seen.chunks = [time.monotonic()] * (first + len(words))


class Mix(msgspec.Struct, frozen=True, kw_only=True):
    """What a crowd of clients asks for: how many ask at once, and what may be in it."""

    streams: int = 16
    plains: int = 6
    models: tuple[str, ...]
    hang_ups: float = 0.1

    def ask(self, dice: random.Random, tag: str, keys: Sequence[str], *, stream: bool) -> Ask:
        """One request at random."""
        model = dice.choice(self.models)
        chunks = parse(model).chunks
        leaves = stream and dice.random() < self.hang_ups
        return Ask(
            tag=tag,
            key=dice.choice(keys),
            model=model,
            stream=stream,
            endpoint=dice.choice(("chat/completions", "completions")),
            limit=dice.choice((None, dice.randint(1, chunks))),
            usage=dice.random() < 0.5,
            hang_up=dice.randint(1, chunks) if leaves else None,
        )


class Crowd:
    """Clients that ask on and on from a thread of their own, through any death of the gateway.

    `seen` grows while they work; it is whole once `stop` has returned.
    """

    def __init__(
        self, url: str, keys: Sequence[str], mix: Mix, dice: random.Random, name: str
    ) -> None:
        self.seen: list[Seen] = []
        self._url, self._keys, self._mix = url, keys, mix
        self._dice, self._name = random.Random(dice.random()), name
        self._numbers = itertools.count()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._work()), daemon=True)

    def __enter__(self) -> "Crowd":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ask nothing new, and wait until every answer under way has its end. Safe twice."""
        self._stopping.set()
        self._thread.join(ENDING_SECONDS_MAX)
        assert not self._thread.is_alive(), f"clients of {self._name} still wait for answers"

    def served(self) -> int:
        """How many whole answers came so far."""
        return sum(seen.served for seen in self.seen)

    async def _work(self) -> None:
        async with Client(self._url) as client:
            kinds = [True] * self._mix.streams + [False] * self._mix.plains
            await asyncio.gather(*(self._one(client, stream) for stream in kinds))

    async def _one(self, client: Client, stream: bool) -> None:
        # They do not all begin at once, so that a kill finds them at different places.
        await asyncio.sleep(self._dice.random() * 0.3)
        while not self._stopping.is_set():
            tag = f"{self._name}-{next(self._numbers)}"
            ask = self._mix.ask(self._dice, tag, self._keys, stream=stream)
            seen = Seen(ask=ask, sent=time.monotonic())
            self.seen.append(seen)
            await client.send(ask, seen)
            if not seen.served:
                await asyncio.sleep(RETRY_SECONDS)


def ask_all(url: str, asks: Sequence[Ask], at_once: int = 64) -> list[Seen]:
    """Make all these requests from this thread, at most `at_once` at a time, and wait for all."""

    async def run() -> list[Seen]:
        gate = asyncio.Semaphore(at_once)
        async with Client(url) as client:

            async def one(ask: Ask) -> Seen:
                async with gate:
                    return await client.send(ask)

            return await asyncio.gather(*(one(ask) for ask in asks))

    return asyncio.run(run())
