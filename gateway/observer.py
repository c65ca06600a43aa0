"""Says of each backend what this gateway sees of it, for the other gateways and for its own next
start: on change, each two seconds, and at the end.

What it says runs out soon, so a gateway that is gone says nothing of how things are; how they were
is remembered.
"""

from collections.abc import Callable, Collection
from datetime import timedelta

from gateway.backends.pool import Backend
from gateway.routing import breaker as rule
from gateway.sharing import Told
from ledger.clock import Clock
from ledger.events import BackendObserved, Draft
from streams.errors import SpoolFailed
from streams.log.port import Journal

OBSERVE_SECONDS = 2.0
"""As often as backends are probed: in between there is little that is new."""

VIEW_SECONDS = 10.0
"""How long a view is good for: four may be lost on the way, and clocks may be a little apart."""

MICROSECONDS = 1_000_000

Condition = tuple[bool, str, bool]
"""Up or not, the state of the breaker, draining or not: what is told at once when it changes."""


class Observer:
    """Writes `BackendObserved` of `backends` to `journal`, as the serving process `name`.

    `backends` may come and go. `drain_us` says of one that is drained how long what runs there may
    still take, null for nothing; `told` says of one how its share stands.
    """

    def __init__(
        self,
        name: str,
        backends: Collection[Backend],
        journal: Journal,
        clock: Clock,
        drain_us: Callable[[Backend], int | None] = lambda _: None,
        told: Callable[[str], Told] = lambda _: Told(),
    ) -> None:
        self._name = name
        self._backends = backends
        self._journal = journal
        self._clock = clock
        self._drain_us = drain_us
        self._told = told
        self._said_at = -OBSERVE_SECONDS
        self._began = clock.monotonic()  # a breaker that never moved has been so since then
        self._said: dict[str, Condition] = {}
        self._count = 0

    def tick(self) -> None:
        """Say what is due. A spool that is nearly full is left to requests."""
        now = self._clock.monotonic()
        whole = now - self._said_at >= OBSERVE_SECONDS
        due = [b for b in self._backends if whole or self._said.get(b.backend_id) != _condition(b)]
        if not due or not self._journal.room():
            return
        if whole:
            self._said_at = now
            self._said = {}
        self._said.update({backend.backend_id: _condition(backend) for backend in due})
        self._say(due, VIEW_SECONDS)

    def say_last(self) -> None:
        """Say how things stand at the end. It is good for nobody else: this gateway is gone."""
        if self._journal.room():
            self._say(self._backends, 0.0)

    def _say(self, backends: Collection[Backend], seconds: float) -> None:
        try:
            self._journal.append(*(self._draft(backend, seconds) for backend in backends))
        except SpoolFailed:
            # Requests meet the same disk, and say so.
            return

    def _draft(self, backend: Backend, seconds: float) -> Draft:
        self._count += 1
        now, monotonic = self._clock.now(), self._clock.monotonic()
        breaker, signals = backend.breaker, backend.signals
        told = self._told(backend.backend_id)
        payload = BackendObserved(
            backend_id=backend.backend_id,
            gateway=self._name,
            up=backend.up,
            expires_at=now + timedelta(seconds=seconds),
            fault=backend.fault,
            in_flight=backend.in_flight,
            requests=backend.requests,
            failures=backend.failures,
            first_token_us=backend.first_token_us,
            between_tokens_us=backend.between_tokens_us,
            running=signals.running,
            waiting=signals.waiting,
            kv_usage=None if signals.kv_usage is None else _ratio(signals.kv_usage),
            prefix_hits=signals.prefix_hits,
            prefix_queries=signals.prefix_queries,
            read_us=None if signals.read_at is None else _us(monotonic - signals.read_at),
            state=breaker.state,
            state_us=_us(monotonic - (breaker.since or self._began)),
            errors=_ratio(rule.error_score(breaker, monotonic)),
            successes=breaker.answered,
            share=_ratio(rule.share(breaker, monotonic)),
            draining=backend.draining,
            drain_us=self._drain_us(backend),
            picks=told.picks,
            expected=_ratio(told.expected),
            picks_us=_us(told.seconds),
            share_before=None if told.before is None else _ratio(told.before),
            share_off=told.off,
        )
        name = f"{self._journal.source}/observed/{self._count}"
        return Draft(name, backend.backend_id, now, payload)


def _condition(backend: Backend) -> Condition:
    return backend.up, backend.breaker.state, backend.draining


def _us(seconds: float) -> int:
    return max(int(seconds * MICROSECONDS), 0)


def _ratio(value: float) -> str:
    """`value` as text of at most four decimals: what routing tells apart, and no more."""
    return f"{max(value, 0.0):.4f}".rstrip("0").rstrip(".")
