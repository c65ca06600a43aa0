"""The backends of this gateway: what is known of them, and what they last said of themselves."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime

import msgspec

from gateway.backends.port import BackendFailed, Client
from gateway.backends.signals import Signals
from gateway.routing import breaker as rule
from gateway.routing.breaker import Breaker
from gateway.routing.policy import BackendView
from gateway.wire.models import listed
from gateway.wire.requests import Engine
from ledger.clock import Clock
from ledger.folds.routing import RoutingView

log = logging.getLogger("tollbook.backends")

PROBE_SECONDS = 2.0
"""How often each backend is asked for its models, and so the longest that a recovered one waits."""

PROBE_SECONDS_MAX = 5.0
"""A server that needs longer for its list of models is busy beyond use or hangs. One that answered
a request meanwhile is only busy."""


SECRET_CHARACTERS_MIN = 12
"""A shorter key is a placeholder such as EMPTY; to hide it would only mangle texts that say it."""


FIRST_TOKENS = 8
"""The moving averages of times to the first token, and from one to the next, forget the older half
in about five answers."""


class Backend:
    """One model server. `models` null means that any name is passed on to it.

    `known` are names that it serves for sure: those that were set, or that it listed itself.
    `secret` is what no answer may show. `requests` and `failures` count this gateway's attempts and
    those of them that met a fault of the server. `first_token_us` and `between_tokens_us` are
    moving averages of answers here, null before the first.

    `up`: it is `listed`, that is it told its models when last asked, and its breaker is not open;
    `fault` says why not.
    `held` says why it may not be called from here at all (its key cannot be resolved). `source` is
    where it is from, `weight` its percent of its usual part, `draining`: it gets nothing new.
    """

    __slots__ = (
        "_fixed_engine",
        "_fixed_models",
        "_heard_at",
        "authorization",
        "backend_id",
        "between_tokens_us",
        "breaker",
        "draining",
        "engine",
        "failures",
        "fault",
        "first_token_us",
        "held",
        "in_flight",
        "known",
        "listed",
        "models",
        "opened",
        "others_in_flight",
        "requests",
        "secret",
        "signals",
        "source",
        "up",
        "url",
        "weight",
    )

    def __init__(
        self,
        backend_id: str,
        url: str,
        *,
        key: str | None,
        engine: Engine | None,
        models: Sequence[str] | None,
        any_model: bool,
    ) -> None:
        self.backend_id = backend_id
        self.in_flight = self.others_in_flight = self.requests = self.failures = 0
        self.opened = 0  # times that its breaker opened
        self.weight = 100
        self.draining = False
        self.held: str | None = None
        self.source = "configured"
        self.url = url
        self.authorization: str | None = None
        self.signals = Signals()
        self.breaker = Breaker()
        self._forget()
        self.become(url, key=key, engine=engine, models=models, any_model=any_model)

    def become(
        self,
        url: str,
        *,
        key: str | None,
        engine: Engine | None,
        models: Sequence[str] | None,
        any_model: bool,
    ) -> None:
        """Be what is given from now on; of another address or key nothing is known yet. What runs
        goes on, and counts as before."""
        authorization = None if key is None else f"Bearer {key}"
        if (url, authorization) != (self.url, self.authorization):
            self.url, self.authorization = url, authorization
            self._forget()
        self.secret = key.encode() if key and len(key) >= SECRET_CHARACTERS_MIN else None
        self.engine: Engine = engine or "openai"
        self.models: frozenset[str] | None = None if any_model else frozenset(models or ())
        self.known = self.models or frozenset()
        self._fixed_engine = engine is not None
        self._fixed_models = any_model or bool(models)

    def _forget(self) -> None:
        self.first_token_us: int | None = None
        self.between_tokens_us: int | None = None
        # A trial that is under way must not be taken for one of the new breaker's.
        self.breaker = Breaker(period=self.breaker.period)
        self.up = self.listed = False
        self.fault: str | None = "it was not asked yet"
        self.signals.lose()
        self._heard_at = float("-inf")

    def learn(self, status: int, body: bytes) -> None:
        """Take what `/v1/models` answered. A list that cannot be read leaves the last one."""
        said = listed(body) if status == 200 else None
        if said is None:
            # With fixed models a server without a model list is as good as any other.
            self.listed = self._fixed_models and status in (404, 405)
            self._tell(
                "it refuses the server key (401); see 'key' of this backend"
                if status == 401
                else f"/v1/models answered {status}"
            )
            return
        self.listed = True
        self._tell(self.fault if self.breaker.state == "open" else None)
        if not self._fixed_engine:
            self.engine = said.engine
        if self.models is None:
            self.known = frozenset(said.models)
        elif not self._fixed_models:
            self.known = self.models = frozenset(said.models)

    def failed(self, reason: str) -> None:
        """It did not say which models it has: others go first until it is heard of again."""
        self.listed = False
        self._tell(reason)

    def probed(self, now: float, *, generated: bool = False) -> None:
        """A probe came back, and `learn`, `failed` or a generation has told how."""
        self._take(rule.probed(self.breaker, self.listed, now, generated=generated))
        if self.up:
            self.fault = None

    def take(self) -> int | None:
        """A request goes there. Returns what `give_back` wants: null, or which trial it is."""
        self.in_flight += 1
        self.requests += 1
        if self.breaker.state == "closed":
            return None
        self.breaker, trial = rule.began(self.breaker)
        return trial

    def give_back(self, trial: int | None) -> None:
        """The request is there no more, however it ended."""
        self.in_flight -= 1
        if trial is not None:
            self.breaker = rule.ended(self.breaker, trial)

    def answered(self, trial: int | None, now: float) -> None:
        """A request has its first token, or its whole answer. Its trial has its place no more."""
        self._heard_at = now
        if trial is not None:
            self._take(rule.answered(self.breaker, trial, now))

    def succeeded(self, now: float) -> None:
        """A request was answered whole."""
        self._heard_at = now
        self.breaker = rule.succeeded(self.breaker, now)

    def faulty(self, reason: str, now: float, *, sure: bool = False) -> None:
        """A request met a fault of the server. `sure`: nothing listens there."""
        self.failures += 1
        self._take(rule.failed(self.breaker, now, sure=sure), reason)

    def heard_since(self, seconds: float, now: float) -> bool:
        """True if it answered a request in the last `seconds`."""
        return now - self._heard_at < seconds

    def first_token(self, seconds: float) -> None:
        """Note how long an answer took to its first chunk with text."""
        self.first_token_us = _averaged(self.first_token_us, seconds)

    def between_tokens(self, seconds: float) -> None:
        """Note how long a stream took from one token to the next, in the mean."""
        self.between_tokens_us = _averaged(self.between_tokens_us, seconds)

    def view(self, now: float, gateways: int = 1) -> BackendView:
        """What routing may know of it at this moment; `gateways` live and share its trials."""
        breaker, signals = self.breaker, self.signals
        closed = breaker.state == "closed"
        return BackendView(
            self.backend_id,
            self.models,
            self.up,
            self.in_flight,
            self.others_in_flight,
            signals.running,
            signals.waiting,
            signals.kv_usage,
            signals.picked,
            self.first_token_us,
            self.between_tokens_us,
            self.weight,
            self.draining or self.held is not None,
            None if closed else rule.trials_left(breaker, gateways),
            1.0 if closed and breaker.share >= 1 else rule.share(breaker, now),
        )

    def condition(self, now: float) -> str:
        """How it is in words, for a person."""
        breaker = self.breaker
        if self.held is not None:
            return f"down: {self.held}"
        if not self.up:
            return f"down: {self.fault}"
        if breaker.state == "half_open":
            return f"up: on trial, {breaker.answered} of {rule.ANSWERED_MIN} answered"
        share = rule.share(breaker, now)
        return "up" if share >= 1 else f"up: its share has risen to {share:.0%}"

    def restore(self, breaker: Breaker, view: RoutingView | None) -> None:
        """Begin as `breaker` says, with the averages of `view`."""
        self._take(breaker, "it was down before this gateway started")
        if view is not None:
            self.first_token_us = view.first_token_us
            self.between_tokens_us = view.between_tokens_us

    def _take(self, breaker: Breaker, reason: str | None = None) -> None:
        was, self.breaker = self.breaker, breaker
        if breaker.state == "open" and reason is not None:
            self.fault = reason
        if was.state == breaker.state:
            return
        self.up = self.listed and breaker.state != "open"
        self.opened += breaker.state == "open"
        words = f": {self.fault}" if breaker.state == "open" and self.fault else ""
        log.info("backend %s is %s%s", self.backend_id, breaker.state.replace("_", " "), words)

    def _tell(self, fault: str | None) -> None:
        self.up, self.fault = self.listed and self.breaker.state != "open", fault


class Generated(msgspec.Struct, frozen=True):
    """What became of a tiny generation. `words` say what was wrong, or what came."""

    ok: bool
    words: str
    seconds: float = 0.0
    status: int | None = None


Generate = Callable[[Backend, str], Awaitable[Generated | None]]
"""Asks a backend for one token of a model, by the very path of a request; null if that cannot be
done now."""


class Pool:
    """All backends, kept up to date by one task for each. They come and go while it runs.

    `live_gateways` divides the trials of a backend that is half open. `generate` asks for one
    token; without it, what requests made of a breaker is undone by a list of models. `diagnose`
    says why a backend cannot be reached, in better words than the client's.
    """

    def __init__(self, backends: Iterable[Backend], client: Client, clock: Clock) -> None:
        self.backends = {backend.backend_id: backend for backend in backends}
        self.live_gateways = 1
        self.generate: Generate | None = None
        self.diagnose: Callable[[Backend], Awaitable[str | None]] | None = None
        self._client = client
        self._clock = clock
        self._served: frozenset[str] = frozenset()
        self._runs = False
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def any_model(self) -> bool:
        """True if some backend takes any model name."""
        return any(backend.models is None for backend in self.backends.values())

    def served(self) -> frozenset[str]:
        """Every model name that some backend is known to serve."""
        return self._served

    def views(self) -> list[BackendView]:
        """One view of each backend, for `choose`."""
        now, gateways = self._clock.monotonic(), self.live_gateways
        return [backend.view(now, gateways) for backend in self.backends.values()]

    def put(self, backend: Backend) -> None:
        """A backend joins, or takes the place of the one with its id. It is asked at once."""
        self.drop(backend.backend_id)
        self.backends[backend.backend_id] = backend
        if self._runs:
            self._begin(backend, at_once=True)

    def drop(self, backend_id: str) -> None:
        """A backend leaves. The requests that it works on go on."""
        self.backends.pop(backend_id, None)
        task = self._tasks.pop(backend_id, None)
        if task is not None:
            task.cancel()
        self._serve()

    def restore(self, views: Iterable[RoutingView], gateway: str, now: datetime) -> None:
        """Begin as `gateway` was when it ended: what its last views said, and where it has none,
        what most others say that are fresh. An old view never means that a backend is down."""
        monotonic = self._clock.monotonic()
        told: dict[str, list[RoutingView]] = {}
        for view in views:
            told.setdefault(view.backend_id, []).append(view)
        for backend in self.backends.values():
            known = told.get(backend.backend_id, [])
            own = next((view for view in known if view.gateway == gateway), None)
            if own is not None:
                backend.restore(_restored(own, now, monotonic), own)
                continue
            fresh = [view for view in known if view.expires_at > now]
            down = [view for view in fresh if view.state == "open"]
            # The middle of them, ordered by how bad it is: down only if more than half say so.
            fresh = down if 2 * len(down) > len(fresh) else [v for v in fresh if v not in down]
            if fresh:
                backend.restore(_restored(fresh[0], now, monotonic), fresh[0])

    async def start(self) -> None:
        """Ask every backend once, at most `PROBE_SECONDS_MAX`, then go on in the background."""
        await asyncio.gather(*(self._ask(backend) for backend in self.backends.values()))
        self._runs = True
        for backend in self.backends.values():
            self._begin(backend)

    async def stop(self) -> None:
        """End the background tasks."""
        self._runs = False
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, backend: Backend, *, at_once: bool = False) -> None:
        task = asyncio.create_task(self._watch(backend, at_once=at_once))
        task.add_done_callback(_say_why)
        self._tasks[backend.backend_id] = task

    async def _watch(self, backend: Backend, *, at_once: bool) -> None:
        if not at_once:
            await asyncio.sleep(PROBE_SECONDS)
        while True:
            await self._ask(backend)
            await self._try(backend)
            await asyncio.sleep(PROBE_SECONDS)

    async def _ask(self, backend: Backend) -> None:
        if backend.held is not None:
            return
        try:
            status, body = await self._client.fetch(
                backend, "/v1/models", seconds=PROBE_SECONDS_MAX
            )
        except BackendFailed as failed:
            now = self._clock.monotonic()
            if failed.reason == "slow" and backend.heard_since(PROBE_SECONDS_MAX, now):
                return
            backend.failed(await self._why(backend, failed))
        else:
            backend.learn(status, body)
        backend.probed(self._clock.monotonic(), generated=self.generate is None)
        self._serve()

    async def _why(self, backend: Backend, failed: BackendFailed) -> str:
        found = None if self.diagnose is None else await self.diagnose(backend)
        return found or str(failed)

    async def _try(self, backend: Backend) -> None:
        """Ask a backend for one token whose requests met faults though it lists its models."""
        if self.generate is None or backend.breaker.state != "open" or not backend.listed:
            return
        model = min(backend.known, default=None)
        made = None if model is None else await self.generate(backend, model)
        if made is None or made.ok:
            # Where none can be asked for, the list has to be enough: the trials will tell.
            backend.probed(self._clock.monotonic(), generated=True)

    def _serve(self) -> None:
        self._served = frozenset(name for each in self.backends.values() for name in each.known)


def _averaged(known: int | None, seconds: float) -> int:
    """A moving average in microseconds after one more measure."""
    came = max(int(seconds * 1_000_000), 0)
    return came if known is None else known + (came - known) // FIRST_TOKENS


def _restored(view: RoutingView, now: datetime, monotonic: float) -> Breaker:
    state = view.state or ("closed" if view.up else "open")
    age = max((now - view.observed_at).total_seconds(), 0.0)
    had = 1.0 if view.share is None else float(view.share)
    return rule.restored(state, had, monotonic - age, fresh=now < view.expires_at)


def _say_why(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (fault := task.exception()) is not None:
        log.error("a backend is watched no more", exc_info=fault)
