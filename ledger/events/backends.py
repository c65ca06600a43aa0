"""Events of backends: what each gateway saw of each model server, for the other gateways."""

from typing import ClassVar

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
