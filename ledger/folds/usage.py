"""Billed usage per hour, key, model and basis, as differences between request rows. Pure.

A roll-up is never incremented by an event: it moves by the difference between what a request
contributed before and what it contributes now, so a replay moves it by nothing.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from ledger.events import BUCKETS
from ledger.folds.requests import RequestRow

HOUR_US: Final = 3_600_000_000
"""Microseconds of an hour, the width of the roll-up's cells."""


class Cell(msgspec.Struct, frozen=True, order=True):
    """One cell of the hourly roll-up. `hour` is the start of the UTC hour of acceptance."""

    hour: datetime
    key_id: str
    model: str
    basis: str


class Totals(msgspec.Struct, frozen=True):
    """What a cell holds: requests, tokens per bucket, and how many rows knew each bucket.

    A bucket that no row knew (`known` 0) is null on a bill, not zero.
    """

    requests: int
    tokens: tuple[int, int, int, int, int]
    known: tuple[int, int, int, int, int]

    def plus(self, other: "Totals", sign: int = 1) -> "Totals":
        """The sum of both; `sign=-1` gives the difference."""
        return Totals(
            self.requests + sign * other.requests,
            _add(self.tokens, other.tokens, sign),
            _add(self.known, other.known, sign),
        )

    @property
    def nothing(self) -> bool:
        """True if adding this changes nothing."""
        return self == ZERO


Five = tuple[int, int, int, int, int]
ZERO = Totals(0, (0, 0, 0, 0, 0), (0, 0, 0, 0, 0))


class Rolled(msgspec.Struct, frozen=True):
    """All that a cell holds: `totals`, and what can be charged for beside tokens and requests.

    `failed_attempts` counts the calls of its requests beyond each one's last. `busy_us` is how many
    microseconds the `busy_known` of them spent with a backend of which that is known.
    """

    totals: Totals
    failed_attempts: int = 0
    busy_us: int = 0
    busy_known: int = 0

    def plus(self, other: "Rolled", sign: int = 1) -> "Rolled":
        """The sum of both; `sign=-1` gives the difference."""
        return Rolled(
            self.totals.plus(other.totals, sign),
            self.failed_attempts + sign * other.failed_attempts,
            self.busy_us + sign * other.busy_us,
            self.busy_known + sign * other.busy_known,
        )

    @property
    def busy(self) -> int | None:
        """`busy_us`; null where it is known of no request, which is not zero."""
        return self.busy_us if self.busy_known else None

    @property
    def nothing(self) -> bool:
        """True if adding this changes nothing."""
        return self == EMPTY


EMPTY = Rolled(ZERO)


def _add(one: Five, other: Five, sign: int) -> Five:
    a, b, c, d, e = (x + sign * y for x, y in zip(one, other, strict=True))
    return (a, b, c, d, e)


def contribution(row: RequestRow | None) -> tuple[Cell, Rolled] | None:
    """The cell that `row` counts in and what it adds there; null while it has no end."""
    if row is None or not row.billed:
        return None
    assert row.key_id is not None and row.model is not None and row.accepted_at is not None, (
        f"request {row.request_id} has an end, and every end names key, model and acceptance"
    )
    a, b, c, d, e = row.usage.counts()
    tokens = (a or 0, b or 0, c or 0, d or 0, e or 0)
    known = (
        int(a is not None),
        int(b is not None),
        int(c is not None),
        int(d is not None),
        int(e is not None),
    )
    accepted = row.accepted_at if row.accepted_at.tzinfo is UTC else row.accepted_at.astimezone(UTC)
    hour = accepted.replace(minute=0, second=0, microsecond=0)
    busy = row.busy_us
    rolled = Rolled(Totals(1, tokens, known), row.failed_attempts, busy or 0, int(busy is not None))
    return Cell(hour, row.key_id, row.model, row.basis), rolled


def changes(pairs: Iterable[tuple[RequestRow | None, RequestRow]]) -> dict[Cell, Rolled]:
    """How the roll-up moves when each request goes from its old row to its new one."""
    gone: dict[Cell, list[Rolled]] = {}
    come: dict[Cell, list[Rolled]] = {}
    for before, after in pairs:
        old, new = contribution(before), contribution(after)
        if old == new:
            continue
        if old is not None:
            gone.setdefault(old[0], []).append(old[1])
        if new is not None:
            come.setdefault(new[0], []).append(new[1])
    moved = {cell: _sum(parts) for cell, parts in come.items()}
    for cell, parts in gone.items():
        moved[cell] = moved.get(cell, EMPTY).plus(_sum(parts), sign=-1)
    return {cell: rolled for cell, rolled in moved.items() if not rolled.nothing}


def _sum(parts: Sequence[Rolled]) -> Rolled:
    """The sum of at least one; thousands of them are added up column by column."""
    totals = [part.totals for part in parts]
    a, b, c, d, e = map(sum, zip(*(one.tokens for one in totals), strict=True))
    ka, kb, kc, kd, ke = map(sum, zip(*(one.known for one in totals), strict=True))
    return Rolled(
        Totals(sum(one.requests for one in totals), (a, b, c, d, e), (ka, kb, kc, kd, ke)),
        sum(part.failed_attempts for part in parts),
        sum(part.busy_us for part in parts),
        sum(part.busy_known for part in parts),
    )


def by_bucket(totals: Totals) -> dict[str, int | None]:
    """The tokens of `totals` by bucket name; null where no row knew the bucket."""
    return {
        name: count if known else None
        for name, count, known in zip(BUCKETS, totals.tokens, totals.known, strict=True)
    }
