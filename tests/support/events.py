"""Builders: short ways to say an event in a test, and a scribe that numbers them as a log does.

The functions give drafts; `Scribe.write` makes the stored event of one, through the real codec.
"""

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

from ledger.clock import from_us
from ledger.events import (
    BackendChanged,
    BackendCounted,
    BackendRegistered,
    BackendRemoved,
    Basis,
    Draft,
    Event,
    KeyIssued,
    KeyRevoked,
    PeriodClosed,
    PricePublished,
    RequestAbandoned,
    RequestAccepted,
    RequestAttempted,
    RequestFinished,
    RequestRejected,
    SourceClosed,
    SourceMark,
    TokensDelivered,
    Usage,
    UsageCorrected,
)
from ledger.events.requests import Outcome
from ledger.zones import month_span
from streams.codec import decode, encode

SOURCE = "/gateway/test/0193a0000000700080000000000000a1"
START = datetime(2026, 11, 3, 10, 15, tzinfo=UTC)
"""An instant within an hour, a day and a month, so that none of their edges is hit by accident."""


def after(seconds: float) -> datetime:
    """`START` and so many seconds."""
    return START + timedelta(seconds=seconds)


def tokens(uncached: int | None = 12, out: int | None = 4, cached: int | None = 0) -> Usage:
    """What an engine that reports no cache writes and no reasoning says of one answer."""
    return Usage(
        uncached_in=uncached, cached_in=cached, cache_write_in=0, reasoning_out=0, other_out=out
    )


def accepted(
    request_id: str,
    at: datetime = START,
    key_id: str = "key-1",
    model: str = "m",
    stream: bool = True,
    **more: Any,
) -> Draft:
    payload = RequestAccepted(
        request_id=request_id,
        key_id=key_id,
        model=model,
        endpoint="chat",
        stream=stream,
        deadline=at + timedelta(minutes=30),
        **more,
    )
    return Draft(f"{request_id}/accepted", key_id, at, payload)


def attempted(
    request_id: str,
    attempt: int = 1,
    at: datetime = START,
    key_id: str = "key-1",
    backend_id: str = "b-1",
    after: str | None = None,
    **more: Any,
) -> Draft:
    payload = RequestAttempted(
        request_id=request_id, attempt=attempt, backend_id=backend_id, after=after, **more
    )
    return Draft(f"{request_id}/attempted/{attempt}", key_id, at, payload)


def rejected(
    request_id: str, at: datetime = START, key_id: str = "key-1", status: int = 404
) -> Draft:
    payload = RequestRejected(
        request_id=request_id, key_id=key_id, status=status, code="model_not_found", model="m"
    )
    return Draft(f"{request_id}/rejected", key_id, at, payload)


def delivered(
    request_id: str,
    number: int = 1,
    chunks: int = 2,
    at: datetime = START,
    key_id: str = "key-1",
    basis: Basis = "running",
    usage: Usage | None = None,
) -> Draft:
    usage = tokens(out=chunks) if usage is None else usage
    payload = TokensDelivered(request_id=request_id, chunks=chunks, basis=basis, usage=usage)
    return Draft(f"{request_id}/delivered/{number}", key_id, at, payload)


def finished(
    request_id: str,
    at: datetime = START,
    key_id: str = "key-1",
    model: str = "m",
    stream: bool = True,
    usage: Usage | None = None,
    basis: Basis = "reported",
    outcome: Outcome = "completed",
    ended: datetime | None = None,
    **more: Any,
) -> Draft:
    """`at` is the time of acceptance, as in every builder; it ended a second later if not said."""
    values: dict[str, Any] = {"status": 200, "backend_id": "b-1", "attempts": 1, "chunks": 4}
    payload = RequestFinished(
        request_id=request_id,
        key_id=key_id,
        model=model,
        endpoint="chat",
        stream=stream,
        accepted_at=at,
        outcome=outcome,
        basis=basis,
        usage=tokens() if usage is None else usage,
        **(values | more),
    )
    return Draft(f"{request_id}/finished", key_id, ended or at + timedelta(seconds=1), payload)


def abandoned(
    request_id: str,
    at: datetime = START,
    key_id: str = "key-1",
    model: str = "m",
    stream: bool = True,
    source: str = SOURCE,
    basis: Basis = "running",
    usage: Usage | None = None,
    chunks: int = 2,
) -> Draft:
    payload = RequestAbandoned(
        request_id=request_id,
        key_id=key_id,
        model=model,
        endpoint="chat",
        stream=stream,
        accepted_at=at,
        abandoned_source=source,
        basis=basis,
        usage=tokens(out=chunks) if usage is None else usage,
        backend_id="b-1",
        attempts=1,
        chunks=chunks,
    )
    return Draft(f"{request_id}/abandoned", key_id, at + timedelta(seconds=1), payload)


def life(request_id: str, at: datetime = START, key_id: str = "key-1", **more: Any) -> list[Draft]:
    """A whole request in the order of its events; `more` goes to `finished`."""
    model = more.get("model", "m")
    return [
        accepted(request_id, at, key_id, model),
        attempted(request_id, 1, at, key_id),
        delivered(request_id, 1, 2, at, key_id),
        finished(request_id, at, key_id, **more),
    ]


def mark(source: str, number: int, at: datetime, last: dict[str, int], open_: int = 0) -> Draft:
    return Draft(f"{source}/mark/{number}", source, at, SourceMark(last=last, open=open_))


