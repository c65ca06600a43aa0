"""All backends of this gateway: asked, brought back, and followed as they come and go."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime

from gateway.backends.backend import Backend, Generated, Rung
from gateway.backends.port import BackendFailed, Client
from gateway.backends.watches import Watches
from gateway.routing import breaker as rule
from gateway.routing.breaker import Breaker
from gateway.routing.policy import BackendView
from ledger.clock import Clock
from ledger.folds.routing import RoutingView

log = logging.getLogger("tollbook.backends")

__all__ = ["Backend", "Diagnose", "Generate", "Generated", "Pool"]

PROBE_SECONDS = 2.0
"""How often each backend is asked for its models, and so the longest that a recovered one waits."""

DIAGNOSE_SECONDS = 30.0
"""How often it is looked for a backend elsewhere that refuses at its address."""

FRESH_SECONDS = 10.0
"""How old a view may be that says of a backend that it is down, and is believed at a start."""

DOWN_SECONDS_AT_START = 0.5
"""For the first list of one that was down before. The others may not be reached meanwhile."""

WHY_SECONDS_AT_START = 1.0
"""For why a backend is away, while the door is still closed."""

PROBE_SECONDS_MAX = 5.0
"""A server that needs longer for its list of models is busy beyond use or hangs. One that answered
a request meanwhile is only busy."""


Generate = Callable[[Backend, str], Awaitable[Generated | None]]
"""Asks a backend for one token of a model, by the very path of a request; null if that cannot be
done now."""

Diagnose = Callable[[Backend], Awaitable[tuple[Rung, str] | None]]
"""Why a backend cannot be reached: the first rung of the ladder that does not hold, and words
without its address; null if all hold."""


class Pool:
    """All backends, kept up to date by one task for each. They come and go while it runs.

    `live_gateways` divides the trials of a backend that is half open. `generate` asks for one
    token; without it, what requests made of a breaker is undone by a list of models.
    """

    def __init__(self, backends: Iterable[Backend], client: Client, clock: Clock) -> None:
        self.backends = {backend.backend_id: backend for backend in backends}
        self.live_gateways = 1
        self.generate: Generate | None = None
        self.diagnose: Diagnose | None = None
        self._diagnosed: dict[str, tuple[float, str, tuple[Rung, str] | None]] = {}
        self._client = client
        self._clock = clock
        self._served: frozenset[str] = frozenset()
        self._runs = False
        # A fault of ours must not leave a backend unasked, since nothing else brings it back.
        self._watches = Watches(self._watch, log, "watching backend %s failed", again=True)

    @property
    def any_model(self) -> bool:
        """True if some backend takes any model name."""
        return None in [backend.models for backend in self.backends.values()]

    def served(self) -> frozenset[str]:
        """Every model name that some backend is known to serve."""
        return self._served

    def views(self) -> list[BackendView]:
        """One view of each backend, for `choose`."""
        now, gateways = self._clock.monotonic(), self.live_gateways
        return [backend.view(now, gateways) for backend in self.backends.values()]

    def put(self, backend: Backend) -> None:
        """A backend joins, or takes the place of the one with its id. It is asked at once."""
        self.drop(backend.backend_id)
        self.backends[backend.backend_id] = backend
        if self._runs:
            self._watches.begin(backend, self._go_on)

    def drop(self, backend_id: str) -> None:
        """A backend leaves. The requests that it works on go on."""
        gone = self.backends.pop(backend_id, None)
        self._diagnosed.pop(backend_id, None)
        if gone is not None:
            self._watches.end(gone)
        self._serve()

    def restore(self, views: Iterable[RoutingView], gateway: str, now: datetime) -> None:
        """Begin as `gateway` was when it ended: what its last views said, and where it has none,
        what most others say that are fresh. An old view never means that a backend is down."""
        monotonic = self._clock.monotonic()
        told: dict[str, list[RoutingView]] = {}
        for view in views:
            told.setdefault(view.backend_id, []).append(view)
        for backend in self.backends.values():
            known = told.get(backend.backend_id, [])
            own = next((view for view in known if view.gateway == gateway), None)
            if own is not None:
                backend.restore(_restored(own, now, monotonic), own)
                continue
            fresh = [view for view in known if view.expires_at > now]
            down = [view for view in fresh if view.state == "open"]
            # The middle of them, ordered by how bad it is: down only if more than half say so.
            fresh = down if 2 * len(down) > len(fresh) else [v for v in fresh if v not in down]
            if fresh:
                backend.restore(_restored(fresh[0], now, monotonic), fresh[0])

    async def start(self) -> None:
        """Ask every backend once, at most `PROBE_SECONDS_MAX` and a second for why one is away,
        then go on in the background."""
        await asyncio.gather(*(self._ask_first(backend) for backend in self.backends.values()))
        self._runs = True
        self._watches.follow(self.backends.values())

    async def stop(self) -> None:
        """End the background tasks."""
        self._runs = False
        await self._watches.stop()

    async def _watch(self, backend: Backend) -> None:
        await asyncio.sleep(PROBE_SECONDS)
        await self._go_on(backend)

    async def _go_on(self, backend: Backend) -> None:
        while self._watches.still(backend):
            await self._ask(backend)
            await self._try(backend)
            await asyncio.sleep(PROBE_SECONDS)

    async def _ask_first(self, backend: Backend) -> None:
        """One that was down before, as `restore` was told, is hardly waited for: a server that
        hangs must not keep clients from all others each time that a gateway starts."""
        seconds = DOWN_SECONDS_AT_START if backend.breaker.state == "open" else None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ask(backend, WHY_SECONDS_AT_START)

    async def _ask(self, backend: Backend, why_seconds: float | None = None) -> None:
        if backend.held is not None:
            return
        try:
            status, body = await self._client.fetch(
                backend, "/v1/models", seconds=PROBE_SECONDS_MAX
            )
        except BackendFailed as failed:
            now = self._clock.monotonic()
            if failed.reason == "slow" and backend.heard_since(PROBE_SECONDS_MAX, now):
                return
            if failed.reason == "own_limit":
                return  # it was not asked, so it is as it was
            rung, words = await self._why(backend, str(failed), why_seconds)
            backend.failed(words, rung)
        else:
            backend.learn(status, body)
        backend.probed(self._clock.monotonic(), generated=self.generate is None)
        self._serve()

    async def _why(self, backend: Backend, said: str, seconds: float | None) -> tuple[Rung, str]:
        """The rung that does not hold, and why. It is looked into when `said` is new, and then now
        and then: looking asks other ports than the backend's own."""
        if self.diagnose is None:
            return "list", said
        now = self._clock.monotonic()
        at, about, found = self._diagnosed.get(backend.backend_id, (now, "", None))
        if about != said or now - at >= DIAGNOSE_SECONDS:
            try:
                async with asyncio.timeout(seconds):
                    found = await self.diagnose(backend)
            except TimeoutError:
                return "list", said
            self._diagnosed[backend.backend_id] = now, said, found
        return found or ("list", said)

    async def _try(self, backend: Backend) -> None:
        """Ask a backend for one token that lists its models, though its requests met faults, or
        clients left it of which nobody heard anything."""
        began, is_open = self._clock.monotonic(), backend.breaker.state == "open"
        if not is_open and not backend.is_silent(PROBE_SECONDS_MAX, began):
            return
        if self.generate is None or not backend.listed:
            return
        model = min(backend.known, default=None)
        made = None if model is None else await self.generate(backend, model)
        now = self._clock.monotonic()
        if model is None or made is not None:
            backend.unheard_since = None
        if not is_open and backend.heard_at >= began:
            return  # it answers others: it is only busy
        if model is None or (made is not None and made.verdict != "failed"):
            # Where there is nothing to ask for, the list has to be enough: the trials will tell.
            backend.probed(now, generated=True)
        elif made is not None:
            words = made.words + await self._but_healthy(backend)
            backend.not_generated(words, now, made.rung)

    async def _but_healthy(self, backend: Backend) -> str:
        try:
            status, _ = await self._client.fetch(backend, "/health", seconds=PROBE_SECONDS_MAX)
        except BackendFailed:
            return ""
        return f" (its /health answers {status})"

    def _serve(self) -> None:
        self._served = frozenset(name for each in self.backends.values() for name in each.known)


def _restored(view: RoutingView, now: datetime, monotonic: float) -> Breaker:
    state = view.state or ("closed" if view.up else "open")
    age = max((now - view.observed_at).total_seconds(), 0.0)
    had = 1.0 if view.share is None else float(view.share)
    return rule.restored(state, had, monotonic - age, fresh=age < FRESH_SECONDS)
