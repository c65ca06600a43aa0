"""Looks again and again at what gateways tell of their backends, for commands that wait for it."""

import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from math import inf
from typing import Final

import msgspec

from gateway.cli.place import Place
from gateway.cli.views import views_of
from ledger.clock import SystemClock
from ledger.folds.routing import RoutingView

TOLD_SECONDS: Final = 3.0
"""Gateways tell of their backends each two seconds: so long it takes to hear that they know, and
what was told a moment ago may be so old."""


class Look(msgspec.Struct, frozen=True):
    """What gateways told last by backend and gateway, when that was read, and how long the looking
    takes by now."""

    views: Mapping[tuple[str, str], RoutingView]
    now: datetime
    waited_seconds: float


def looks(place: Place, every_seconds: float, seconds: float = inf) -> Iterator[Look]:
    """Look at once, then after every pause of `every_seconds`, and a last time once `seconds` are
    over. Raises `KafkaError` as `views_of` does. Blocks."""
    clock = SystemClock()
    began = clock.monotonic()
    while True:
        views = views_of(place)
        waited = clock.monotonic() - began
        yield Look(views, clock.now(), waited)
        if waited >= seconds:
            return
        time.sleep(max(min(every_seconds, began + seconds - clock.monotonic()), 0.0))
