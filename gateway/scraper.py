"""Reads what the engines say of themselves: their load, for routing, every two seconds; and their
counters, so that the ledger can be held against them, more seldom, before the door opens and once
more when it has closed. No request waits for it."""

import asyncio
import logging
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from gateway.backends.pool import Backend
from gateway.backends.port import BackendFailed, Client
from gateway.backends.watches import Watches
from gateway.stats import Stats
from gateway.wire.scrape import Page, read_page
from gateway.wire.slots import read_slots
from ledger.clock import Clock
from ledger.events import BackendCounted, Draft
from streams.errors import SpoolFailed
from streams.log.port import Journal

log = logging.getLogger("tollbook.scraper")

SIGNAL_SECONDS: Final = 2.0
"""How old an engine's word on its load may become. Each serving process asks for itself."""

SILENT_SECONDS: Final = 15.0
"""The same for a server that has none of these pages, if its counters are not read either."""

ANSWER_SECONDS_MAX: Final = 5.0
"""For one page; an engine that needs longer is read the next time."""

STANDS_SECONDS: Final = 30.0
"""For so long an engine's word stands that answers its page no more. A queue that it told of in a
busy moment must not keep requests away for as long as only that page is broken."""

SLOTS_SECONDS_MAX: Final = 1.0
"""For llama.cpp's second page, which the counters of the first must not wait for."""

LAST_SECONDS_MAX: Final = 2.0
"""The same at the end, when somebody waits for this process to be gone."""