def closed(source: str, at: datetime, last: dict[str, int], by: str = "itself") -> Draft:
    payload = SourceClosed(closed_source=source, last=last, by=by)
    return Draft(f"{source}/closed", source, at, payload)


def counted(
    backend_id: str,
    number: int = 1,
    at: datetime = START,
    counters: dict[str, int] | None = None,
    engine: str = "vllm",
    source: str = SOURCE,
    **more: Any,
) -> Draft:
    """Reading `number` of the engine's own counters, by `source`."""
    payload = BackendCounted(
        backend_id=backend_id, gateway="test", engine=engine, counters=counters or {}, **more
    )
    return Draft(f"{source}/counted/{number}", backend_id, at, payload)


def key_issued(
    key_id: str, at: datetime = START, models: list[str] | None = None, base: int = 0
) -> Draft:
    payload = KeyIssued(
        key_id=key_id, base=base, version=base + 1, hash=hash_of(key_id), models=models
    )
    return Draft(f"{key_id}/v{base + 1}", key_id, at, payload)


def key_revoked(key_id: str, at: datetime = START, base: int = 1) -> Draft:
    payload = KeyRevoked(
        key_id=key_id, base=base, version=base + 1, hash=hash_of(key_id), revoked_at=at
    )
    return Draft(f"{key_id}/v{base + 1}", key_id, at, payload)


def hash_of(key_id: str) -> str:
    """A stand-in for the hash of a secret: 64 hex digits, another one for each key."""
    return key_id.encode().hex().ljust(64, "0")[:64]


def backend_registered(backend_id: str = "gpu-1", base: int = 0, **more: Any) -> Draft:
    """A backend; its address is made of its id if none is given."""
    values: dict[str, Any] = {"url": f"http://{backend_id}:8000"} | more
    payload = BackendRegistered(backend_id=backend_id, base=base, version=base + 1, **values)
    return Draft(f"backend/{backend_id}/v{base + 1}", backend_id, START, payload)


def backend_changed(backend_id: str = "gpu-1", base: int = 1, **more: Any) -> Draft:
    values: dict[str, Any] = {"url": f"http://{backend_id}:8000"} | more
    payload = BackendChanged(backend_id=backend_id, base=base, version=base + 1, **values)
    return Draft(f"backend/{backend_id}/v{base + 1}", backend_id, START, payload)


def backend_removed(backend_id: str = "gpu-1", base: int = 1, at: datetime = START) -> Draft:
    payload = BackendRemoved(
        backend_id=backend_id,
        base=base,
        version=base + 1,
        url=f"http://{backend_id}:8000",
        removed_at=at,
    )
    return Draft(f"backend/{backend_id}/v{base + 1}", backend_id, at, payload)


def price(
    price_id: str,
    per_million: dict[str, str],
    model: str = "m",
    start: datetime = START,
    base: int = 0,
    currency: str = "USD",
) -> Draft:
    payload = PricePublished(
        price_id=price_id,
        model=model,
        base=base,
        version=base + 1,
        currency=currency,
        effective_from=start,
        per_million=per_million,
    )
    return Draft(price_id, model, start, payload)


def period_closed(
    cut: dict[str, dict[str, int]],
    month: str = "2026-11",
    base: int = 0,
    zone: str = "UTC",
    at: datetime | None = None,
    **more: Any,
) -> Draft:
    """A month closed a minute after its end, with totals that nobody counted."""
    first, last = (from_us(us) for us in month_span(month, zone))
    values: dict[str, Any] = {
        "prices": 0,
        "requests": 0,
        "open": 0,
        "unpriced": 0,
        "tokens": {},
        "totals": {},
        "lines": "ab" * 32,
        "root": "cd" * 32,
        "tzdata": "2026a",
    }
    payload = PeriodClosed(
        month=month,
        zone=zone,
        start=first,
        end=last,
        base=base,
        version=base + 1,
        cut=cut,
        **(values | more),
    )
    return Draft(f"period/{month}/{base}", month, at or last + timedelta(minutes=1), payload)


def corrected(
    request_id: str,
    usage: Usage | None,
    original: str,
    at: datetime = START,
    base: int = 0,
) -> Draft:
    """What a request really used; null: it counts as nothing."""
    payload = UsageCorrected(
        correction_id=f"corr-{request_id}-{base}",
        request_id=request_id,
        original=original,
        base=base,
        version=base + 1,
        reason="counted twice",
        usage=usage,
    )
    return Draft(f"correction/{payload.correction_id}", request_id, at, payload)


class Scribe:
    """Turns drafts into stored events, numbered per topic from 1 as one source's log does."""

    def __init__(self, source: str = SOURCE) -> None:
        self.source = source
        self.last: Counter[str] = Counter()

    def record(self, draft: Draft) -> bytes:
        """The bytes of `draft`; they are recorded a millisecond after the event's own time."""
        topic = draft.payload.TOPIC
        self.last[topic] += 1
        recorded = draft.time + timedelta(milliseconds=1)
        return encode(draft, self.source, self.last[topic], recorded)

    def write(self, draft: Draft) -> Event:
        return decode(self.record(draft))

    def write_all(self, *drafts: Draft) -> list[Event]:
        return [self.write(draft) for draft in drafts]
