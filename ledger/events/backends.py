"""Events of backends: which there are, what each gateway saw of each, and what engines count."""

from typing import Annotated, ClassVar, Literal

import msgspec

from ledger.events.envelope import Count, Instant, Number, Payload

BreakerState = Literal["closed", "open", "half_open"]
"""closed: requests go there; open: none do; half_open: a few, on trial."""

Ratio = Annotated[str, msgspec.Meta(pattern=r"^[0-9]+(\.[0-9]+)?$", max_length=24)]
"""A number without a sign as text, because no event holds a float."""


class BackendObserved(Payload, frozen=True, kw_only=True):
    """What one gateway knows of one backend at this moment. The ledger takes none of these.

    `gateway` names the serving process, the same after a restart. `fault` says why it is not `up`.
    `in_flight` counts what this gateway has at the backend now; `requests` and `failures` count
    its attempts since the gateway started. `first_token_us` and `between_tokens_us` are moving
    averages, null while none came. From `expires_at` on, this says nothing any more.

    The engine's own word is null where it does not say it: requests `running` and `waiting`, less
    those of this gateway that ended since, the share of its KV cache in use (`kv_usage`, 0 to 1),
    tokens of prompts looked up in its cache of prefixes since it started and found there; `read_us`
    is how long ago it said so.

    Of the breaker: its `state`, for how long it has been so (`state_us`), its decaying score of
    `errors`, trials that went well since it half opened, and the `share` of its traffic that it
    gets, 0 to 1. They are told as ages, because no clock of a process outlives it.

    `draining`: this gateway sends it nothing new; `drain_us` is the longest that what runs there
    may still take, null if nothing runs or it is not draining.

    Of its share, in the last `picks_us`: `picks` are this gateway's choices of it, `expected` what
    the odds of all its choices promised it. `share_before` is its share before the gateway started,
    0 to 1; `share_off` says why its share is not as it should be, null if it is.
    """

    TYPE: ClassVar[str] = "tollbook.backend.observed.v1"
    TOPIC: ClassVar[str] = "backends"

    backend_id: str
    gateway: str
    up: bool
    expires_at: Instant
    fault: str | None = None
    in_flight: Count = 0
    requests: Count = 0
    failures: Count = 0
    first_token_us: Count | None = None
    between_tokens_us: Count | None = None
    running: Count | None = None
    waiting: Count | None = None
    kv_usage: Ratio | None = None
    prefix_hits: Count | None = None
    prefix_queries: Count | None = None
    read_us: Count | None = None
    state: BreakerState | None = None
    state_us: Count | None = None
    errors: Ratio | None = None
    successes: Count | None = None
    share: Ratio | None = None
    draining: bool = False
    drain_us: Count | None = None
    picks: Count | None = None
    expected: Ratio | None = None
    picks_us: Count | None = None
    share_before: Ratio | None = None
    share_off: str | None = None


class BackendCounted(Payload, frozen=True, kw_only=True):
    """What an engine's own counters said when `gateway` read them, at the event's time.

    `counters` are by the engine's own names (`vllm:prompt_tokens_total`), each summed over all its
    label sets; they grow until the engine restarts. `process_started` is when its process began,
    null for an engine that does not say. `running` and `waiting` are its requests at that moment.
    `fault` says in words why there are no counters.
    """

    TYPE: ClassVar[str] = "tollbook.backend.counted.v1"
    TOPIC: ClassVar[str] = "counters"

    backend_id: str
    gateway: str
    engine: str
    counters: dict[str, Count] = msgspec.field(default_factory=dict)
    process_started: Instant | None = None
    running: Count | None = None
    waiting: Count | None = None
    fault: str | None = None


class BackendState(Payload, frozen=True, kw_only=True):
    """Base of the registry's events of one backend: its whole new state.

    `url` null: address, key, engine and models are those which each gateway is configured with, and
    only `weight` and `draining` are said here. `key` is a reference (`env:NAME`, `file:PATH`) that
    each gateway resolves for itself, never the key. `models` empty: what the server lists; `*`: any
    name. `weight` is its part of new requests, in percent of what a backend gets without one; one
    that is `draining` gets none.
    """

    backend_id: str
    base: Count
    version: Number
    url: str | None = None
    key: str | None = None
    engine: str = "auto"
    models: list[str] = msgspec.field(default_factory=list)
    weight: Count = 100
    draining: bool = False


class BackendRegistered(BackendState, frozen=True, kw_only=True):
    """A backend that gateways did not know, or that was removed, is there from now on."""

    TYPE: ClassVar[str] = "tollbook.backend.registered.v1"
    TOPIC: ClassVar[str] = "registry"


class BackendChanged(BackendState, frozen=True, kw_only=True):
    """A registered backend in its whole new state."""

    TYPE: ClassVar[str] = "tollbook.backend.changed.v1"
    TOPIC: ClassVar[str] = "registry"


class BackendRemoved(BackendState, frozen=True, kw_only=True):
    """The backend as it was last: it gets no request any more. What it served stays billed."""

    TYPE: ClassVar[str] = "tollbook.backend.removed.v1"
    TOPIC: ClassVar[str] = "registry"

    removed_at: Instant
