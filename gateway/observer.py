"""Says of each backend what this gateway sees of it, for the other gateways: on change and each two
seconds. What it says runs out soon, so a gateway that is gone says nothing."""

from collections.abc import Iterable
from datetime import timedelta

from gateway.backends.pool import Backend
from ledger.clock import Clock
from ledger.events import BackendObserved, Draft
from streams.errors import SpoolFailed
from streams.log.port import Journal

OBSERVE_SECONDS = 2.0
"""As often as backends are probed: in between there is little that is new."""

VIEW_SECONDS = 10.0
"""How long a view is good for: four may be lost on the way, and clocks may be a little apart."""


class Observer:
    """Writes `BackendObserved` of `backends` to `journal`, as the serving process `name`."""

    def __init__(
        self, name: str, backends: Iterable[Backend], journal: Journal, clock: Clock
    ) -> None:
        self._name = name
        self._backends = list(backends)
        self._journal = journal
        self._clock = clock
        self._said_at = -OBSERVE_SECONDS
        self._said_up: dict[str, bool] = {}
        self._count = 0

    def tick(self) -> None:
        """Say what is due. A spool that is nearly full is left to requests."""
        now = self._clock.monotonic()
        if now - self._said_at >= OBSERVE_SECONDS:
            due = self._backends
        else:
            due = [b for b in self._backends if self._said_up.get(b.backend_id) != b.up]
        if not due or not self._journal.room():
            return
        if due is self._backends:
            self._said_at = now
        self._said_up.update({backend.backend_id: backend.up for backend in due})
        try:
            self._journal.append(*(self._draft(backend) for backend in due))
        except SpoolFailed:
            # Requests meet the same disk, and say so.
            return

    def _draft(self, backend: Backend) -> Draft:
        self._count += 1
        now = self._clock.now()
        payload = BackendObserved(
            backend_id=backend.backend_id,
            gateway=self._name,
            up=backend.up,
            expires_at=now + timedelta(seconds=VIEW_SECONDS),
            fault=backend.fault,
            in_flight=backend.in_flight,
            requests=backend.requests,
            failures=backend.failures,
            first_token_us=backend.first_token_us,
        )
        name = f"{self._journal.source}/observed/{self._count}"
        return Draft(name, backend.backend_id, now, payload)
