"""One backend of this gateway: what is known of it, and what it last said of itself."""

import logging
from collections.abc import Sequence
from typing import Literal

import msgspec

from gateway.backends.signals import Signals
from gateway.routing import breaker as rule
from gateway.routing import refusals as refusal
from gateway.routing.breaker import Breaker
from gateway.routing.policy import BackendView
from gateway.wire.generated import Verdict
from gateway.wire.models import listed
from gateway.wire.requests import Engine
from ledger.folds.routing import RoutingView

log = logging.getLogger("tollbook.backends")

STRICT = ("vllm", "sglang")
"""Engines whose list is all that they have: vLLM refuses every other name, and SGLang answers to it
with the model that it has, which would then be billed as another. The rest take any name."""

NAMES_SHOWN_MAX = 5
"""Of a list of models, in words about what is missing from it."""

SECRET_CHARACTERS_MIN = 12
"""A shorter key is a placeholder such as EMPTY; to hide it would only mangle texts that say it."""


FIRST_TOKENS = 8
"""The moving averages of times to the first token, and from one to the next, forget the older half
in about five answers."""


Rung = Literal["name", "port", "tls", "list", "key", "model", "generation", "requests"]
"""What has to hold, in the order in which it is tried: the name resolves, the port accepts, TLS is
agreed on, the models are listed, the key is taken, the model is among them, one token comes. Behind
all of them stand the requests themselves."""


class Generated(msgspec.Struct, frozen=True):
    """What became of a tiny generation, in words too, and how long it took. `rung` is what does not
    hold if it failed."""

    verdict: Verdict
    words: str
    seconds: float
    rung: Rung = "generation"


