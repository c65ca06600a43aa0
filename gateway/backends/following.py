"""Keeps the pool as the registry says: backends come, change, drain and go while requests run.

What the registry says of a backend stands over what this gateway's settings say of the same name.
The key of a backend is a reference that is resolved here; where that fails, the backend is held
back with the reason, and it is tried again, since a file may come later.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final, get_args

import msgspec

from gateway.backends.pool import Backend, Pool
from gateway.setting_values import SettingsError
from gateway.settings import BackendSettings
from gateway.wire.requests import Engine
from ledger.addresses import door_of
from ledger.clock import Clock
from ledger.folds.book import Book, Server

log = logging.getLogger("tollbook.backends")

RESOLVE_SECONDS: Final = 2.0
"""How often a key is looked for that was not where it is said to be."""

_ENGINES: Final = get_args(Engine)


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A backend as it should be. `key` is a reference; `models` empty: what the server lists."""

    url: str
    key: str | None
    engine: str
    models: tuple[str, ...]
    weight: int = 100
    draining: bool = False
    source: str = "configured"

    @property
    def door(self) -> tuple[object, ...]:
        """What makes it another server, or the same one with other models."""
        return self.url, self.key, self.engine, self.models


class Follower:
    """Follows the backends of the book into `pool`. `configured` are those of the settings, which
    are in the pool already; `models` is what a backend serves that names none."""

    def __init__(
        self,
        pool: Pool,
        configured: Iterable[BackendSettings],
        models: tuple[str, ...],
        resolve: Callable[[str], str],
        clock: Clock,
    ) -> None:
        self._pool = pool
        self._configured = wanted_of(configured, models)
        self._models = models
        self._resolve = resolve
        self._clock = clock
        self._is = dict(self._configured)
        self._book: Book | None = None
        self._resolved_at = float("-inf")
        self._notes: tuple[str, ...] = ()

    def notes(self) -> tuple[str, ...]:
        """What of the registry cannot be followed here, in words."""
        return self._notes

    def follow(self, book: Book) -> None:
        """Bring the pool to what `book` says. Cheap while it is the same book."""
        if book is not self._book:
            self._book = book
            self._notes = ()
            wanted, self._notes = together(self._configured, book.backends, self._models)
            for note in self._notes:
                log.warning("%s", note)
            for backend_id in [name for name in self._is if name not in wanted]:
                self._pool.drop(backend_id)
                del self._is[backend_id]
                log.info("backend %s is removed", backend_id)
            for backend_id, one in wanted.items():
                self._set(backend_id, one)
        self._try_keys()

    def _set(self, backend_id: str, wanted: Wanted) -> None:
        was = self._is.get(backend_id)
        self._is[backend_id] = wanted
        backend = self._pool.backends.get(backend_id)
        if backend is None:
            backend = self._made(backend_id, wanted)
            log.info("backend %s is added", backend_id)
        elif was is None or was.door != wanted.door:
            self._change(backend, wanted)
            log.info("backend %s is changed", backend_id)
        if backend.draining != wanted.draining:
            log.info("backend %s is %s", backend_id, "drained" if wanted.draining else "undrained")
        backend.weight, backend.draining = wanted.weight, wanted.draining
        backend.source = wanted.source
        if self._pool.backends.get(backend_id) is not backend:
            self._pool.put(backend)

    def _made(self, backend_id: str, wanted: Wanted) -> Backend:
        key, fault = self._key(wanted.key)
        backend = Backend(
            backend_id,
            wanted.url,
            key=key,
            engine=_engine(wanted.engine),
            models=wanted.models,
            any_model="*" in wanted.models,
        )
        _hold(backend, fault)
        return backend

    def _change(self, backend: Backend, wanted: Wanted) -> None:
        key, fault = self._key(wanted.key)
        backend.become(
            wanted.url,
            key=key,
            engine=_engine(wanted.engine),
            models=wanted.models,
            any_model="*" in wanted.models,
        )
        _hold(backend, fault)
        self._pool.put(backend)

    def _try_keys(self) -> None:
        """Look again for keys that could not be resolved."""
        now = self._clock.monotonic()
        if now - self._resolved_at < RESOLVE_SECONDS:
            return
        self._resolved_at = now
        for backend in list(self._pool.backends.values()):
            if backend.held is not None and backend.backend_id in self._is:
                wanted = self._is[backend.backend_id]
                if self._key(wanted.key)[1] is None:
                    self._change(backend, wanted)

    def _key(self, reference: str | None) -> tuple[str | None, str | None]:
        """The key, or why it is not known here."""
        if reference is None:
            return None, None
        try:
            return self._resolve(reference), None
        except SettingsError as wrong:
            return None, str(wrong)


def wanted_of(configured: Iterable[BackendSettings], models: tuple[str, ...]) -> dict[str, Wanted]:
    """The backends of the settings by id. Pure."""
    return {
        one.id: Wanted(url=one.url, key=one.key, engine=one.engine, models=one.models or models)
        for one in configured
    }


def together(
    configured: Mapping[str, Wanted], registered: Mapping[str, Server], models: tuple[str, ...]
) -> tuple[dict[str, Wanted], tuple[str, ...]]:
    """The backends that settings and registry make together, and what cannot be followed. Pure."""
    gone = {name for name, one in registered.items() if one.removed_at is not None}
    wanted = {name: one for name, one in configured.items() if name not in gone}
    notes = []
    moved = {name for name, one in registered.items() if one.url is not None}
    doors = {door_of(one.url): name for name, one in wanted.items() if name not in moved}
    for backend_id, server in sorted(registered.items()):
        if backend_id in gone:
            continue
        own = configured.get(backend_id)
        if server.url is None:
            if own is None:
                # It is in the settings of another gateway.
                continue
            wanted[backend_id] = msgspec.structs.replace(
                own, weight=server.weight, draining=server.draining
            )
            continue
        twin = doors.get(door_of(server.url), backend_id)
        if twin != backend_id:
            notes.append(
                f"backend {backend_id} of the registry is not used here: {twin} of this gateway's "
                "settings has the same address"
            )
            wanted.pop(backend_id, None)
            continue
        wanted[backend_id] = Wanted(
            url=server.url,
            key=server.key,
            engine=server.engine,
            models=server.models or models,
            weight=server.weight,
            draining=server.draining,
            source="registry",
        )
    return wanted, tuple(notes)


def _hold(backend: Backend, fault: str | None) -> None:
    """Keep requests from `backend` for the reason `fault`; null lets them go there."""
    backend.held = fault
    if fault is not None:
        backend.failed(fault)


def _engine(name: str) -> Engine | None:
    """The engine called `name`; null for `auto` and for one of a later version: it is asked."""
    return next((engine for engine in _ENGINES if engine == name), None)
