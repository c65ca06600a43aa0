"""One request, folded from its events in any order. Pure.

What is known of a request only grows: a finish beats an abandonment (the gateway that was given up
came back with its tail), an abandonment beats an open request, and of two running totals the later
one stands, as of two abandonments (a spool was put back and adopted again). So a replay, a
duplicate or another order of the same events gives the same row.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

import msgspec

from ledger.events import (
    Basis,
    Event,
    Payload,
    RequestAbandoned,
    RequestAccepted,
    RequestAttempted,
    RequestFinished,
    TokensDelivered,
    Usage,
)
from ledger.events.usage import NOTHING_KNOWN

State = Literal["open", "abandoned", "finished"]


class RequestRow(msgspec.Struct, frozen=True, kw_only=True):
    """All that the ledger knows of one request.

    Durations are in microseconds. `source` is the gateway that accepted it.
    """

    request_id: str
    state: State = "open"
    source: str | None = None
    key_id: str | None = None
    model: str | None = None
    endpoint: str | None = None
    stream: bool | None = None
    accepted_at: datetime | None = None
    backend_id: str | None = None
    attempts: int = 0
    chunks: int = 0
    basis: Basis = "none"
    usage: Usage = NOTHING_KNOWN
    outcome: str | None = None
    status: int | None = None
    reason: str | None = None
    first_token_us: int | None = None
    duration_us: int | None = None
    overhead_us: int | None = None
    client_request: str | None = None
    client_retry: int | None = None

    @property
    def billed(self) -> bool:
        """True once the request has an end and with it a line on a bill."""
        return self.state != "open"

    @property
    def failed_attempts(self) -> int:
        """How many of its calls failed. One that was never passed on has made none at all."""
        return max(0, self.attempts - 1)

    @property
    def busy_us(self) -> int | None:
        """How long it spent with a backend; null where nobody knows."""
        if self.duration_us is None or self.overhead_us is None:
            return None
        return self.duration_us - self.overhead_us


ABANDONED_REASON = "the gateway that served it died"
"""The reason on the row of a request whose end its gateway could not write."""

REQUEST_TYPES = (
    RequestAccepted,
    RequestAttempted,
    TokensDelivered,
    RequestFinished,
    RequestAbandoned,
)
"""The payloads that `fold_request` takes; every other type says nothing of an accepted request."""


Telling = tuple[Event, Payload]
"""An event of a request with what it says."""


def fold_told(row: RequestRow | None, told: Sequence[Telling]) -> RequestRow:
    """`row` advanced by at least one event of the same request, in their order.

    What an end says again, whatever came before or comes behind it, is not folded for nothing.
    """
    if len(told) > 1 and any(type(said) is RequestFinished for _, said in told):
        told = [one for one in told if not isinstance(one[1], RequestAttempted | TokensDelivered)]
    for event, said in told:
        row = fold_request(row, event, said)
    assert row is not None, "a request is folded by what was told of it"
    return row


def fold_request(row: RequestRow | None, event: Event, payload: Payload) -> RequestRow:
    """`row` advanced by one event of the same request; null is a request not heard of before."""
    match payload:
        case RequestAccepted():
            return _accepted(row, event, payload)
        case RequestAttempted():
            return _attempted(row, payload)
        case TokensDelivered():
            return _delivered(row, payload)
        case RequestFinished():
            return _finished(row, event, payload)
        case RequestAbandoned():
            return _abandoned(row, payload)
        case _:
            raise TypeError(f"{type(payload).__name__} is not an event of an accepted request")


def _accepted(row: RequestRow | None, event: Event, said: RequestAccepted) -> RequestRow:
    if row is None:
        return RequestRow(
            request_id=said.request_id,
            source=event.source,
            key_id=said.key_id,
            model=said.model,
            endpoint=said.endpoint,
            stream=said.stream,
            accepted_at=event.time,
            client_request=said.client_request,
            client_retry=said.client_retry,
        )
    return msgspec.structs.replace(
        row,
        source=event.source,
        key_id=said.key_id,
        # Another model may have answered than was asked for; an end says which is billed.
        model=row.model if row.billed else said.model,
        endpoint=said.endpoint,
        stream=said.stream,
        accepted_at=event.time,
        client_request=said.client_request,
        client_retry=said.client_retry,
    )


def _attempted(row: RequestRow | None, said: RequestAttempted) -> RequestRow:
    row = row or RequestRow(request_id=said.request_id)
    if row.billed or said.attempt <= row.attempts:
        return row
    return msgspec.structs.replace(row, attempts=said.attempt, backend_id=said.backend_id)


def _delivered(row: RequestRow | None, said: TokensDelivered) -> RequestRow:
    row = row or RequestRow(request_id=said.request_id)
    if row.billed or _progress(said.chunks, said.usage) < _progress(row.chunks, row.usage):
        return row
    return msgspec.structs.replace(row, chunks=said.chunks, basis=said.basis, usage=said.usage)


def _progress(chunks: int, usage: Usage) -> tuple[int, int]:
    """How far a running total has got: usage may move between two chunks that the client saw."""
    return chunks, sum(count for count in usage.counts() if count)


def _finished(row: RequestRow | None, event: Event, said: RequestFinished) -> RequestRow:
    row = row or RequestRow(request_id=said.request_id)
    return msgspec.structs.replace(
        row,
        state="finished",
        source=event.source,
        key_id=said.key_id,
        model=said.model,
        endpoint=said.endpoint,
        stream=said.stream,
        accepted_at=said.accepted_at,
        backend_id=said.backend_id,
        attempts=said.attempts,
        chunks=said.chunks,
        basis=said.basis,
        usage=said.usage,
        outcome=said.outcome,
        status=said.status,
        reason=said.reason,
        first_token_us=said.first_token_us,
        duration_us=said.duration_us,
        overhead_us=said.overhead_us,
    )


def _abandoned(row: RequestRow | None, said: RequestAbandoned) -> RequestRow:
    row = row or RequestRow(request_id=said.request_id)
    if row.state == "finished":
        return row
    given_up = msgspec.structs.replace(
        row,
        state="abandoned",
        source=said.abandoned_source,
        key_id=said.key_id,
        model=said.model,
        endpoint=said.endpoint,
        stream=said.stream,
        accepted_at=said.accepted_at,
        backend_id=said.backend_id,
        attempts=said.attempts,
        chunks=said.chunks,
        basis=said.basis,
        usage=said.usage,
        outcome="abandoned",
        reason=ABANDONED_REASON,
    )
    return max(row, given_up, key=_known_at_end) if row.state == "abandoned" else given_up


def _known_at_end(row: RequestRow) -> tuple[object, ...]:
    """Orders two abandonments of one request: that of an adopter that had more of the spool stands.

    All that they can differ in is in it, so that neither order of them gives another row.
    """
    progress = _progress(row.chunks, row.usage)
    shown = [-1 if count is None else count for count in row.usage.counts()]
    return progress, shown, row.attempts, row.backend_id or "", row.basis