class Backend:
    """One model server. `models` null means that any name is passed on to it.

    `known` are names that it serves for sure: those that were set, or that it listed itself. Of an
    engine that serves only what it lists (`STRICT`), those of `set_models` that are missing from
    its list are in neither, until it lists them again.
    `secret` is what no answer may show. `requests` and `failures` count this gateway's attempts and
    those of them that met a fault of the server. `first_token_us` and `between_tokens_us` are
    moving averages of answers here, null before the first.

    `up`: it is `listed`, that is it told its models when last asked, and its breaker is not open;
    `fault` says why not, and `rung` of the ladder of probes does not hold.
    `held` says why it may not be called from here at all (its key cannot be resolved). `source` is
    where it is from, `weight` its percent of its usual part, `draining`: it gets nothing new.
    """

    __slots__ = (
        "_fixed_engine",
        "_fixed_models",
        "_untold",
        "authorization",
        "backend_id",
        "between_tokens_us",
        "breaker",
        "draining",
        "engine",
        "failures",
        "fault",
        "first_token_us",
        "heard_at",
        "held",
        "in_flight",
        "known",
        "listed",
        "models",
        "opened",
        "others_in_flight",
        "refusals",
        "requests",
        "rung",
        "secret",
        "set_models",
        "signals",
        "source",
        "unheard_since",
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
        self.set_models = frozenset(models or ())
        self.models: frozenset[str] | None = None if any_model else self.set_models
        self.known = self.models or frozenset()
        self._fixed_engine = engine is not None
        self._fixed_models = any_model or bool(models)

    def _forget(self) -> None:
        self.first_token_us: int | None = None
        self.between_tokens_us: int | None = None
        # A trial that is under way must not be taken for one of the new breaker's.
        self.breaker = Breaker(period=self.breaker.period)
        self._untold = 0  # answers that were whole, and that the breaker does not know of
        self.refusals = refusal.NONE
        self.up = self.listed = False
        self.fault: str | None = "it was not asked yet"
        self.rung: Rung | None = None
        self.signals.lose()
        self.heard_at = float("-inf")
        self.unheard_since: float | None = None

    def learn(self, status: int, body: bytes) -> None:
        """Take what `/v1/models` answered. A list that cannot be read leaves the last one."""
        said = listed(body) if status == 200 else None
        if said is None:
            # With fixed models a server without a model list is as good as any other.
            self.listed = self._fixed_models and status in (404, 405)
            if status == 401:
                self._tell("it refuses the server key (401); see 'key' of this backend", "key")
            else:
                self._tell(f"/v1/models answered {status}", "list")
            return
        if not self._fixed_engine:
            self.engine = said.engine
        lacks = self._take_models(said.models)
        self.listed = lacks is None
        if lacks is not None:
            self._tell(lacks, "model")
        elif self.breaker.state == "open":
            self._tell(self.fault, self.rung)
        else:
            self._tell(None, None)

    def _take_models(self, said: Sequence[str]) -> str | None:
        """Take the names that it lists. In words why it is of no use with them; null if it is."""
        names = frozenset(said)
        if self.models is None:
            self.known = names
        elif not self._fixed_models:
            self.known = self.models = names
        else:
            here = self.set_models & names if self.engine in STRICT else self.set_models
            self.known = self.models = here or self.set_models
            if not here:
                return f"it lists {_some(said)} and not {_some(sorted(self.set_models))}"
        return None

    def failed(self, reason: str, rung: Rung = "list") -> None:
        """It did not say which models it has: others go first until it is heard of again."""
        self.listed = False
        self._tell(reason, rung)

    def not_generated(self, reason: str, now: float, rung: Rung = "generation") -> None:
        """It was asked for one token and could not make it, whatever else it says of itself."""
        self._take(rule.probed(self.breaker, False, now, generated=True), reason, rung)

    def probed(self, now: float, *, generated: bool = False) -> None:
        """A probe came back, and `learn`, `failed` or a generation has told how."""
        self._take(rule.probed(self.breaker, self.listed, now, generated=generated))
        if self.up:
            self.fault = self.rung = None

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
        self.heard_at = now
        if trial is not None:
            self._take(rule.answered(self.breaker, trial, now))

    def succeeded(self, now: float) -> None:
        """A request was answered whole."""
        self.heard_at = now
        self._untold += 1
        if not rule.is_calm(self.breaker, now):
            self._tell_successes(now)

    def faulty(self, reason: str, now: float, *, sure: bool = False) -> None:
        """A request met a fault of the server. `sure`: nothing listens there."""
        self.failures += 1
        self._tell_successes(now)
        # What opened it, or a probe has found since, says more than the next request that failed.
        words = None if self.breaker.state == "open" else reason
        self._take(rule.failed(self.breaker, now, sure=sure), words, "requests")

    def refused(self, now: float) -> None:
        """It refused a request at once, which may be the client's own fault."""
        self.refusals = refusal.refused(self.refusals, now)

    def took(self, now: float) -> None:
        """It did not refuse a request, though it refused others of late."""
        self.refusals = refusal.taken(self.refusals, now)

    def left(self, sent: float) -> None:
        """A client left that had no byte of a request sent at `sent`. That is no fault: but if
        nobody else hears of it either, it is time to ask."""
        if self.heard_at < sent and self.unheard_since is None:
            self.unheard_since = sent

    def is_silent(self, seconds: float, now: float) -> bool:
        """True if a client gave it up, and nobody heard of it for `seconds` since that was sent."""
        since = self.unheard_since
        if since is not None and self.heard_at >= since:
            since = self.unheard_since = None
        return since is not None and now - since >= seconds

    def heard_since(self, seconds: float, now: float) -> bool:
        """True if a request heard of it in the last `seconds`."""
        return now - self.heard_at < seconds

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
            0.0 if self.refusals is refusal.NONE else self._refused(now),
        )

    def condition(self, now: float) -> str:
        """How it is in words, for a person."""
        breaker, fault = self.breaker, self.held
        if fault is None and not self.up:
            fault = self.fault or "no reason is known"
        if fault is not None:
            return f"down: {fault} (draining)" if self.draining else f"down: {fault}"
        if self.draining:
            return "draining"
        if breaker.state == "half_open":
            return f"up: on trial, {breaker.answered} of {rule.ANSWERED_MIN} answered"
        share = rule.share(breaker, now)
        return "up" if share >= 1 else f"up: its share has risen to {share:.0%}"

    def restore(self, breaker: Breaker, view: RoutingView | None) -> None:
        """Begin as `breaker` says, with the averages of `view`."""
        self._take(breaker, "it was down before this gateway started", "requests")
        if view is not None:
            self.first_token_us = view.first_token_us
            self.between_tokens_us = view.between_tokens_us

    def _take(self, breaker: Breaker, reason: str | None = None, rung: Rung | None = None) -> None:
        was, self.breaker = self.breaker, breaker
        if breaker.state == "open" and reason is not None:
            self.fault, self.rung = reason, rung
        if was.state == breaker.state:
            return
        self.up = self.listed and breaker.state != "open"
        self.opened += breaker.state == "open"
        words = f": {self.fault}" if breaker.state == "open" and self.fault else ""
        log.info("backend %s is %s%s", self.backend_id, breaker.state.replace("_", " "), words)

    def _refused(self, now: float) -> float:
        part = refusal.refused_part(self.refusals, now)
        if not part:
            self.refusals = refusal.NONE
        return part

    def _tell_successes(self, now: float) -> None:
        """Let the breaker know of the answers that it was not told of yet."""
        if self._untold:
            self.breaker = rule.succeeded(self.breaker, now, self._untold)
            self._untold = 0

    def _tell(self, fault: str | None, rung: Rung | None) -> None:
        self.up = self.listed and self.breaker.state != "open"
        self.fault, self.rung = fault, rung


def _some(names: Sequence[str]) -> str:
    """The first of `names` in words, and how many there are more."""
    more = len(names) - NAMES_SHOWN_MAX
    shown = ", ".join(names[:NAMES_SHOWN_MAX]) or "no model"
    return f"{shown} and {more} more" if more > 0 else shown


def _averaged(known: int | None, seconds: float) -> int:
    """A moving average in microseconds after one more measure."""
    came = max(int(seconds * 1_000_000), 0)
    return came if known is None else known + (came - known) // FIRST_TOKENS
