"""Attempts beneath their requests, priced: one row for each backend that was called."""

from collections.abc import Iterable, Iterator

import msgspec
from sqlalchemy import Select, bindparam, func, select

from ledger.events import BUCKETS
from ledger.folds.attempts import AttemptRow
from ledger.folds.book import Book, price_at
from ledger.folds.cost import Cost, cost_of
from ledger.folds.requests import RequestRow
from ledger.sql import tables
from ledger.sql.bill import load_prices
from ledger.sql.projections import LOOKUP_MAX, MAIN, request_rows, runs
from ledger.sql.rows import attempt_of
from ledger.sql.session import ReadSession

RUN = 5000
"""Attempts held in memory at a time."""


class PricedAttempt(msgspec.Struct, frozen=True):
    """One attempt, its request (null if the ledger has no row of it), and what it costs.

    Tokens are counted for a request once, by its last attempt; so that one costs what the request
    costs, and every attempt before it costs nothing.
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
    book = Book(prices=load_prices(read))
    for part in read.stream(_ordered(), size=RUN):
        rows = [attempt_of(row) for row in part]
        requests = request_rows(read, MAIN, dict.fromkeys(row.request_id for row in rows))
        yield [priced(row, requests.get(row.request_id), book) for row in rows]


def priced(row: AttemptRow, request: RequestRow | None, book: Book) -> PricedAttempt:
    """`row` with what it costs at the prices of `book`."""
    last = request is None or row.attempt >= request.attempts
    if not last:
        return PricedAttempt(row, request, last, Cost(0, None))
    if request is None or request.accepted_at is None or request.model is None:
        return PricedAttempt(row, request, last, Cost(None, None))
    price = price_at(book, request.model, request.accepted_at)
    tokens = dict(zip(BUCKETS, request.usage.counts(), strict=True))
    cost = cost_of(tokens, price) if request.billed else Cost(None, None)
    return PricedAttempt(row, request, last, cost)


def _ordered() -> Select[*tuple[object, ...]]:
    table = tables.attempts
    return select(*table.columns).order_by(table.c.request_id, table.c.attempt)
