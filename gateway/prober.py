"""Asks every backend for one token now and then, by the way that requests go, so that a server that
lists its models and answers nobody is noticed. What it costs is in the ledger, under a key of ours.
"""

import asyncio
import logging
from typing import Final

import msgspec

from gateway.backends.pool import Backend, Generated, Pool
from gateway.backends.watches import Watches
from gateway.call import Call
from gateway.errors import MISCONFIGURED, ApiError, Overloaded
from gateway.relay import Relay
from gateway.stats import Stats
from gateway.wire.endpoints import CHAT
from gateway.wire.generated import verdict_of
from gateway.wire.requests import asked
from ledger.clock import Clock
from ledger.events.requests import SYSTEM_KEY_ID
from ledger.identity import mint_id
from streams.log.port import Journal

log = logging.getLogger("tollbook.prober")

_PROMPT: Final = "ping"

_KEPT_BYTES: Final = 65_536
"""One token and its usage are a hundredth of this."""

GENERATION_SECONDS_MAX: Final = 10.0
"""For the token that brings a backend back: one that hangs must not be waited for as a request is,
since the next probe may find it well."""


class Nowhere:
    """A reply that nobody reads; it keeps the status and the first bytes."""

    def __init__(self) -> None:
        self.status = 0
        self.said = b""

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.status = status

    async def body(self, data: bytes, *, more: bool) -> None:
        if len(self.said) < _KEPT_BYTES:
            self.said += data


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
        self._calls: set[Call] = set()
        self._watches = Watches(self._watch, log, "backend %s is probed no more")

    def follow(self) -> None:
        """Begin with backends that are new, and end with those that are gone."""
        if self._seconds and not self._ended:
            self._watches.follow(self._pool.backends.values())

    def end(self) -> None:
        """Begin no other probe and cut those that run."""
        self._ended = True
        self._watches.end_all()
        for call in self._calls:
            if call.task is not None:
                call.task.cancel()

    async def stop(self) -> None:
        """End, and wait until every probe has its end in the spool."""
        self.end()
        await self._watches.stop()

    async def _watch(self, backend: Backend) -> None:
        while self._watches.still(backend):
            await asyncio.sleep(self._seconds)
            for model in sorted(backend.known):
                if backend.up and not backend.draining and self._may():
                    await self._probe(backend, model)

    async def _probe(self, backend: Backend, model: str) -> None:
        made = await self.generate(backend, model)
        if made is None:
            return
        probed = backend.backend_id, model
        if made.verdict == "made":
            self._stats.probe_seconds[probed] = made.seconds
            return
        self._stats.probe_failures[probed] += 1
        self._stats.probe_seconds.pop(probed, None)
        log.warning("probe of %s at %s: %s", model, probed[0], made.words)
        if made.verdict == "failed":
            backend.not_generated(made.words, self._clock.monotonic(), made.rung)

    async def revive(self, backend: Backend, model: str) -> Generated | None:
        """As `generate`, in the time that there is for bringing a backend back."""
        return await self.generate(backend, model, GENERATION_SECONDS_MAX)

    async def generate(
        self, backend: Backend, model: str, seconds: float | None = None
    ) -> Generated | None:
        """Ask `backend` for one token of `model`, by the way of a request, whatever its breaker
        says. Null if that cannot be done now: the spool has no room, or this process ends.

        It may take `seconds`, if that is less than a request may take.
        """
        if not self._may():
            return None
        began = self._clock.monotonic()
        call, headers = self._call(backend, model, began)
        reply, made, limit = Nowhere(), None, None
        if seconds is not None:
            loop = asyncio.get_running_loop()
            limit = loop.call_later(seconds, self._relay.give_up, call)
        self._calls.add(call)
        try:
            await self._relay.serve(call, headers, reply)
        except Overloaded:
            return None  # by the gateway itself
        except ApiError as error:
            refused = error.code == MISCONFIGURED[401].code
            words = "it refuses the server key (401)" if refused else error.message
            made = Generated("failed", words, 0.0, "key" if refused else "generation")
        finally:
            self._calls.discard(call)
            if limit is not None:
                limit.cancel()
        if self._ended:
            return None  # it was cut by us and says nothing of the backend
        took = self._clock.monotonic() - began
        if made is None:
            verdict, words = verdict_of(reply.status, reply.said)
            made = Generated(verdict, words, took)
        return msgspec.structs.replace(made, seconds=took)

    def _may(self) -> bool:
        return not self._ended and self._journal.room()

    def _call(self, backend: Backend, model: str, now: float) -> tuple[Call, dict[str, str]]:
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
            now,
            asyncio.current_task(),
            body=body,
            only=backend.backend_id,
        )
        return call, {"content-type": "application/json", "x-request-id": request_id}
