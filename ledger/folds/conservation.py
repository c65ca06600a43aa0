"""Conservation: what was accepted is finished, abandoned or open, per source and hour. Pure.

What was accepted is counted from events and the rest from rows of requests, so the two sides come
from different tables: a row that was lost, made up, or put under another gateway shows here.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

import msgspec

from ledger.folds.requests import RequestRow

NAMED_MAX: Final = 10
"""Requests of one source and hour that are named where its sides part."""


class Cell(msgspec.Struct, frozen=True):
    """A source and the start of a UTC hour of acceptance; null where a request tells neither."""

    source: str | None = None
    hour: datetime | None = None


class Balance(msgspec.Struct):
    """How many requests of one cell were accepted, and how many rows say what became of them."""

    accepted: int = 0
    finished: int = 0
    abandoned: int = 0
    open: int = 0

    @property
    def difference(self) -> int:
        """Accepted without a row, or, below zero, rows of which no acceptance is known."""
        return self.accepted - self.finished - self.abandoned - self.open


def cell_of(source: str | None, accepted_at: datetime | None) -> Cell:
    """Where a request of `source` counts that was accepted at `accepted_at`."""
    if accepted_at is None:
        return Cell(source)
    hour = accepted_at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    return Cell(source, hour)


class Conservation:
    """Takes requests one by one, each with both of its sides, in any order."""

    def __init__(self) -> None:
        self.cells: dict[Cell, Balance] = {}
        self._apart: dict[Cell, list[str]] = {}

    def take(self, request_id: str, accepted: Cell | None, row: RequestRow | None) -> None:
        """Count one request: where its event says it was accepted, and the row it has; null for a
        side that it lacks."""
        there = None if row is None else cell_of(row.source, row.accepted_at)
        if accepted is not None:
            self._cell(accepted).accepted += 1
        if row is not None and there is not None:
            balance = self._cell(there)
            setattr(balance, row.state, getattr(balance, row.state) + 1)
        if accepted != there:
            for cell in (accepted, there):
                if cell is not None:
                    self._apart.setdefault(cell, []).append(request_id)

    def parted(self) -> Iterator[str]:
        """Each cell whose sides are not the same requests, in words, with up to `NAMED_MAX` ids."""
        for cell, requests in self._apart.items():
            balance = self.cells[cell]
            ids = ", ".join(requests[:NAMED_MAX])
            more = len(requests) - NAMED_MAX
            yield (
                f"{said(cell)}: {balance.accepted} accepted, and {balance.finished} finished + "
                f"{balance.abandoned} abandoned + {balance.open} open, a difference of "
                f"{balance.difference}: {ids}{f' and {more} more' if more > 0 else ''}"
            )

    def _cell(self, cell: Cell) -> Balance:
        found = self.cells.get(cell)
        if found is None:
            found = self.cells[cell] = Balance()
        return found


def said(cell: Cell) -> str:
    """`cell` in words."""
    source = cell.source or "no source"
    return f"{source} in no hour" if cell.hour is None else f"{source} at {cell.hour:%Y-%m-%dT%H}Z"
