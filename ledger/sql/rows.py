"""Between the folds' values and rows of the tables. It decides nothing and touches no session."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec
from sqlalchemy import ColumnElement, case, func

from ledger.amounts import decimal_text, pico_per_token
from ledger.clock import from_us, to_us
from ledger.events import BUCKETS, BackendCounted, Event, Usage
from ledger.folds.attempts import AttemptRow
from ledger.folds.book import Key
from ledger.folds.prices import Price, PricedBand
from ledger.folds.requests import RequestRow
from ledger.folds.usage import Cell, Rolled, Totals
from ledger.sql import tables

Params = dict[str, object]
"""A row by the names of its columns."""

Cells = tuple[object, ...]
"""A row in the order of its table's columns: where there are thousands, names cost as much as what
they name."""

EVENT_COLUMNS = tuple(c for c in tables.events.columns if c.name != "place")
"""What `event_of` reads, in its order."""

REQUEST_COLUMNS = tuple(tables.requests.columns)
"""What `request_of` reads, in its order."""


def event_cells(event: Event, data: str, place: int | None = None) -> Cells:
    """The row of `event`; `data` is its data as text, `place` its place in the registry."""
    return (
        event.source,
        event.topic,
        event.sequence,
        event.id,
        event.type,
        event.subject,
        to_us(event.time),
        to_us(event.recordedtime),
        place,
        data,
    )


def event_of(row: Sequence[Any]) -> Event:
    """The event in a row of `EVENT_COLUMNS`."""
    source, topic, sequence, event_id, kind, subject, time_us, recorded_us, data = row
    return Event(
        id=event_id,
        source=source,
        topic=topic,
        sequence=sequence,
        type=kind,
        subject=subject,
        time=from_us(time_us),
        recordedtime=from_us(recorded_us),
        data=msgspec.Raw(data.encode()),
    )


def request_cells(row: RequestRow) -> Cells:
    """The row of a request."""
    return (
        row.request_id,
        row.state,
        row.source,
        row.key_id,
        row.model,
        row.endpoint,
        row.stream,
        None if row.accepted_at is None else to_us(row.accepted_at),
        row.backend_id,
        row.attempts,
        row.chunks,
        row.basis,
        *row.usage.counts(),
        row.outcome,
        row.status,
        row.reason,
        row.first_token_us,
        row.duration_us,
        row.overhead_us,
        row.client_request,
        row.client_retry,
    )


def request_params(row: RequestRow) -> Params:
    """The row of a request by the names of its columns."""
    return dict(zip(_REQUEST_NAMES, request_cells(row), strict=True))


_REQUEST_NAMES = tuple(column.name for column in REQUEST_COLUMNS)


def request_of(row: Sequence[Any]) -> RequestRow:
    """The request in a row of `REQUEST_COLUMNS`."""
    request_id, state, source, key_id, model, endpoint, stream, accepted_us, *rest = row
    backend_id, attempts, chunks, basis, a, b, c, d, e, *rest = rest
    outcome, status, reason, first_token_us, duration_us, overhead_us, *rest = rest
    client_request, client_retry = rest
    return RequestRow(
        request_id=request_id,
        state=state,
        source=source,
        key_id=key_id,
        model=model,
        endpoint=endpoint,
        # As the driver gives it, it is a number in SQLite.
        stream=None if stream is None else bool(stream),
        accepted_at=None if accepted_us is None else from_us(accepted_us),
        backend_id=backend_id,
        attempts=attempts,
        chunks=chunks,
        basis=basis,
        usage=Usage(uncached_in=a, cached_in=b, cache_write_in=c, reasoning_out=d, other_out=e),
        outcome=outcome,
        status=status,
        reason=reason,
        first_token_us=first_token_us,
        duration_us=duration_us,
        overhead_us=overhead_us,
        client_request=client_request,
        client_retry=client_retry,
    )


def usage_params(cell: Cell, rolled: Rolled) -> Params:
    """The row of one cell of the hourly roll-up."""
    totals = rolled.totals
    row: Params = {
        "hour_us": to_us(cell.hour),
        "key_id": cell.key_id,
        "model": cell.model,
        "basis": cell.basis,
        "requests": totals.requests,
    }
    for name, tokens, known in zip(BUCKETS, totals.tokens, totals.known, strict=True):
        row[name] = tokens
        row[f"{name}_known"] = known
    row["failed_attempts"] = rolled.failed_attempts
    row["busy_us"] = rolled.busy_us
    row["busy_known"] = rolled.busy_known
    return row


def rolled_of(numbers: Iterable[Any]) -> Rolled:
    """What a cell holds, of its columns behind its name, or of sums over such rows."""
    # Postgres sums to a decimal, and to null where every value is null.
    requests, a, b, c, d, e, *more = (int(number or 0) for number in numbers)
    ka, kb, kc, kd, ke, failed, busy, known = more
    totals = Totals(requests, (a, b, c, d, e), (ka, kb, kc, kd, ke))
    return Rolled(totals, failed, busy, known)


def hourly_of(row: Sequence[Any]) -> tuple[Cell, Rolled]:
    """A cell of the hourly roll-up and what is in it, of a row of the table's columns."""
    hour_us, key_id, model, basis, *numbers = row
    return Cell(from_us(hour_us), key_id, model, basis), rolled_of(numbers)


