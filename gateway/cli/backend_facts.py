"""What `tollbook backends` makes of the book: facts, and how backends are shown. Pure."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final, Literal

import msgspec

from gateway.cli.failure import Stop
from gateway.cli.output import Column, Table
from gateway.setting_values import nearest
from gateway.settings import BackendSettings
from ledger.events import BackendChanged, BackendRegistered, BackendRemoved, Draft
from ledger.folds.book import Book, Server
from ledger.folds.routing import RoutingView

CONFIGURED: Final = "as configured"
"""What stands for the address of a backend whose address each gateway has in its own settings."""


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """What was typed of one backend; `UNSET` is what was not, and keeps what it was."""

    url: str | msgspec.UnsetType | None = msgspec.UNSET
    key: str | msgspec.UnsetType | None = msgspec.UNSET
    engine: str | msgspec.UnsetType = msgspec.UNSET
    models: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    weight: int | msgspec.UnsetType = msgspec.UNSET
    draining: bool | msgspec.UnsetType = msgspec.UNSET


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """One backend as it is listed. `views` are those of gateways that have not run out."""

    backend_id: str
    source: Literal["registry", "configured", "heard of"]
    url: str | None
    key: str | None
    engine: str
    models: tuple[str, ...]
    weight: int
    draining: bool
    views: tuple[RoutingView, ...]


def registered(book: Book, backend_id: str, said: Said, now: datetime) -> Draft:
    """The fact that a backend is there from now on."""
    old = book.backends.get(backend_id)
    if old is not None and old.removed_at is None:
        raise Stop(f"backend {backend_id} is there already; `tollbook backends set` changes it")
    base = old.version if old else 0
    state = _state(Server(backend_id=backend_id, version=base, registered_at=now), said)
    payload = BackendRegistered(**state)
    return Draft(f"backend/{backend_id}/v{base + 1}", backend_id, now, payload)


def changed(book: Book, backend_id: str, said: Said, configured: bool, now: datetime) -> Draft:
    """The fact that a backend is as `said`. One that only gateways' settings name (`configured`)
    is registered by it, with the address that they have."""
    old = book.backends.get(backend_id)
    if old is None and configured:
        return registered(book, backend_id, said, now)
    server = there(book, backend_id)
    payload = BackendChanged(**_state(server, said))
    return Draft(f"backend/{backend_id}/v{server.version + 1}", backend_id, now, payload)


def removed(book: Book, backend_id: str, now: datetime) -> Draft:
    """The fact that a registered backend is gone."""
    server = there(book, backend_id)
    payload = BackendRemoved(**_state(server, Said()), removed_at=now)
    return Draft(f"backend/{backend_id}/v{server.version + 1}", backend_id, now, payload)


def there(book: Book, backend_id: str) -> Server:
    """The registered backend. Raises `Stop`."""
    server = book.backends.get(backend_id)
    if server is not None and server.removed_at is None:
        return server
    if server is not None:
        raise Stop(
            f"backend {backend_id} was removed at {server.removed_at:%Y-%m-%d %H:%M:%S} UTC; "
            f"`tollbook backends add {backend_id}` brings it back"
        )
    raise unknown(backend_id, [name for name, one in book.backends.items() if not one.removed_at])


def unknown(backend_id: str, known: Iterable[str]) -> Stop:
    """That there is no such backend, with the nearest that there is."""
    near = nearest(backend_id, known)
    hint = f"did you mean {near!r}?" if near else "`tollbook backends list` shows all of them"
    return Stop(f"there is no backend {backend_id!r}; {hint}")


def shown(
    book: Book,
    configured: Iterable[BackendSettings],
    views: Iterable[RoutingView],
    now: datetime,
) -> list[Shown]:
    """Every backend that is not removed: of the registry, of these settings, and of views."""
    by_id: dict[str, list[RoutingView]] = {}
    for view in views:
        if view.expires_at > now:
            by_id.setdefault(view.backend_id, []).append(view)
    settings = {one.id: one for one in configured}
    gone = {name for name, one in book.backends.items() if one.removed_at is not None}
    names = dict.fromkeys([*settings, *book.backends, *by_id])
    return [
        _shown(name, book.backends.get(name), settings.get(name), by_id.get(name, []))
        for name in sorted(names)
        if name not in gone
    ]


def _shown(
    backend_id: str,
    server: Server | None,
    settings: BackendSettings | None,
    views: list[RoutingView],
) -> Shown:
    weight = server.weight if server else 100
    draining = server.draining if server else False
    seen = tuple(sorted(views, key=lambda view: view.gateway))
    if server is not None and (server.url is not None or settings is None):
        return Shown(
            backend_id=backend_id,
            source="registry",
            url=server.url,
            key=server.key,
            engine=server.engine,
            models=server.models,
            weight=weight,
            draining=draining,
            views=seen,
        )
    return Shown(
        backend_id=backend_id,
        source="configured" if settings else "heard of",
        url=settings.url if settings else None,
        key=settings.key if settings else None,
        engine=settings.engine if settings else "auto",
        models=settings.models if settings else (),
        weight=weight,
        draining=draining,
        views=seen,
    )


def backends_table(backends: Iterable[Shown]) -> Table:
    """Backends as a table. `running` is what all gateways have at it now."""
    columns = (
        Column("backend"),
        Column("from"),
        Column("address"),
        Column("models"),
        Column("weight", number=True),
        Column("state"),
        Column("running", number=True),
    )
    rows = tuple(
        (
            one.backend_id,
            one.source,
            one.url or CONFIGURED,
            one.models or "what it lists",
            one.weight,
            state_of(one),
            sum(view.in_flight for view in one.views) if one.views else None,
        )
        for one in backends
    )
    return Table(columns=columns, rows=rows)


def state_of(one: Shown) -> str:
    """In words what a backend does, and which gateways see it otherwise."""
    down = [view for view in one.views if not view.up]
    if one.draining:
        return "draining"
    if not one.views:
        return "no gateway tells of it"
    if not down:
        return "up"
    faults = "; ".join(dict.fromkeys(view.fault or "no reason given" for view in down))
    if len(down) == len(one.views):
        return f"down: {faults}"
    return f"up, but down for {', '.join(view.gateway for view in down)}: {faults}"


def backend_json(one: Shown) -> dict[str, object]:
    """One backend for JSON."""
    return {
        "id": one.backend_id,
        "from": one.source,
        "url": one.url,
        "key": one.key,
        "engine": one.engine,
        "models": one.models,
        "weight": one.weight,
        "draining": one.draining,
        "state": state_of(one),
        "gateways": [
            {
                "gateway": view.gateway,
                "up": view.up,
                "fault": view.fault,
                "running": view.in_flight,
            }
            for view in one.views
        ],
    }


def _state(server: Server, said: Said) -> dict[str, Any]:
    """The fields of the next event of `server`."""
    fields = ("url", "key", "engine", "models", "weight", "draining")
    state: dict[str, Any] = {
        name: value
        if (value := getattr(said, name)) is not msgspec.UNSET
        else getattr(server, name)
        for name in fields
    }
    return state | {
        "backend_id": server.backend_id,
        "base": server.version,
        "version": server.version + 1,
        "models": list(state["models"]),
    }
