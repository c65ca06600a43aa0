"""Reads the engines' own counters, so that the ledger can be held against them: every few seconds,
before the door opens, and once more when it has closed. No request waits for it."""

import asyncio
import logging
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from gateway.backends.pool import Backend
from gateway.backends.port import BackendFailed, Client
from gateway.stats import Stats
from gateway.wire.scrape import Page, read_page
from ledger.clock import Clock
from ledger.events import BackendCounted, Draft
from streams.errors import SpoolFailed
from streams.log.port import Journal

log = logging.getLogger("tollbook.scraper")

ANSWER_SECONDS_MAX: Final = 5.0
"""For one page; an engine that needs longer is read the next time."""

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
    """Writes `BackendCounted` of `backends` to `journal`, as the serving process `name`, every
    `seconds`; 0: never."""

    def __init__(
        self,
        name: str,
        backends: Iterable[Backend],
        client: Client,
        journal: Journal,
        clock: Clock,
        stats: Stats,
        *,
        seconds: float,
    ) -> None:
        self._name = name
        self._backends = list(backends) if seconds else []
        self._client = client
        self._journal = journal
        self._clock = clock
        self._stats = stats
        self._seconds = seconds
        self._count = 0
        self._faults: dict[str, float] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self.read_at: dict[str, float] = {}
        """When each backend last told its counters, by the monotonic clock."""

    async def start(self) -> None:
        """Read every backend that is up once, at most `ANSWER_SECONDS_MAX`, then go on in the
        background."""
        await self._read_all(ANSWER_SECONDS_MAX)
        self._tasks = [asyncio.create_task(self._watch(one)) for one in self._backends]
        for task in self._tasks:
            task.add_done_callback(_say_why)

    async def stop(self) -> None:
        """End the background tasks and read once more: what is served is in these counters."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._read_all(LAST_SECONDS_MAX)

    async def _read_all(self, seconds: float) -> None:
        await asyncio.gather(*(self._read(one, seconds) for one in self._backends if one.up))

    async def _watch(self, backend: Backend) -> None:
        while True:
            await asyncio.sleep(self._seconds)
            await self._read(backend, ANSWER_SECONDS_MAX)

    async def _read(self, backend: Backend, seconds: float) -> None:
        if not self._journal.room():
            return  # a spool that is nearly full is left to requests
        page, fault = Page(), None
        try:
            status, body = await self._client.fetch(backend, "/metrics", seconds=seconds)
        except BackendFailed as failed:
            fault = str(failed)
        else:
            page = read_page(body, backend.engine) if status == 200 else page
            if not page.counters:
                fault = _lacking(backend, status)
        now = self._clock.monotonic()
        if fault is None:
            self.read_at[backend.backend_id] = now
            self._faults.pop(backend.backend_id, None)
        else:
            self._stats.scrapes_failed[backend.backend_id] += 1
            if now - self._faults.get(backend.backend_id, -FAULT_SECONDS) < FAULT_SECONDS:
                return
            self._faults[backend.backend_id] = now
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


def _say_why(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (fault := task.exception()) is not None:
        log.error("counters of a backend are read no more", exc_info=fault)


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
