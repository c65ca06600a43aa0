"""Attempts beneath their requests, priced: one row for each backend that was called."""

from collections.abc import Iterable, Iterator

import msgspec
from sqlalchemy import Select, bindparam, func, select

from ledger.clock import to_us
from ledger.folds.attempts import AttemptRow
from ledger.folds.cost import Cost, cost_of_rated
from ledger.folds.rating import Rated
from ledger.folds.requests import RequestRow
from ledger.sql import tables
from ledger.sql.projections import LOOKUP_MAX, MAIN, request_rows, runs
from ledger.sql.rated import Sheets, rated_request
from ledger.sql.replay import load_book
from ledger.sql.rows import attempt_of
from ledger.sql.session import ReadSession

RUN = 5000
"""Attempts held in memory at a time."""


class PricedAttempt(msgspec.Struct, frozen=True):
    """One attempt, its request (null if the ledger has no row of it), and what it costs.

    Tokens are counted for a request once, by its last attempt. Every attempt before it costs
    nothing, unless the price book has a price for `failed_attempt`; together they cost what the
    request costs.
    """

    attempt: AttemptRow
    request: RequestRow | None
    last: bool
    cost: Cost


def attempts_of(read: ReadSession, request_id: str) -> list[AttemptRow]:
    """The attempts of one request, first to last."""
    table = tables.attempts
    wanted = _ordered().where(table.c.request_id == request_id)
    return [attempt_of(row) for row in read.rows(wanted)]


def known_attempts(
    read: ReadSession, request_ids: Iterable[str]
) -> dict[tuple[str, int], AttemptRow]:
    """The rows of the attempts of `request_ids`, by request and number."""
    wanted = _ordered().where(tables.attempts.c.request_id.in_(bindparam("ids", expanding=True)))
    return {
        (row[0], row[1]): attempt_of(row)
        for ids in runs(request_ids, LOOKUP_MAX)
        for row in read.rows(wanted, {"ids": ids})
    }


def count_attempts(read: ReadSession) -> int:
    """How many attempts the ledger has rows of."""
    return int(read.value(select(func.count()).select_from(tables.attempts)))


def priced_attempts(read: ReadSession) -> Iterator[list[PricedAttempt]]:
    """Every attempt, by request and number, in runs."""
    sheets = Sheets(load_book(read))
    for part in read.stream(_ordered(), size=RUN):
        rows = [attempt_of(row) for row in part]
        requests = request_rows(read, MAIN, dict.fromkeys(row.request_id for row in rows))
        yield [priced(row, requests.get(row.request_id), sheets) for row in rows]


def priced(row: AttemptRow, request: RequestRow | None, sheets: Sheets) -> PricedAttempt:
    """`row` with what it costs by the price book."""
    last = request is None or row.attempt >= request.attempts
    rated = None
    if request is not None and request.accepted_at is not None:
        rated = rated_request(request, sheets.at(to_us(request.accepted_at)))
    cost = _last(rated) if last else _failed(rated)
    return PricedAttempt(row, request, last, cost)


def _failed(rated: Rated | None) -> Cost:
    """What one failed attempt costs. One of which no price speaks costs nothing, in no currency."""
    charged = rated is not None and rated.used.get("failed_attempt")
    if rated is None or rated.rate is None or not charged:
        return Cost(0, None)
    pico = rated.rate.pico.get("failed_attempt")
    return Cost(0, None) if pico is None else Cost(pico, rated.rate.currency)


def _last(rated: Rated | None) -> Cost:
    """What is left of the request's cost for the attempt that answered."""
    if rated is None:
        return Cost(None, None)
    whole, before = cost_of_rated(rated), _failed(rated)
    if whole.pico is None or before.pico is None:
        return whole
    pico = whole.pico - before.pico * rated.failed_attempts
    return Cost(pico, whole.currency, whole.unpriced)


def _ordered() -> Select[*tuple[object, ...]]:
    table = tables.attempts
    return select(*table.columns).order_by(table.c.request_id, table.c.attempt)
