"""Accepted = finished + abandoned + open, per source and hour, as the tables have it now."""

from typing import Any

from sqlalchemy import BigInteger, ColumnElement, func, literal_column, not_, select

from ledger.clock import from_us
from ledger.events import RequestAccepted
from ledger.folds.conservation import Balance, Cell
from ledger.folds.usage import HOUR_US
from ledger.sql import tables
from ledger.sql.hashes import only_running
from ledger.sql.session import ReadSession


def balances(read: ReadSession) -> list[tuple[Cell, Balance]]:
    """Every cell, by hour and source. What was accepted is counted from the events."""
    cells: dict[tuple[str | None, int | None], Balance] = {}
    events, requests = tables.events, tables.requests
    when = _hour(events.c.time_us)
    accepted = (
        select(events.c.source, when, func.count())
        .where(events.c.type == RequestAccepted.TYPE)
        .group_by(events.c.source, when)
    )
    for part in read.stream(accepted):
        for source, hour_us, count in part:
            cells.setdefault((source, hour_us), Balance()).accepted += count
    when = _hour(requests.c.accepted_us)
    rows = (
        select(requests.c.source, when, requests.c.state, func.count())
        .where(not_(only_running(requests)))
        .group_by(requests.c.source, when, requests.c.state)
    )
    for part in read.stream(rows):
        for source, hour_us, state, count in part:
            balance = cells.setdefault((source, hour_us), Balance())
            setattr(balance, state, getattr(balance, state) + count)
    ordered = sorted(cells.items(), key=lambda item: (item[0][1] or 0, item[0][0] or ""))
    return [
        (Cell(source, None if hour_us is None else from_us(hour_us)), balance)
        for (source, hour_us), balance in ordered
    ]


def _hour(when: ColumnElement[int]) -> ColumnElement[Any]:
    # A literal: with a parameter Postgres would not see that it groups by what is selected.
    return when - when % literal_column(str(HOUR_US), BigInteger)
