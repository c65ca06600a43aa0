"""The fake's own books: what it did for each call, to hold a ledger against."""

from collections import Counter, deque
from typing import Any, Literal

import msgspec

from tests.support.script import Script
from tests.support.shapes import Json

CALLS_KEPT_MAX = 200_000
SEEN_KEPT_MAX = 64

End = Literal["open", "done", "aborted", "cut", "stalled", "error", "status"]


class Served(msgspec.Struct, kw_only=True):
    """What the backend did for one call. `completion` is what it produced, sent or not, of which
    `reasoning` are thoughts; `prompt` includes `cached` and `written`.

    `tag` is the caller's `user` field, by which a test finds its own calls again; `request_id` is
    the gateway's. `chunks` are those with tokens, `lists` counts how often the backend had been
    asked for its models before.
    """

    number: int
    path: str
    model: str
    tag: str | None
    stream: bool
    request_id: str | None = None
    prompt: int = 0
    cached: int = 0
    written: int = 0
    completion: int = 0
    reasoning: int = 0
    chunks: int = 0
    lists: int = 0
    end: End = "open"


class Seen(msgspec.Struct, kw_only=True):
    """A call as it arrived: what a gateway let through."""

    path: str
    headers: dict[str, str]
    body: Any
    raw: bytes


class Counts(msgspec.Struct):
    """The backend's own books since the last reset."""

    unauthorized: int = 0
    with_usage: int = 0
    with_running: int = 0
    tokenized: int = 0
    connections: int = 0
    calls: deque[Served] = msgspec.field(default_factory=lambda: deque(maxlen=CALLS_KEPT_MAX))
    seen: deque[Seen] = msgspec.field(default_factory=lambda: deque(maxlen=SEEN_KEPT_MAX))
    next: deque[Script] = msgspec.field(default_factory=deque)

    def stats(self) -> Json:
        """The books as one JSON object, as `GET /_stats` gives them."""
        ends = Counter(call.end for call in self.calls)
        return {
            "requests": len(self.calls),
            "streams": sum(call.stream for call in self.calls),
            "unauthorized": self.unauthorized,
            "with_usage": self.with_usage,
            "with_running": self.with_running,
            "tokenized": self.tokenized,
            "connections": self.connections,
            "prompt_tokens": sum(call.prompt for call in self.calls),
            "cached_tokens": sum(call.cached for call in self.calls),
            "completion_tokens": sum(call.completion for call in self.calls),
            "ends": dict(ends),
            "aborts": [
                {"model": call.model, "tag": call.tag, "chunks": call.completion}
                for call in self.calls
                if call.end == "aborted"
            ],
            "last": [{"path": s.path, "headers": s.headers, "body": s.body} for s in self.seen],
        }
