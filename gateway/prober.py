"""Asks every backend for one token now and then, by the way that requests go, so that a server that
lists its models and answers nobody is noticed. What it costs is in the ledger, under a key of ours.
"""

import asyncio
import logging
from typing import Final

import msgspec

from gateway.backends.pool import Backend, Pool
from gateway.call import Call
from gateway.errors import ApiError
from gateway.relay import Relay
from gateway.stats import Stats
from gateway.wire.endpoints import CHAT
from gateway.wire.requests import asked
from ledger.clock import Clock
from ledger.events.requests import SYSTEM_KEY_ID
from ledger.identity import mint_id
from streams.log.port import Journal

log = logging.getLogger("tollbook.prober")

_PROMPT: Final = "ping"


class Nowhere:
    """A reply that nobody reads; it keeps the status."""

    def __init__(self) -> None:
        self.status = 0

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.status = status

    async def body(self, data: bytes, *, more: bool) -> None:
        return


class Prober:
    """Probes every model that a backend of `pool` lists, every `seconds`; 0: never."""

    def __init__(
        self,
        relay: Relay,
        pool: Pool,
        journal: Journal,
        clock: Clock,
        stats: Stats,
        *,
        seconds: float,
    ) -> None:
        self._relay = relay
        self._pool = pool
        self._journal = journal
        self._clock = clock
        self._stats = stats
        self._seconds = seconds
        self._ended = False
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin, one task for each backend: a server that hangs holds up no other's probe."""
        if self._seconds:
            backends = self._pool.backends.values()
            self._tasks = [asyncio.create_task(self._watch(one)) for one in backends]
            for task in self._tasks:
                task.add_done_callback(_say_why)

    def end(self) -> None:
        """Begin no other probe and cut those that run."""
        self._ended = True
        for task in self._tasks:
            task.cancel()

    async def stop(self) -> None:
        """End, and wait until every probe has its end in the spool."""
        self.end()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _watch(self, backend: Backend) -> None:
        # The relay ends a cut request in peace and takes its cancellation back, hence the flag.
        while not self._ended:
            await asyncio.sleep(self._seconds)
            for model in sorted(backend.known):
                if backend.up and self._journal.room() and not self._ended:
                    await self._probe(backend, model)

    async def _probe(self, backend: Backend, model: str) -> None:
        began = self._clock.monotonic()
        body = msgspec.json.encode(
            {
                "model": model,
                "messages": [{"role": "user", "content": _PROMPT}],
                "max_tokens": 1,
                "stream": False,
            }
        )
        request_id = f"req_{mint_id()}"
        call = Call(
            request_id,
            SYSTEM_KEY_ID,
            CHAT,
            asked(body),
            began,
            asyncio.current_task(),
            body=body,
            only=backend.backend_id,
        )
        headers = {"content-type": "application/json", "x-request-id": request_id}
        reply, why = Nowhere(), ""
        try:
            await self._relay.serve(call, headers, reply)
        except ApiError as error:
            why = error.message
        if self._ended:
            return  # it was cut by us and says nothing of the backend
        probed = backend.backend_id, model
        if reply.status == 200:
            self._stats.probe_seconds[probed] = self._clock.monotonic() - began
            return
        self._stats.probe_failures[probed] += 1
        self._stats.probe_seconds.pop(probed, None)
        log.warning("probe of %s at %s: %s", model, probed[0], why or f"status {reply.status}")


def _say_why(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (fault := task.exception()) is not None:
        log.error("a backend is probed no more", exc_info=fault)
