"""A request leaves no circle of references: all of it is freed at its end, not by the collector.

One circle for each request (call, watch, call) cost a fifth of all requests/s: memory was used
again only after a collection, when no cache knew it any more.
"""

import gc
import hashlib
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.backends.port import BackendFailed
from gateway.books import Books
from gateway.http.app import Readiness, create_app
from gateway.http.doors import Desk as Doors
from ledger.clock import from_us
from ledger.folds.book import Book, Key
from tests.gateway.desk import PLAIN, Desk, ScriptedAnswer, ScriptedClient, Step

SECRET = b"sk-tb-test"
HASH = hashlib.sha256(SECRET).hexdigest()
KEY = Key(key_id="key-1", version=1, hash=HASH, issued_at=from_us(0))
CHUNK = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
STREAM = b'{"model":"m","stream":true}'

Script = Sequence[ScriptedAnswer | BackendFailed]


def plain(*steps: Step) -> ScriptedAnswer:
    return ScriptedAnswer(*steps, content_type="application/json")


@pytest.mark.parametrize(
    ("body", "make", "status"),
    [
        (PLAIN, lambda: [plain(b'{"usage":{"prompt_tokens":1}}')], 200),
        (STREAM, lambda: [ScriptedAnswer(CHUNK, CHUNK, DONE)], 200),
        (STREAM, lambda: [ScriptedAnswer(CHUNK)], 200),
        (b"{}", list, 400),
        (PLAIN, lambda: [plain(b"busy", b"")], 200),
        (STREAM, lambda: [BackendFailed("unreachable", "refused")], 502),
        (STREAM, lambda: [ScriptedAnswer(CHUNK, BackendFailed("lost", "broken"))], 200),
    ],
    ids=["plain", "stream", "stream without an end", "bad request", "no usage", "down", "lost"],
)
async def test_nothing_of_a_request_waits_for_the_collector(
    body: bytes, make: Any, status: int
) -> None:
    desk = Desk(ScriptedClient())
    for backend in desk.pool.backends.values():
        backend.up = True
    doors = Doors(
        relay=desk.relay,
        pool=desk.pool,
        journal=desk.journal,
        clock=desk.clock,
        stats=desk.stats,
        book=lambda: Book(keys={KEY.key_id: KEY}, by_hash={HASH: KEY}),
        hash_key=bytes(32),
        body_bytes_max=1 << 20,
    )
    app = create_app(
        doors,
        readiness=lambda: Readiness(True, (), {}),
        metrics=lambda: b"",
        books=Books(None),
    )
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async def ask() -> None:
        desk.client.script = list(make())
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/chat/completions",
            "headers": [(b"authorization", b"Bearer " + SECRET)],
        }
        await app(scope, receive, send)

    await ask()
    gc.collect()
    gc.disable()
    try:
        await ask()
        found = gc.collect()
    finally:
        gc.enable()
    assert statuses == [status, status]
    assert found == 0
