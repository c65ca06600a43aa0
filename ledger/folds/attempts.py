"""The attempts beneath a request: which backends were called for it, and why most failed. Pure.

An event tells of its own attempt and why the one before it failed, so each row is put together
from two events, in either order. The last attempt has no failure of its own: its end is the
request's.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime

import msgspec

from ledger.events import Event, RequestAttempted


class AttemptRow(msgspec.Struct, frozen=True, kw_only=True):
    """One call of one backend. What is not known yet is null; `attempt` counts from 1."""

    request_id: str
    attempt: int
    backend_id: str | None = None
    started_at: datetime | None = None
    failed: str | None = None


def told_by(event: Event, said: RequestAttempted) -> Iterator[AttemptRow]:
    """What one event tells: of its own attempt, and of the failure before it."""
    yield AttemptRow(
        request_id=said.request_id,
        attempt=said.attempt,
        backend_id=said.backend_id,
        started_at=event.time,
    )
    if said.attempt > 1 and said.after is not None:
        yield AttemptRow(request_id=said.request_id, attempt=said.attempt - 1, failed=said.after)


def merged(rows: Iterable[AttemptRow]) -> dict[tuple[str, int], AttemptRow]:
    """One row for each attempt, with all that `rows` know of it."""
    known: dict[tuple[str, int], AttemptRow] = {}
    for row in rows:
        name = row.request_id, row.attempt
        before = known.get(name)
        known[name] = row if before is None else _both(before, row)
    return known


def _both(one: AttemptRow, other: AttemptRow) -> AttemptRow:
    return AttemptRow(
        request_id=one.request_id,
        attempt=one.attempt,
        backend_id=other.backend_id if one.backend_id is None else one.backend_id,
        started_at=other.started_at if one.started_at is None else one.started_at,
        failed=other.failed if one.failed is None else one.failed,
    )
