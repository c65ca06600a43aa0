"""Asks a backend's own tokenizer what a cut answer came to, where its engine gave no count.

It happens after the cut, while the request holds no slot of any backend, and takes a bounded time:
what cannot be had within it stays counted by chunks.
"""

import asyncio
from typing import Final

from gateway.backends.pool import Backend, Pool
from gateway.backends.port import BackendFailed, Client
from gateway.call import Call
from gateway.wire.tokens import Query, tokenized
from ledger.clock import Clock
from ledger.events import Usage

SECONDS_MAX: Final = 5.0
"""For the count of one request, waiting included."""

AT_ONCE_MAX: Final = 8
"""Counts under way in one process: when a server with many streams dies, its neighbour must not be
flooded with their texts."""

FORGET_SECONDS: Final = 300.0
"""For so long a backend that has no tokenizer is not asked again."""

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
        backend = self._backend(call)
        if backend is None:
            return None
        try:
            async with asyncio.timeout(SECONDS_MAX), self._turns:
                return await self._ask(call, backend, delivered)
        except (TimeoutError, BackendFailed):
            return None

    def _backend(self, call: Call) -> Backend | None:
        """The one that was called, else another of the same kind with the same model."""
        first = call.backend
        if first is None:
            return None
        model, now = call.wish.model, self._clock.monotonic()
        others = (
            other
            for other in self._pool.backends.values()
            if other.engine == first.engine and (other.models is None or model in other.models)
        )
        for backend in (first, *others):
            if backend.up and self._lacking.get(backend.backend_id, 0.0) <= now:
                return backend
        return None

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
                    backend, query.path, seconds=SECONDS_MAX, body=query.body
                )
                lacking |= status in _NO_TOKENIZER
                query = asking.send((status, answer))
        except StopIteration as ended:
            found: Usage | None = ended.value
        if found is None and lacking:
            self._lacking[backend.backend_id] = self._clock.monotonic() + FORGET_SECONDS
        return found
