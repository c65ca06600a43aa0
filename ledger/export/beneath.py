"""Attempts and conservation as Arrow batches, for the views of `tollbook query`."""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from ledger.amounts import decimal_text
from ledger.export.columns import (
    ATTEMPT_COLUMNS,
    CONSERVATION_COLUMNS,
    KEY_NAME,
    Values,
    batch_of,
    with_key,
)
from ledger.folds.conservation import Balance, Cell
from ledger.sql.attempts import PricedAttempt


def attempts_batch(attempts: Sequence[PricedAttempt], names: Mapping[str, str]) -> pa.RecordBatch:
    """`attempts` with the names of their keys. An outcome is the request's, so the last one's."""
    rows = [one.attempt for one in attempts]
    requests = [one.request for one in attempts]
    ends = [one.request if one.last else None for one in attempts]
    keys = [None if request is None else request.key_id for request in requests]
    values: Values = {
        "request_id": [row.request_id for row in rows],
        "attempt": [row.attempt for row in rows],
        "last": [one.last for one in attempts],
        "backend_id": [row.backend_id for row in rows],
        "started_at": [row.started_at for row in rows],
        "failed": [row.failed for row in rows],
        "outcome": [None if end is None else end.outcome for end in ends],
        "status": [None if end is None else end.status for end in ends],
        "key_id": keys,
        KEY_NAME.name: [None if key_id is None else names.get(key_id) for key_id in keys],
        "model": [None if request is None else request.model for request in requests],
        "cost": [
            None if one.cost.pico is None else decimal_text(one.cost.pico) for one in attempts
        ],
        "currency": [one.cost.currency for one in attempts],
    }
    return batch_of(with_key(ATTEMPT_COLUMNS), values)


def conservation_batch(cells: Sequence[tuple[Cell, Balance]]) -> pa.RecordBatch:
    """`cells` with what they add up to."""
    values: Values = {
        "source": [cell.source for cell, _ in cells],
        "hour": [cell.hour for cell, _ in cells],
        **{
            name: [getattr(balance, name) for _, balance in cells]
            for name in ("accepted", "finished", "abandoned", "open", "difference")
        },
    }
    return batch_of(CONSERVATION_COLUMNS, values)
