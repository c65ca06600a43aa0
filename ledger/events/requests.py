"""Events of a request's life: accepted, attempted, tokens on the way, and how it ended."""

from typing import ClassVar, Final, Literal

import msgspec

from ledger.events.envelope import Count, Instant, Number, Payload
from ledger.events.usage import NOTHING_KNOWN, Basis, Usage

Outcome = Literal[
    "completed",  # the backend answered in full; `status` may be the backend's own 4xx or 5xx
    "client_gone",  # the client hung up; the backend was stopped
    "backend_lost",  # the backend broke off after its first byte
    "backend_unreachable",  # no backend could be reached
    "timeout",  # a backend was too slow
    "spool_failed",  # the spool could not take a write; the answer was cut
    "gateway_failed",  # a fault of the gateway itself; its log has the trace
    "shutdown",  # the gateway stopped before the answer was whole
]

SYSTEM_KEY_ID: Final = "key_system"
"""The key of requests that the gateway makes itself, to see whether a backend answers."""


class RequestAccepted(Payload, frozen=True, kw_only=True):
    """A request passed every check. It is on the spool before any backend is called.

    A request is dated and priced by the time of this event. `held_out` is the caller's own limit
    of output tokens (null: none given); `deadline` is when the total timeout will have ended it.
    `client_request` is a keyed hash of the id that the client gave, never the id itself;
    `client_retry` is how often the client says that it has tried this before (OpenAI's clients
    send it as `x-stainless-retry-count`). `answers` is how many it asked for (`n`), null: one.
    """

    TYPE: ClassVar[str] = "tollbook.request.accepted.v1"
    TOPIC: ClassVar[str] = "requests"

    request_id: str
    key_id: str
    model: str
    endpoint: str
    stream: bool
    deadline: Instant
    held_in: Count | None = None
    held_out: Count | None = None
    client_request: str | None = None
    client_retry: Count | None = None
    answers: Count | None = None


class RequestAttempted(Payload, frozen=True, kw_only=True):
    """A backend is about to be called. `after` says why the attempt before this one failed.

    `score` is what the backend won by, lower is better, as the text of a decimal number; `reasons`
    say in words how it was and why it was picked. `model` is the one that it is asked for, null:
    the one that the caller asked for.
    """

    TYPE: ClassVar[str] = "tollbook.request.attempted.v1"
    TOPIC: ClassVar[str] = "requests"

    request_id: str
    attempt: Number
    backend_id: str
    after: str | None = None
    score: str | None = None
    reasons: list[str] = msgspec.field(default_factory=list)
    model: str | None = None


class RequestRejected(Payload, frozen=True, kw_only=True):
    """An authenticated request was refused before any backend was called."""

    TYPE: ClassVar[str] = "tollbook.request.rejected.v1"
    TOPIC: ClassVar[str] = "requests"

    request_id: str
    key_id: str
    status: Count
    code: str
    model: str | None = None


class TokensDelivered(Payload, frozen=True, kw_only=True):
    """Running totals of one open stream, at most one in each flush interval.

    `chunks` counts chunks with content that were passed on to the client.
    """

    TYPE: ClassVar[str] = "tollbook.tokens.delivered.v1"
    TOPIC: ClassVar[str] = "tokens"

    request_id: str
    chunks: Count
    basis: Basis
    usage: Usage = NOTHING_KNOWN


class RequestFinished(Payload, frozen=True, kw_only=True):
    """How a request ended, on the spool before the client gets the last bytes.

    It repeats what `RequestAccepted` said, so that it can be billed on its own. Durations are in
    microseconds of the monotonic clock; `overhead_us` is the time spent in the gateway itself.
    `model` is the one that answered and is billed; `asked_model` is the one that the caller asked
    for, null: the same.
    """

    TYPE: ClassVar[str] = "tollbook.request.finished.v1"
    TOPIC: ClassVar[str] = "requests"

    request_id: str
    key_id: str
    model: str
    endpoint: str
    stream: bool
    accepted_at: Instant
    outcome: Outcome
    basis: Basis
    usage: Usage = NOTHING_KNOWN
    status: Count | None = None
    reason: str | None = None
    backend_id: str | None = None
    attempts: Count = 0
    chunks: Count = 0
    first_token_us: Count | None = None
    duration_us: Count | None = None
    overhead_us: Count | None = None
    asked_model: str | None = None


class RequestAbandoned(Payload, frozen=True, kw_only=True):
    """Written by whoever adopts the spool of a gateway that died: the request never finished.

    `usage` is the last running total, so at most one flush interval short of what was produced.
    `model` and `asked_model` are as in `RequestFinished`.
    """

    TYPE: ClassVar[str] = "tollbook.request.abandoned.v1"
    TOPIC: ClassVar[str] = "requests"

    request_id: str
    key_id: str
    model: str
    endpoint: str
    stream: bool
    accepted_at: Instant
    abandoned_source: str
    basis: Basis
    usage: Usage = NOTHING_KNOWN
    backend_id: str | None = None
    attempts: Count = 0
    chunks: Count = 0
    asked_model: str | None = None
