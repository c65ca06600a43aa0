"""What one gateway sees of one backend, as every other gateway may read it. Pure.

There is one view for each pair of backend and gateway. A view has an epoch, the incarnation of the
gateway that wrote it, and it expires: an expired one says nothing, never that a backend is down.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Final

import msgspec

from ledger.events import BackendObserved, BreakerState, Event

SILENT_MS: Final = 30_000
"""An incarnation that was silent for so long gives way to any other one, even one whose machine has
a clock that is behind, so that it seems older. By the broker's clock."""
GONE_MS: Final = 86_400_000
"""A view that was not renewed for so long is taken away, by the broker's clock."""


class RoutingView(msgspec.Struct, frozen=True, kw_only=True):
    """The newest `BackendObserved` of one gateway of one backend; its fields mean the same here.

    `source` is the gateway's process (the epoch) and `sequence` its own number of this view.
    `observed_at` and `expires_at` are by that gateway's clock, `appended_ms` by the broker's.
    """

    backend_id: str
    gateway: str
    up: bool
    source: str
    sequence: int
    observed_at: datetime
    expires_at: datetime
    appended_ms: int
    offset: int
    fault: str | None = None
    in_flight: int = 0
    requests: int = 0
    failures: int = 0
    first_token_us: int | None = None
    between_tokens_us: int | None = None
    running: int | None = None
    waiting: int | None = None
    kv_usage: str | None = None
    prefix_hits: int | None = None
    prefix_queries: int | None = None
    read_us: int | None = None
    state: BreakerState | None = None
    state_us: int | None = None
    errors: str | None = None
    successes: int | None = None
    share: str | None = None
    draining: bool = False
    drain_us: int | None = None
    picks: int | None = None
    expected: str | None = None
    picks_us: int | None = None
    share_before: str | None = None
    share_off: str | None = None


_encoder = msgspec.json.Encoder(order="deterministic")
_decoder = msgspec.json.Decoder(RoutingView)


def view_bytes(view: RoutingView) -> bytes:
    """The value of `view`: the same bytes for the same state."""
    return _encoder.encode(view)


def view_of(value: bytes) -> RoutingView:
    """The view in a value. Raises `msgspec.DecodeError` for bytes that are none."""
    return _decoder.decode(value)


def readable_views(values: Iterable[bytes]) -> dict[tuple[str, str], RoutingView]:
    """`values` as views by backend and gateway; what cannot be read is left out."""
    found = {}
    for value in values:
        try:
            view = view_of(value)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        found[view.backend_id, view.gateway] = view
    return found


def view_key(said: BackendObserved) -> str:
    """The key of this view in the topic routing-state."""
    return f"{said.backend_id}/{said.gateway}"


def fold_view(
    view: RoutingView | None, event: Event, said: BackendObserved, offset: int, appended_ms: int
) -> RoutingView | None:
    """The view after one observation; null if it is older than what is known, or was seen."""
    if view is not None and not _newer(view, event, offset, appended_ms):
        return None
    return RoutingView(
        **msgspec.structs.asdict(said),
        source=event.source,
        sequence=event.sequence,
        observed_at=event.time,
        appended_ms=appended_ms,
        offset=offset,
    )


class Others(msgspec.Struct, frozen=True):
    """What other gateways tell now: their requests `in_flight` by backend, and how many gateways
    there are that do."""

    in_flight: dict[str, int]
    gateways: int


def seen_by_others(views: Iterable[RoutingView], gateway: str) -> Others:
    """What gateways other than `gateway` say in `views`, which are all good now."""
    in_flight: dict[str, int] = {}
    gateways: set[str] = set()
    for view in views:
        if view.gateway != gateway:
            gateways.add(view.gateway)
            in_flight[view.backend_id] = in_flight.get(view.backend_id, 0) + view.in_flight
    return Others(in_flight, len(gateways))


def is_gone(view: RoutingView, now_ms: int) -> bool:
    """True if nobody has renewed this view for a day."""
    return now_ms - view.appended_ms > GONE_MS


def _newer(view: RoutingView, event: Event, offset: int, appended_ms: int) -> bool:
    if offset <= view.offset:
        return False
    if event.source == view.source:
        return event.sequence > view.sequence
    later = event.source.rpartition("/")[2] > view.source.rpartition("/")[2]
    return later or appended_ms - view.appended_ms > SILENT_MS
