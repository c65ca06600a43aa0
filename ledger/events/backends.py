"""Events of backends: what each gateway saw of each model server, and what engines count."""

from typing import ClassVar

import msgspec

from ledger.events.envelope import Count, Instant, Payload


class BackendObserved(Payload, frozen=True, kw_only=True):
    """What one gateway knows of one backend at this moment. The ledger takes none of these.

    `gateway` names the serving process, the same after a restart. `fault` says why it is not `up`.
    `in_flight` counts what this gateway has at the backend now; `requests` and `failures` count
    its attempts since the gateway started. `first_token_us` is a moving average, null while none
    came. From `expires_at` on, this says nothing any more.
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
