"""What a closed month does not hold: ends of requests outside its cut, and corrections. Pure.

A month holds what the events within its cut say. What they did not say lands in the first later
month whose cut holds the rest, or in the one that is open. All of it follows from the events and
the list of closed months alone, so neither the order in which they come nor who asks first matters.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from datetime import datetime

import msgspec

from ledger.events import Event, Payload, RequestAbandoned, RequestFinished
from ledger.folds.money import Correction, Period
from ledger.folds.requests import RequestRow, fold_request

Name = tuple[str, str, int]
"""Source, topic and sequence of an event."""


class Told(msgspec.Struct, frozen=True):
    """An event of a request. `names` are all under which it came, at least one, smallest first."""

    event: Event
    payload: Payload
    names: tuple[Name, ...]


class Step(msgspec.Struct, frozen=True):
    """How a request stands after a closed month, or now: its row, and the event that ended it."""

    row: RequestRow | None
    end: Name | None


def period_at(periods: Sequence[Period], accepted_at: datetime) -> int:
    """The index of the closed month that a request of that instant belongs to; `len(periods)` if it
    is not closed. What is older than the first belongs to the first: it was closed with it."""
    return bisect_right(periods, accepted_at, key=lambda period: period.end)


def holds(periods: Sequence[Period], names: Iterable[Name]) -> bool:
    """True if one of `names` is within the cut of any of `periods`."""
    return any(period.holds(*name) for name in names for period in periods)


def outside(periods: Sequence[Period], event: Event, payload: Payload) -> bool | None:
    """True for the end of a request of a closed month that is outside the cut under this name,
    false if it is within; null for every other event."""
    if not isinstance(payload, RequestFinished | RequestAbandoned):
        return None
    if not periods or payload.accepted_at >= periods[-1].end:
        return None
    own = period_at(periods, payload.accepted_at)
    return not holds(periods[: own + 1], [(event.source, event.topic, event.sequence)])


def steps(periods: Sequence[Period], own: int, told: Sequence[Told]) -> list[Step]:
    """How a request of `periods[own]` stood after each month from its own on, and last how it
    stands now."""
    by_place: dict[int, list[Told]] = {}
    for one in told:
        by_place.setdefault(_place(periods, own, one.names), []).append(one)
    found: list[Step] = []
    row: RequestRow | None = None
    end: Name | None = None
    for place in range(own, len(periods) + 1):
        for one in sorted(by_place.get(place, ()), key=lambda one: one.names):
            after = fold_request(row, one.event, one.payload)
            if isinstance(one.payload, RequestFinished | RequestAbandoned) and after != row:
                end = one.names[0]
            row = after
        found.append(Step(row, end))
    return found


def _place(periods: Sequence[Period], own: int, names: Sequence[Name]) -> int:
    """The index of the month that an event lands in; `len(periods)` for the one that is open."""
    if holds(periods[: own + 1], names):
        return own
    later = range(own + 1, len(periods))
    return next((at for at in later if holds([periods[at]], names)), len(periods))


def billing(row: RequestRow | None) -> tuple[object, ...] | None:
    """All of a row that a bill can tell; null while it has no end."""
    if row is None or not row.billed:
        return None
    return row.key_id, row.model, row.accepted_at, row.basis, row.usage, row.attempts, row.busy_us


def late_end(periods: Sequence[Period], told: Sequence[Told]) -> tuple[int, Name] | None:
    """If a request is billed otherwise than its closed month holds it: the index of that month, and
    the event that ended it so. Null: it is not late, or its month is open."""
    row: RequestRow | None = None
    for one in told:
        row = fold_request(row, one.event, one.payload)
    if row is None or row.accepted_at is None:
        return None
    own = period_at(periods, row.accepted_at)
    if own == len(periods):
        return None
    stood = steps(periods, own, told)
    if billing(stood[0].row) == billing(stood[-1].row) or stood[-1].end is None:
        return None
    return own, stood[-1].end


def lands_at(periods: Sequence[Period], own: int, correction: Correction) -> int:
    """The index of the month that a correction lands in, of a request of the month `own`;
    `len(periods)` for one that is open."""
    return max(own, min(correction.periods, len(periods)))


def corrected(row: RequestRow, correction: Correction) -> RequestRow | None:
    """What a request is billed as after a correction; null if it counts as nothing at all."""
    if correction.usage is None:
        return None
    # Whoever corrects knows what nobody could count.
    basis = "reported" if row.basis == "none" else row.basis
    return msgspec.structs.replace(
        row, state="abandoned" if not row.billed else row.state, usage=correction.usage, basis=basis
    )