def sums_of_requests() -> list[ColumnElement[int]]:
    """What requests with an end add up to, in the order of `rolled_of`."""
    table = tables.requests
    busy = table.c.duration_us - table.c.overhead_us
    return [
        func.count(),
        *(func.sum(table.c[name]) for name in BUCKETS),
        *(func.count(table.c[name]) for name in BUCKETS),
        func.sum(case((table.c.attempts > 1, table.c.attempts - 1), else_=0)),
        func.sum(busy),
        func.count(busy),
    ]


def attempt_cells(row: AttemptRow) -> Cells:
    """The row of an attempt."""
    started_us = None if row.started_at is None else to_us(row.started_at)
    return row.request_id, row.attempt, row.backend_id, started_us, row.failed


def attempt_of(row: Sequence[Any]) -> AttemptRow:
    """The attempt in a row of the table's columns."""
    request_id, attempt, backend_id, started_us, failed = row
    return AttemptRow(
        request_id=request_id,
        attempt=attempt,
        backend_id=backend_id,
        started_at=None if started_us is None else from_us(started_us),
        failed=failed,
    )


def counters_params(event: Event, said: BackendCounted) -> Params:
    """The row of a reading of an engine's counters."""
    started = said.process_started
    return {
        "backend_id": said.backend_id,
        "at_us": to_us(event.time),
        "source": event.source,
        "gateway": said.gateway,
        "engine": said.engine,
        "counters": msgspec.json.encode(said.counters, order="sorted").decode(),
        "process_started_us": None if started is None else to_us(started),
        "running": said.running,
        "waiting": said.waiting,
        "fault": said.fault,
    }


def key_params(key: Key) -> Params:
    """The row of a key."""
    return {
        "key_id": key.key_id,
        "version": key.version,
        "hash": key.hash,
        "issued_us": to_us(key.issued_at),
        "models": None if key.models is None else msgspec.json.encode(key.models).decode(),
        "revoked_us": None if key.revoked_at is None else to_us(key.revoked_at),
    }


def price_params(price: Price) -> Params:
    """The row of a price."""
    row: Params = {
        "price_id": price.price_id,
        "model": price.model,
        "version": price.version,
        "currency": price.currency,
        "effective_us": to_us(price.effective_from),
    }
    for name in BUCKETS:
        pico = price.pico.get(name)
        row[f"{name}_per_million"] = None if pico is None else per_million(pico)
    terms = _Terms(
        scope=price.scope,
        discount=price.discount,
        zone=price.zone,
        bands=price.bands,
        charges=price.charges,
        unit=price.unit,
    )
    row["terms"] = _terms_encoder.encode(terms).decode() if price.listed else None
    return row


class _Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What a price list says of a price beyond its buckets."""

    scope: str | None
    discount: int | None
    zone: str | None
    bands: tuple[PricedBand, ...]
    charges: Mapping[str, int]
    unit: int


_terms_encoder = msgspec.json.Encoder(order="deterministic")
_terms_decoder = msgspec.json.Decoder(_Terms)


def per_million(pico: int) -> str:
    """The exact decimal price of a million tokens; the inverse of `amounts.pico_per_token`."""
    return decimal_text(pico * 1_000_000)


def price_of(row: Mapping[str, Any]) -> Price:
    """The price in a row of `prices`, by column name."""
    given = {name: cast("str | None", row[f"{name}_per_million"]) for name in BUCKETS}
    said = None if row["terms"] is None else _terms_decoder.decode(row["terms"])
    beyond = {} if said is None else {**msgspec.structs.asdict(said), "listed": True}
    return Price(
        **beyond,
        price_id=row["price_id"],
        model=row["model"],
        version=row["version"],
        currency=row["currency"],
        effective_from=from_us(row["effective_us"]),
        pico={name: pico_per_token(text) for name, text in given.items() if text is not None},
    )
