"""Probes backends from a process that serves nobody: every rung of the ladder, the token too.

That token is a request like any other: it is in the ledger, under the key of the gateway's own, so
it is written to a spool of its own, which the runner or the relay of the data directory takes.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from gateway.backends.backend import Backend, Generated
from gateway.backends.following import Follower
from gateway.backends.http import HttpClient
from gateway.backends.ladder import ORDER, Ladder, Step
from gateway.backends.pool import Pool
from gateway.prober import Prober
from gateway.relay import Relay
from gateway.settings import Settings, resolve_secret
from gateway.stats import Stats
from ledger.clock import Clock
from ledger.events import Draft, SourceClosed, SourceMark
from ledger.folds.book import Book
from ledger.identity import mint_id
from streams.errors import SpoolFailed
from streams.local.layout import Layout
from streams.log.spool import SpoolWriter

TICK_SECONDS: Final = 0.1

Say = Callable[[str, Step], None]


class Probing:
    """The backends that settings and registry make together, and what it takes to ask them for a
    token. `data` null: none can be asked for, since it could not be metered. Make it inside the
    running event loop."""

    def __init__(
        self, settings: Settings, book: Book, data: Path | None, clock: Clock, seconds: float
    ) -> None:
        self._settings = settings
        self._data = data
        self._clock = clock
        self._seconds = seconds
        self._client = HttpClient(connect_seconds=settings.timeouts.connect_seconds)
        self.pool = Pool((), self._client, clock)
        models = settings.gateway.models
        Follower(self.pool, settings.backends, models, resolve_secret, clock).follow(book)
        self._journal: SpoolWriter | None = None
        self._relay: Relay | None = None
        self._prober: Prober | None = None

    async def climb(self, names: Sequence[str], say: Say) -> dict[str, list[Step]]:
        """Climb for each of `names`, one after the other; `say` hears of each step at once."""
        ticking = asyncio.create_task(self._tick())
        try:
            return {name: await self._climb(self.pool.backends[name], say) for name in names}
        finally:
            ticking.cancel()
            self._end_source()

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _climb(self, backend: Backend, say: Say) -> list[Step]:
        if backend.held is not None:
            held = {"key": Step("key", False, backend.held)}
            rest = "not tried: without its key it may not be called"
            return [held.get(rung, Step(rung, None, rest)) for rung in ORDER]

        async def token(model: str) -> Generated | None:
            prober = self._metered()
            return None if prober is None else await prober.generate(backend, model, self._seconds)

        connect_seconds = self._settings.timeouts.connect_seconds
        ladder = Ladder(self._client, self._clock, connect_seconds)
        return await ladder.climb(backend, token, lambda step: say(backend.backend_id, step))

    def _metered(self) -> Prober | None:
        """What asks for a token; a spool is made for the first one, and not before."""
        if self._prober is None and self._data is not None:
            incarnation, spool = mint_id(), self._settings.spool
            self._journal = SpoolWriter.create(
                Layout(self._data).spool(incarnation),
                f"/gateway/{self._settings.gateway.name}/{incarnation}",
                clock=self._clock,
                limit_bytes=spool.limit_bytes,
                reserve_bytes=spool.reserve_bytes,
                durability=spool.durability,
            )
            stats = Stats()
            self._relay = Relay(
                self._journal,
                self.pool,
                self._client,
                self._clock,
                self._settings.timeouts,
                stats,
                wait_durable=spool.durability == "power",
            )
            self._prober = Prober(
                self._relay, self.pool, self._journal, self._clock, stats, seconds=0
            )
        return self._prober

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            if self._relay is not None:
                self._relay.tick()

    def _end_source(self) -> None:
        """Say that this source has ended, so that nobody waits for it."""
        journal, relay = self._journal, self._relay
        if journal is None or relay is None:
            return
        try:
            relay.tick()
            if not relay.open and not relay.owes:
                mark = SourceMark(last=journal.last(), open=0, heads=journal.heads())
                source, now = journal.source, self._clock.now()
                journal.append(Draft(f"{source}/mark/1", source, now, mark))
                last, heads = journal.last(), journal.heads()
                closed = SourceClosed(closed_source=source, last=last, by="itself", heads=heads)
                journal.append(Draft(f"{source}/closed", source, now, closed))
        except SpoolFailed:
            # Whoever adopts the spool says so instead.
            pass
        finally:
            journal.close()
