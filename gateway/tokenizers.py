"""Asks a backend's own tokenizer what a cut answer came to, where its engine gave no count.

It happens after the cut, while the request holds no slot of any backend, and takes a bounded time:
what cannot be had within it stays counted by chunks.
"""

import asyncio
import logging
from collections.abc import Iterator
from typing import Final

from gateway.backends.pool import Backend, Pool
from gateway.backends.port import BackendFailed, Client
from gateway.call import Call
from gateway.wire.tokens import Query, tokenized
from ledger.clock import Clock
from ledger.errors import EventError
from ledger.events import Usage

log = logging.getLogger("tollbook.tokenizers")

SECONDS_MAX: Final = 5.0
"""For the count of one request, waiting included."""

QUERY_SECONDS_MAX: Final = 2.0
"""For one answer of a tokenizer, so that there is time left for a neighbour."""

SILENT_SECONDS: Final = 30.0
"""For so long a backend whose tokenizer did not answer is not asked again: each request would wait
for it anew."""

AT_ONCE_MAX: Final = 8
"""Counts under way in one process: when a server with many streams dies, its neighbour must not be
flooded with their texts."""

FORGET_SECONDS: Final = 300.0
"""For so long a backend that has no tokenizer is not asked again."""

_UNFIT = (AttributeError, EventError, LookupError, RecursionError, TypeError, ValueError)
"""What a body or an answer of a shape that nobody expects may raise: callers and servers send what
they like, and none of it may keep a request from its end."""

_NO_TOKENIZER = (404, 405, 501)


class Tokenizers:
    """The tokenizers behind `pool`."""

    def __init__(self, pool: Pool, client: Client, clock: Clock) -> None:
        self._pool = pool
        self._client = client
        self._clock = clock
        self._lacking: dict[str, float] = {}
        self._turns = asyncio.Semaphore(AT_ONCE_MAX)

    async def count(self, call: Call, delivered: bytes | None) -> Usage | None:
        """The tokens of the prompt of `call` and of `delivered`, the raw bytes of its answer (null:
        not known). Null if no tokenizer can be asked, or none answers in time."""
        try:
            async with asyncio.timeout(SECONDS_MAX), self._turns:
                for backend in self._backends(call):
                    try:
                        return await self._ask(call, backend, delivered)
                    except BackendFailed:
                        # It may be gone, and its neighbour know the same words.
                        self._leave_out(backend, SILENT_SECONDS)
        except TimeoutError:
            pass
        except _UNFIT as fault:
            name = type(fault).__name__
            log.warning("request %s could not be tokenized: %s", call.request_id, name)
        return None

    def _backends(self, call: Call) -> Iterator[Backend]:
        """The one that was called, then others of the same kind with the same model."""
        first = call.backend
        if first is None:
            return
        model, now = call.wish.model, self._clock.monotonic()
        others = (
            other
            for other in self._pool.backends.values()
            if other is not first
            and other.engine == first.engine
            and (other.models is None or model in other.models)
        )
        for backend in (first, *others):
            # One whose breaker is open may still tokenize; one that does not answer may not.
            answers = backend.up or backend.listed
            if answers and self._lacking.get(backend.backend_id, 0.0) <= now:
                yield backend

    async def _ask(self, call: Call, backend: Backend, delivered: bytes | None) -> Usage | None:
        asking = tokenized(
            call.endpoint,
            call.body,
            call.content_type,
            delivered,
            backend.engine,
            streamed=call.meter is not None,
        )
        lacking = False
        try:
            query: Query = next(asking)
            while True:
                status, answer = await self._client.fetch(
                    backend, query.path, seconds=QUERY_SECONDS_MAX, body=query.body
                )
                lacking |= status in _NO_TOKENIZER
                query = asking.send((status, answer))
        except StopIteration as ended:
            found: Usage | None = ended.value
        if found is None and lacking:
            self._leave_out(backend, FORGET_SECONDS)
        return found

    def _leave_out(self, backend: Backend, seconds: float) -> None:
        self._lacking[backend.backend_id] = self._clock.monotonic() + seconds