FAULT_SECONDS: Final = 300.0
"""How often the same backend may be said to have no counters: a server without them stays so."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NEVER: Final = 253_402_300_800.0
"""The year 10000 in seconds, which no date can hold."""

_HINTS: Final = {
    "llamacpp": "; start llama.cpp with --metrics",
    "sglang": "; start SGLang with --enable-metrics",
}


class Scraper:
    """Reads what `backends` say of themselves, as the serving process `name`.

    Every `signal_seconds` for routing, which no request waits for; and every `seconds` it writes
    `BackendCounted` to `journal`. 0: never. `backends` may come and go: `follow` begins to read
    those that are new.
    """

    def __init__(
        self,
        name: str,
        backends: Collection[Backend],
        client: Client,
        journal: Journal,
        clock: Clock,
        stats: Stats,
        *,
        seconds: float,
        signal_seconds: float = SIGNAL_SECONDS,
    ) -> None:
        self._name = name
        self._backends = backends
        self._client = client
        self._journal = journal
        self._clock = clock
        self._stats = stats
        self._seconds = seconds
        self._signal_seconds = signal_seconds
        self._count = 0
        self._faults: dict[str, float] = {}
        self._silent: set[str] = set()
        self._no_slots: dict[str, float] = {}
        self._watches = Watches(self._watch, log, "counters of backend %s are read no more")
        self._runs = False
        self.read_at: dict[str, float] = {}
        """When each backend last told its counters, by the monotonic clock."""

    async def start(self) -> None:
        """Read every backend that is up once, at most `ANSWER_SECONDS_MAX`, then go on in the
        background."""
        if not (self._seconds or self._signal_seconds):
            return
        await self._read_all(ANSWER_SECONDS_MAX)
        self._runs = True
        self.follow()

    def follow(self) -> None:
        """Read what is new among the backends, and no longer what is gone. Cheap."""
        if self._runs:
            self._watches.follow(self._backends)

    async def stop(self) -> None:
        """End the background tasks and read once more: what is served is in these counters."""
        self._runs = False
        await self._watches.stop()
        if self._seconds:
            await self._read_all(LAST_SECONDS_MAX)

    async def _read_all(self, seconds: float) -> None:
        up = [one for one in self._backends if one.up]
        await asyncio.gather(*(self._read(one, seconds, tell=self._seconds > 0) for one in up))

    async def _watch(self, backend: Backend) -> None:
        waited = 0.0
        while True:
            pause = self._pause(backend.backend_id)
            await asyncio.sleep(pause)
            waited += pause
            if backend not in self._backends or backend.held is not None:
                continue
            tell = 0 < self._seconds <= waited
            if tell:
                waited = 0.0
            await self._read(backend, ANSWER_SECONDS_MAX, tell=tell)

    def _pause(self, backend_id: str) -> float:
        """Until the next reading. A server that has no such page is asked for it less often."""
        often = self._signal_seconds or self._seconds
        if backend_id in self._silent:
            often = max(often, self._seconds or SILENT_SECONDS)
        return min(often, self._seconds) if self._seconds else often

    async def _read(self, backend: Backend, seconds: float, *, tell: bool) -> None:
        if tell and not self._journal.room():
            tell = False  # a spool that is nearly full is left to requests
        page, fault = Page(), None
        backend.signals.reading()
        try:
            status, body = await self._client.fetch(backend, "/metrics", seconds=seconds)
            page = read_page(body, backend.engine) if status == 200 else page
            if not page.counters:
                fault = _lacking(backend, status)
            if page.kv_usage is None and (page.engine or backend.engine) == "llamacpp":
                page = await self._with_slots(backend, page)
        except BackendFailed as failed:
            # What it said last stands, and what was sent since counts on top: it may be very busy.
            fault = str(failed)
            read_at = backend.signals.read_at
            if read_at is not None and self._clock.monotonic() - read_at > STANDS_SECONDS:
                backend.signals.lose()
        else:
            self._heed(backend, page)
        self._note(backend, page, fault, tell=tell)

    async def _with_slots(self, backend: Backend, page: Page) -> Page:
        """llama.cpp's `page` with what its page of slots says, if it has one and tells it soon."""
        now = self._clock.monotonic()
        if now - self._no_slots.get(backend.backend_id, -FAULT_SECONDS) < FAULT_SECONDS:
            return page
        try:
            status, body = await self._client.fetch(backend, "/slots", seconds=SLOTS_SECONDS_MAX)
        except BackendFailed:
            return page
        slots = read_slots(body) if status == 200 else None
        if slots is None:
            self._no_slots[backend.backend_id] = now
            return page
        running = slots.running if page.running is None else page.running
        return msgspec.structs.replace(page, running=running, kv_usage=slots.kv_usage)

    def _heed(self, backend: Backend, page: Page) -> None:
        """Take what the engine says of its load for routing."""
        backend.signals.take(page, self._clock.monotonic())
        if page.running is None and page.waiting is None:
            backend.signals.lose()
            self._silent.add(backend.backend_id)
        else:
            self._silent.discard(backend.backend_id)

    def _note(self, backend: Backend, page: Page, fault: str | None, *, tell: bool) -> None:
        """Count the reading, and write it if it is due: a fault seldom, because it stays so."""
        now = self._clock.monotonic()
        if fault is None:
            self.read_at[backend.backend_id] = now
            self._faults.pop(backend.backend_id, None)
        else:
            self._stats.scrapes_failed[backend.backend_id] += 1
            said_at = self._faults.get(backend.backend_id, -FAULT_SECONDS)
            if not tell or now - said_at < FAULT_SECONDS:
                return
            self._faults[backend.backend_id] = now
        if tell:
            self._write(backend, page, fault)

    def _write(self, backend: Backend, page: Page, fault: str | None) -> None:
        self._count += 1
        counted = BackendCounted(
            backend_id=backend.backend_id,
            gateway=self._name,
            engine=page.engine or backend.engine,
            counters=page.counters,
            process_started=_instant(page.process_started),
            running=page.running,
            waiting=page.waiting,
            fault=fault,
        )
        name = f"{self._journal.source}/counted/{self._count}"
        try:
            self._journal.append(Draft(name, backend.backend_id, self._clock.now(), counted))
        except SpoolFailed as failed:
            # Requests meet the same disk, and are refused.
            log.error("%s could not be written: %s", name, failed)


def _lacking(backend: Backend, status: int) -> str:
    hint = _HINTS.get(backend.engine, "")
    if status in (401, 403):
        return f"/metrics refuses the server key ({status})"
    if status == 200:
        return f"/metrics has no counter that is known here{hint}"
    return f"/metrics answered {status}{hint}"


def _instant(seconds: float | None) -> datetime | None:
    if seconds is None or not 0 < seconds < _NEVER:
        return None
    return _EPOCH + timedelta(seconds=seconds)
