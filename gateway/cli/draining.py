"""Whether a drained backend may be stopped, from what gateways say of it. Pure."""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime

import msgspec

from ledger.folds.routing import RoutingView

Place = tuple[str, int]
"""A view among those of one gateway: its process, and its number there."""


class Drained(msgspec.Struct, frozen=True, kw_only=True):
    """How far a drain is.

    `running`: requests that gateways have at the backend. `longest_us`: the longest that one of
    them may still take, null if nobody tells. `unaware`: gateways that may still send it something
    new. `silent`: those of which nothing is heard, though they once had this backend.
    """

    running: int
    longest_us: int | None
    unaware: tuple[str, ...]
    silent: tuple[str, ...]

    @property
    def safe(self) -> bool:
        """True if the backend may be stopped: nothing runs there and nothing new can come."""
        return not (self.running or self.unaware or self.silent)


def places(views: Iterable[RoutingView], backend_id: str) -> dict[str, Place]:
    """Where each gateway's view of the backend stands."""
    return {
        view.gateway: (view.source, view.sequence)
        for view in views
        if view.backend_id == backend_id
    }


def drained(
    views: Iterable[RoutingView],
    backend_id: str,
    before: Mapping[str, Place],
    now: datetime,
    without: Collection[str] = (),
    living: Collection[str] | None = None,
) -> Drained:
    """How far the drain of a backend is by all `views`.

    `before` are the places of the views that were there when the drain was recorded: only a later
    one can know of it. `without` are gateways that somebody knows to be gone, `living` the sources
    of all processes that serve, null where that is not known: one that has told nothing at all yet
    may send requests, and one that is not among them sends none.
    """
    running, longest, silent = 0, None, []
    views = list(views)
    told = {view.source for view in views}
    unaware = [source for source in living or () if source not in told]
    for view in sorted(views, key=lambda view: view.gateway):
        if view.backend_id != backend_id or view.gateway in without:
            continue
        if view.expires_at <= view.observed_at:
            # It said so when it ended: it serves no more.
            continue
        if living is not None and view.source not in living:
            # It was killed: its spool is nobody's.
            continue
        if view.expires_at <= now:
            silent.append(view.gateway)
            continue
        running += view.in_flight
        if view.drain_us is not None:
            longest = max(longest or 0, view.drain_us)
        later = before.get(view.gateway) != (view.source, view.sequence)
        if not (view.draining and later):
            unaware.append(view.gateway)
    return Drained(
        running=running, longest_us=longest, unaware=tuple(unaware), silent=tuple(silent)
    )
