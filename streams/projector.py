"""Derived topics: advances the values of one partition by one record at a time. Pure.

A projector holds the decoded values of one partition of a derived topic. Values are absolute and
carry their own guard, so that records which come again change nothing and whoever reads all of
them anew writes the same bytes.
"""

from collections.abc import Iterable
from typing import Final, Protocol

import msgspec

from ledger.errors import MalformedEvent
from ledger.events import (
    BackendChanged,
    BackendObserved,
    BackendRegistered,
    BackendRemoved,
    Event,
    KeyIssued,
    KeyRevoked,
    Payload,
    PriceListed,
    PricePublished,
)
from ledger.folds.book import BookFold
from ledger.folds.book_entries import BookPages, entries_of
from ledger.folds.live import KeyUsage, fold_usage, owe, usage_bytes, usage_of
from ledger.folds.routing import (
    RoutingView,
    fold_view,
    is_gone,
    view_bytes,
    view_key,
    view_of,
)

SWEEP_MS: Final = 3_600_000
"""How often views that nobody renews are looked for, by the broker's clock."""


class Projector(Protocol):
    """The values of one partition of a derived topic."""

    def load(self, key: str, value: bytes) -> None:
        """Take a value that stands in the topic. Raises `MalformedEvent` if it is none."""
        ...

    def take(self, event: Event, payload: Payload, offset: int, appended_ms: int) -> None:
        """Go on by one record; `appended_ms` is the broker's time of it."""
        ...

    def broken(self, event: Event, offset: int) -> None:
        """Go on by one record whose data cannot be read."""
        ...

    def again(self, keys: Iterable[str]) -> None:
        """Have the values of `keys` written again as they are."""
        ...

    def changed(self) -> dict[str, bytes | None]:
        """What is to be written since the last call; null says that a key is gone."""
        ...


class UsageProjector:
    """requests → usage-by-key."""

    def __init__(self) -> None:
        self._usages: dict[str, KeyUsage] = {}
        self._changed: dict[str, None] = {}

    def load(self, key: str, value: bytes) -> None:
        try:
            self._usages[key] = usage_of(value)
        except msgspec.DecodeError as wrong:
            raise _none("usage-by-key", key, wrong) from wrong

    def take(self, event: Event, payload: Payload, offset: int, appended_ms: int) -> None:
        if fold_usage(self._of(event), event, payload, offset):
            self._changed[event.subject] = None

    def broken(self, event: Event, offset: int) -> None:
        if owe(self._of(event), event, offset):
            self._changed[event.subject] = None

    def again(self, keys: Iterable[str]) -> None:
        self._changed.update(dict.fromkeys(keys))

    def changed(self) -> dict[str, bytes | None]:
        out: dict[str, bytes | None] = {
            key: usage_bytes(self._usages[key]) for key in self._changed
        }
        self._changed.clear()
        return out

    def _of(self, event: Event) -> KeyUsage:
        usage = self._usages.get(event.subject)
        if usage is None:
            usage = self._usages[event.subject] = KeyUsage(key_id=event.subject)
        return usage


class RoutingProjector:
    """backends → routing-state."""

    def __init__(self) -> None:
        self._views: dict[str, RoutingView] = {}
        self._changed: dict[str, None] = {}
        self._swept_ms = 0

    def load(self, key: str, value: bytes) -> None:
        try:
            self._views[key] = view_of(value)
        except msgspec.DecodeError as wrong:
            raise _none("routing-state", key, wrong) from wrong

    def take(self, event: Event, payload: Payload, offset: int, appended_ms: int) -> None:
        if appended_ms - self._swept_ms > SWEEP_MS:
            self._sweep(appended_ms)
        if not isinstance(payload, BackendObserved):
            return
        key = view_key(payload)
        view = fold_view(self._views.get(key), event, payload, offset, appended_ms)
        if view is not None:
            self._views[key] = view
            self._changed[key] = None

    def broken(self, event: Event, offset: int) -> None:
        return

    def again(self, keys: Iterable[str]) -> None:
        self._changed.update(dict.fromkeys(keys))

    def changed(self) -> dict[str, bytes | None]:
        out: dict[str, bytes | None] = {}
        for key in self._changed:
            view = self._views.get(key)
            out[key] = None if view is None else view_bytes(view)
        self._changed.clear()
        return out

    def _sweep(self, now_ms: int) -> None:
        self._swept_ms = now_ms
        for key in [key for key, view in self._views.items() if is_gone(view, now_ms)]:
            del self._views[key]
            self._changed[key] = None


class RegistryProjector:
    """registry → registry-state. What the fold refuses leaves no trace, so a replay changes
    nothing. Accounts, credits, closed months and corrections are none of a gateway's business, and
    stay out."""

    def __init__(self) -> None:
        self._pages = BookPages()
        self._fold: BookFold | None = None
        self._changed: dict[str, None] = {}

    def load(self, key: str, value: bytes) -> None:
        self._pages.put(key, value)

    def take(self, event: Event, payload: Payload, offset: int, appended_ms: int) -> None:
        if self._fold is None:
            self._fold = BookFold(self._pages.book())
        if self._fold.take(event, payload) is not None:
            return
        match payload:
            case KeyIssued() | KeyRevoked():
                self._changed[f"key/{payload.key_id}"] = None
            case PricePublished():
                self._changed[f"price/{payload.model}"] = None
            case PriceListed():
                self._changed.update({f"price/{one.model}": None for one in payload.entries})
            case BackendRegistered() | BackendChanged() | BackendRemoved():
                self._changed[f"backend/{payload.backend_id}"] = None

    def broken(self, event: Event, offset: int) -> None:
        return

    def again(self, keys: Iterable[str]) -> None:
        self._changed.update(dict.fromkeys(keys))

    def changed(self) -> dict[str, bytes | None]:
        if not self._changed:
            return {}
        book = self._pages.book() if self._fold is None else self._fold.book()
        entries = entries_of(book)
        out: dict[str, bytes | None] = {key: entries[key] for key in self._changed}
        self._changed.clear()
        return out


def _none(topic: str, key: str, wrong: Exception) -> MalformedEvent:
    return MalformedEvent(
        f"the topic {topic} holds a value of {key} that cannot be read: {wrong}. Empty the topic, "
        "and the worker makes all of it anew"
    )
