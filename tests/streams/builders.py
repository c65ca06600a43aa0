"""Small builders for the tests of `streams`: a clock that stands still, and drafts of a request."""

from datetime import UTC, datetime, timedelta

from ledger.events import (
    Draft,
    RequestAccepted,
    RequestAttempted,
    RequestFinished,
    TokensDelivered,
    Usage,
)

START = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


class FakeClock:
    """Time that moves only when told."""

    def __init__(self, start: datetime = START) -> None:
        self.seconds = 0.0
        self._start = start

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        return self.seconds

    def advance(self, seconds: float) -> None:
        self.seconds += seconds


def accepted(rid: str, at: datetime = START, model: str = "gemma") -> Draft:
    payload = RequestAccepted(
        request_id=rid,
        key_id="key-1",
        model=model,
        endpoint="chat",
        stream=True,
        deadline=at + timedelta(minutes=30),
    )
    return Draft(f"{rid}/accepted", "key-1", at, payload)


def attempted(rid: str, at: datetime = START, attempt: int = 1) -> Draft:
    payload = RequestAttempted(request_id=rid, attempt=attempt, backend_id=f"b-{attempt}")
    return Draft(f"{rid}/attempted/{attempt}", "key-1", at, payload)


def delivered(rid: str, number: int, chunks: int, at: datetime = START) -> Draft:
    payload = TokensDelivered(
        request_id=rid,
        chunks=chunks,
        basis="running",
        usage=Usage(uncached_in=7, other_out=chunks),
    )
    return Draft(f"{rid}/delivered/{number}", "key-1", at, payload)


def finished(rid: str, at: datetime = START, out: int = 20, model: str = "gemma") -> Draft:
    payload = RequestFinished(
        request_id=rid,
        key_id="key-1",
        model=model,
        endpoint="chat",
        stream=True,
        accepted_at=START,
        outcome="completed",
        basis="reported",
        usage=Usage(uncached_in=7, other_out=out),
        attempts=1,
        chunks=out,
    )
    return Draft(f"{rid}/finished", "key-1", at, payload)
