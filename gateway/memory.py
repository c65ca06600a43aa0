"""What outlives a serving process: how its backends were when it ended, and what other gateways
have at them now.

Both are read from the views that gateways write every two seconds: from Kafka, or from the
runner's file. Nothing here waits, and without any view a process begins as one that knows nothing.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Final

from gateway.backends.pool import Pool
from ledger.clock import Clock
from ledger.folds.routing import RoutingView, seen_by_others

log = logging.getLogger("tollbook.memory")

VIEW_SECONDS_MAX: Final = 60.0
"""No view is good for longer, whatever it says: six times what gateways write."""

LOOK_SECONDS: Final = 0.5
"""How often views of others are looked at: they are told every two seconds."""


class Memory:
    """Keeps `pool` at what `views` say, for the serving process `name` that writes as `source`.

    `views` gives all that are known; `complete` is true once these are all there are.
    """

    def __init__(
        self,
        name: str,
        source: str,
        pool: Pool,
        views: Callable[[], Iterable[RoutingView]],
        complete: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self._name = name
        self._source = source
        self._pool = pool
        self._views = views
        self._complete = complete
        self._clock = clock
        self._looked_at = float("-inf")
        self._begins = True
        self._had_part = self._asked = False
        self._heard: dict[tuple[str, str], tuple[str, int, float]] = {}
        self._has_twin = False
        self.before: dict[str, RoutingView] = {}
        """By backend, what the last process of this name said last."""

    def start(self) -> None:
        """Begin as the last process of this name ended. Call it before backends are asked."""
        self.look()
        self._asked = True

    def tick(self) -> None:
        """Look again, if it is time to. Cheap: it is called a few times a second."""
        if self._clock.monotonic() - self._looked_at >= LOOK_SECONDS:
            self.look()

    @property
    def is_due(self) -> bool:
        """True if all that is known came in, and this process has not begun from it yet."""
        return self._begins and self._complete()

    @property
    def is_awaited(self) -> bool:
        """True while more may come in of what this process is to begin from. What it tells of its
        backends meanwhile would stand in the place of that, and be the memory of the next start."""
        return self._begins

    def notes(self) -> tuple[str, ...]:
        """That another process took this one's name: views are kept by name."""
        if not self._has_twin:
            return ()
        return (
            f"another process serves as {self._name}, too: nobody sees what this one has at its "
            "backends, a drain neither; give each a name of its own, by name in [gateway]",
        )

    def look(self) -> None:
        """Take what the views say now."""
        self._looked_at = self._clock.monotonic()
        views = [view for view in self._views() if view.source != self._source]
        if self._begins:
            self._restore(views)
        good = [view for view in views if self._is_good(view)]
        self._see_twin(good)
        others = seen_by_others(good, self._name)
        for gone in self._heard.keys() - {(view.backend_id, view.gateway) for view in views}:
            del self._heard[gone]
        for backend in self._pool.backends.values():
            backend.others_in_flight = others.in_flight.get(backend.backend_id, 0)
        self._pool.live_gateways = others.gateways + 1

    def _see_twin(self, views: list[RoutingView]) -> None:
        """Of two processes of one name the later one is told of: the earlier one sees it."""
        begun = self._source.rpartition("/")[2]
        later = (view for view in views if view.source.rpartition("/")[2] > begun)
        had, self._has_twin = self._has_twin, any(view.gateway == self._name for view in later)
        if self._has_twin and not had:
            log.warning("%s", self.notes()[0])

    def _is_good(self, view: RoutingView) -> bool:
        """True if the gateway still stands by `view`.

        It runs out by this clock here, from when it was heard on, so that a gateway whose clock is
        wrong counts like any other. How old one was that was known before this process looked can
        only its own clock tell: if that is ahead, it is believed for once, and no longer.
        """
        key = view.backend_id, view.gateway
        known = self._heard.get(key)
        is_first = known is None
        if known is None or known[:2] != (view.source, view.sequence):
            lasts = (view.expires_at - view.observed_at).total_seconds()
            if is_first:
                left = (view.expires_at - self._clock.now()).total_seconds()
                lasts = min(lasts, left)
            until = self._looked_at + min(lasts, VIEW_SECONDS_MAX)
            known = self._heard[key] = view.source, view.sequence, until
        return self._looked_at < known[2]

    def _restore(self, views: list[RoutingView]) -> None:
        """Begin from `views`: from what a snapshot had, and again from all there is, but never over
        what this process has learned from requests of its own."""
        complete = self._complete()
        self._begins = not complete
        if any(backend.requests for backend in self._pool.backends.values()):
            self._begins = False
            return
        if self._asked:
            # Backends were asked meanwhile: that is newer than what any other gateway sees.
            views = [view for view in views if view.gateway == self._name]
        if not views or (self._had_part and not complete):
            return
        self._had_part = True
        self.before = {view.backend_id: view for view in views if view.gateway == self._name}
        self._pool.restore(views, self._name, self._clock.now())
        log.info("routing goes on from %d views of backends", len(views))
