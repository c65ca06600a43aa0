"""One serving process: its parts, its heartbeat, and an orderly end.

It reads no SQL and waits for no runner: with the ledger away it serves until its spool is full, and
with Kafka away it goes on with the keys that it knows.
"""

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Iterable

from gateway.backends.following import Follower
from gateway.backends.gauges import backend_gauges
from gateway.backends.http import HttpClient
from gateway.backends.ladder import Ladder
from gateway.backends.pool import Backend, Pool
from gateway.books import Books
from gateway.drains import drain_us
from gateway.errors import Overloaded
from gateway.http.app import Readiness, create_app
from gateway.http.doors import Desk
from gateway.http.server import Server, make_server, serve
from gateway.memory import Memory
from gateway.metrics import GatewayCollector, Gauges, render
from gateway.observer import Observer
from gateway.prober import Prober
from gateway.registry import Registry
from gateway.relay import Relay
from gateway.routing.policy import Rules, Ruling
from gateway.scraper import Scraper
from gateway.settings import Settings, resolve_secret
from gateway.sharing import Sharing, picks_before
from gateway.stats import Stats
from ledger.clock import Clock
from ledger.events import Draft, SourceClosed, SourceMark
from ledger.folds.book import Book
from streams.errors import SpoolFailed
from streams.log.spool import SpoolWriter

log = logging.getLogger("tollbook.gateway")

LINK_TURNS_MAX = 256
"""Parts of the chains' work that one heartbeat does, with others let in between. What came in one
interval is far less."""

MARK_SECONDS = 60.0
"""How often a source says how far it got, also when idle: what completeness is checked against."""

REGISTRY_POLL_SECONDS = 0.25
"""A new or revoked key counts after this long: one `stat` each time, well within one second."""

ENDING_SECONDS_MAX = 3.0
"""After the grace is over, cut requests write their end within this time."""

TOLD_AGAIN_SECONDS = 0.5
"""How long one of them may wait for somebody else meanwhile."""

_LAG_POINTS_MAX = 86_400
"""One point a second for a day of outage; beyond that the lag is shown as a day."""


class Service:
    """Everything in one serving process. Make it inside the running event loop.

    `leads`: it does what one of several processes is enough for.
    """

    def __init__(
        self,
        settings: Settings,
        journal: SpoolWriter,
        registry: Registry,
        backends: Iterable[Backend],
        clock: Clock,
        hash_key: bytes,
        extra_gauges: Callable[[], Iterable[tuple[str, str, dict[str, str], float]]],
        view_name: str,
        extra_missing: Callable[[], Iterable[str]] = tuple,
        *,
        books: Books,
        leads: bool = True,
    ) -> None:
        self._settings = settings
        self._journal = journal
        self._registry = registry
        self._clock = clock
        self._extra_gauges = extra_gauges
        self._extra_missing = extra_missing
        self._lag: deque[tuple[int, float]] = deque(maxlen=_LAG_POINTS_MAX)
        self._marks = 0
        stats = self._stats = Stats()
        self._client = HttpClient(connect_seconds=settings.timeouts.connect_seconds)
        self._pool = Pool(backends, self._client, clock)
        self._follower = Follower(
            self._pool, settings.backends, settings.gateway.models, resolve_secret, clock
        )
        self._make_watchers(view_name, leads)
        self.relay = Relay(
            journal,
            self._pool,
            self._client,
            clock,
            settings.timeouts,
            stats,
            wait_durable=settings.spool.durability == "power",
            drain_to_end=settings.gateway.drain_to_end,
            ruling=ruling_of(settings),
        )
        self._make_probers(leads)
        self._desk = Desk(
            relay=self.relay,
            pool=self._pool,
            journal=journal,
            clock=clock,
            stats=stats,
            book=self._book,
            hash_key=hash_key,
            body_bytes_max=settings.gateway.body_bytes_max,
            fallbacks={one.model: one.to for one in settings.fallbacks},
        )
        collector = GatewayCollector(stats, Gauges(self._gauges))
        app = create_app(
            self._desk,
            readiness=self.readiness,
            metrics=lambda: render(collector),
            books=books,
        )
        self.server: Server = make_server(
            app, grace_seconds=settings.gateway.shutdown_seconds_max, on_stop=self._drain
        )

    def _make_watchers(self, view_name: str, leads: bool) -> None:
        """What tells of backends, remembers them, and reads what they say of themselves."""
        settings, journal, clock = self._settings, self._journal, self._clock
        registry, stats = self._registry, self._stats
        self._sharing = Sharing(stats, clock, self._picks_before)
        self._observer = Observer(
            view_name,
            self._pool.backends.values(),
            journal,
            clock,
            self._drain_us,
            self._sharing.told,
        )
        self._memory = Memory(
            view_name,
            journal.source,
            self._pool,
            registry.routing,
            registry.routing_complete,
            clock,
        )
        self._scraper = Scraper(
            view_name,
            self._pool.backends.values(),
            self._client,
            journal,
            clock,
            stats,
            seconds=settings.gateway.scrape_seconds if leads else 0,
            signal_seconds=settings.routing.signal_seconds,
        )

    def _make_probers(self, leads: bool) -> None:
        """What asks backends for a token, and finds out why one does not answer."""
        settings, journal, clock = self._settings, self._journal, self._clock
        self._prober = Prober(
            self.relay,
            self._pool,
            journal,
            clock,
            self._stats,
            seconds=settings.gateway.probe_seconds if leads else 0,
        )
        self._pool.generate = self._prober.revive
        ladder = Ladder(self._client, clock, settings.timeouts.connect_seconds)
        self._pool.diagnose = ladder.diagnose

    async def run(self, door: socket.socket, on_ready: Callable[["Service"], None]) -> None:
        """Serve connections to `door` until told to stop; then finish what runs and say so."""
        self._registry.start()
        self._follow()
        self._memory.start()
        self._mark()
        await self._pool.start()
        await self._scraper.start()
        self._poll()
        beat = asyncio.create_task(self._beat())
        beat.add_done_callback(self._beat_ended)
        self._prober.follow()
        try:
            on_ready(self)
            await serve(self.server, door)
            await self._let_end()
        finally:
            await self._prober.stop()
            beat.cancel()
            await asyncio.gather(beat, return_exceptions=True)
            self.relay.tick()
            self._sharing.tick()
            if not self._memory.is_awaited:
                self._observer.say_last()
            await self._scraper.stop()
            await self._pool.stop()
            await self._client.close()
            await self._registry.stop()
            self._say_closed()
            self._journal.close()

    def readiness(self) -> Readiness:
        """Whether new requests are welcome, and what each backend lacks."""
        missing = []
        if self._desk.draining:
            missing.append("the gateway is shutting down")
        missing += [*self._registry.waiting_for(), *self._extra_missing()]
        if not self._journal.room():
            missing.append("room in the spool: ledger or Kafka is behind, or the disk is full")
        now = self._clock.monotonic()
        backends = {
            backend.backend_id: backend.condition(now) for backend in self._pool.backends.values()
        }
        notes = (*self._registry.notes(), *self._follower.notes(), *self._memory.notes())
        return Readiness(not missing, tuple(missing), backends, notes)

    def backend_count(self) -> int:
        """How many backends there are now, of settings and registry."""
        return len(self._pool.backends)

    def models_shown(self) -> str:
        """The served models in words, for the start line."""
        names = sorted(self._pool.served())
        if self._pool.any_model:
            return "any model"
        return f"models {', '.join(names)}" if names else "no model yet"

    def _drain(self) -> None:
        self._desk.draining = True
        self._prober.end()

    async def _let_end(self) -> None:
        """uvicorn has cancelled what outlived the grace; let it write its end. Whoever still waits,
        for a tokenizer or for a client that does not read, is told again and goes on without."""
        tasks = {call.task for call in self.relay.open.values() if call.task is not None}
        until = self._clock.monotonic() + ENDING_SECONDS_MAX
        while tasks and self._clock.monotonic() < until:
            _, tasks = await asyncio.wait(tasks, timeout=TOLD_AGAIN_SECONDS)
            for task in tasks:
                task.cancel()

    async def _beat(self) -> None:
        """The one heartbeat: running totals and limits, the registry, marks, and the lag."""
        interval = self._settings.spool.flush_milliseconds / 1000
        marked = polled = self._clock.monotonic()
        while True:
            await asyncio.sleep(interval)
            self.relay.tick()
            for _ in range(LINK_TURNS_MAX):
                if not self._journal.link():
                    break
                await asyncio.sleep(0)
            self._desk.arrivals.refuse_late(self._settings.timeouts.body_seconds)
            now = self._clock.monotonic()
            if now - polled >= REGISTRY_POLL_SECONDS:
                polled = now
                self._poll()
                self._measure_lag(now)
                self._sharing.tick()
                if not self._memory.is_awaited:
                    self._observer.tick()
            if now - marked >= MARK_SECONDS:
                marked = now
                self._mark()

    def _book(self) -> Book:
        """Keys and prices for a request. Before the first one backends are as they were remembered,
        although Kafka may have been heard of only now."""
        book = self._registry.book()
        if self._memory.is_due:
            self._follow()
            self._memory.look()
        return book

    def _poll(self) -> None:
        self._registry.poll()
        self._follow()
        self._memory.tick()
        self._scraper.follow()

    def _follow(self) -> None:
        """Bring the backends to what the registry says, as far as it is known."""
        try:
            book = self._registry.book()
        except Overloaded:
            return
        self._follower.follow(book)
        self._prober.follow()

    def _drain_us(self, backend: Backend) -> int | None:
        calls, limit = self.relay.open.values(), self._settings.timeouts.total_seconds
        return drain_us(backend, calls, self._clock.monotonic(), limit)

    def _picks_before(self) -> dict[str, int]:
        return picks_before(self._memory.before.values(), self._clock.now())

    def _beat_ended(self, beat: asyncio.Task[None]) -> None:
        """Without a heartbeat no limit holds and no revoked key is noticed: then it must stop."""
        if not beat.cancelled() and beat.exception() is not None:
            log.critical("the heartbeat failed, so this process stops", exc_info=beat.exception())
            self.server.stop()

    def _mark(self) -> None:
        accepted = [call.accepted_at for call in self.relay.open.values() if call.accepted_at]
        self._marks += 1
        mark = SourceMark(
            last=self._journal.last(),
            open=len(accepted),
            oldest_open=min(accepted, default=None),
            heads=self._journal.heads(),
        )
        source = self._journal.source
        self._write(Draft(f"{source}/mark/{self._marks}", source, self._clock.now(), mark))

    def _say_closed(self) -> None:
        source = self._journal.source
        last, heads = self._journal.last(), self._journal.heads()
        closed = SourceClosed(closed_source=source, last=last, by="itself", heads=heads)
        if self.relay.open or self.relay.owes:
            # Whoever adopts the spool will close these; this source must not say it is complete.
            log.error("some requests have no end in the spool; they will be abandoned")
            return
        self._write(Draft(f"{source}/closed", source, self._clock.now(), closed))

    def _write(self, draft: Draft) -> None:
        try:
            self._journal.append(draft)
        except SpoolFailed as failed:
            log.error("%s could not be written: %s", draft.id, failed)

    def _measure_lag(self, now: float) -> None:
        written = self._journal.written_bytes()
        consumed = written - self._journal.unconsumed_bytes()
        while self._lag and self._lag[0][0] <= consumed:
            self._lag.popleft()
        if written > consumed and (not self._lag or now - self._lag[-1][1] >= 1.0):
            self._lag.append((written, now))

    def _gauges(self) -> Iterable[tuple[str, str, dict[str, str], float]]:
        journal, now = self._journal, self._clock.monotonic()
        lag = now - self._lag[0][1] if self._lag else 0.0
        yield "tollbook_requests_open", "Requests in flight.", {}, len(self.relay.open)
        yield (
            "tollbook_spool_unconsumed_bytes",
            "Spool that the ledger has not taken yet.",
            {},
            journal.unconsumed_bytes(),
        )
        yield (
            "tollbook_spool_limit_bytes",
            "Beyond this new requests are refused.",
            {},
            self._settings.spool.limit_bytes,
        )
        yield (
            "tollbook_ledger_lag_seconds",
            "Age of the oldest event that the ledger has not taken.",
            {},
            lag,
        )
        yield from backend_gauges(
            self._pool.backends.values(), now, self._scraper.read_at, self._pool.live_gateways
        )
        yield from self._sharing.gauges()
        for (backend_id, model), seconds in self._stats.probe_seconds.items():
            yield (
                "tollbook_probe_seconds",
                "The last probe of the gateway's own, if it was answered.",
                {"backend": backend_id, "model": model},
                seconds,
            )
        yield from self._registry.gauges()
        yield from self._extra_gauges()


def ruling_of(settings: Settings) -> Ruling:
    """The rules of routing for each model, as they are set."""
    return Ruling(
        Rules(settings.routing.policy, settings.routing.explore_percent / 100),
        {one.model: Rules(one.policy, one.explore_percent / 100) for one in settings.policies},
    )


def backends_of(settings: Settings, secret: Callable[[str], str]) -> list[Backend]:
    """The configured backends. `secret` resolves a reference to a server's key."""
    return [
        Backend(
            wanted.id,
            wanted.url,
            key=None if wanted.key is None else secret(wanted.key),
            engine=None if wanted.engine == "auto" else wanted.engine,
            models=(names := wanted.models or settings.gateway.models),
            any_model="*" in names,
        )
        for wanted in settings.backends
    ]
