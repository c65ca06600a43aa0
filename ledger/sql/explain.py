"""All that the ledger knows of one request: its events, attempts, price, and where it counts."""

from collections.abc import Sequence

import msgspec
from sqlalchemy import select

from ledger.clock import to_us
from ledger.events import Event, PriceListed, RequestRejected
from ledger.folds.attempts import AttemptRow
from ledger.folds.book import Book
from ledger.folds.cost import Cost, cost_of_rated
from ledger.folds.prices import Price
from ledger.folds.rating import Rate, Rated
from ledger.folds.requests import RequestRow
from ledger.folds.usage import Cell, Rolled, contribution
from ledger.sql import checks, tables
from ledger.sql.adjust import Landed, landings_of
from ledger.sql.attempts import attempts_of, priced
from ledger.sql.bill import BillLine, bill
from ledger.sql.intake import REGISTRY
from ledger.sql.projections import MAIN, request_rows
from ledger.sql.rated import Sheets, local_time, rated_request
from ledger.sql.replay import load_book, registry_facts
from ledger.sql.rows import EVENT_COLUMNS, event_of, hourly_of, request_of
from ledger.sql.session import ReadSession
from ledger.zones import local_day, month_of

PREFIX_MIN = 12
"""Letters of an id that are needed before ids that begin with them are offered: the first ones are
alike in all ids of a day."""

NEAR_MAX = 3


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    """One request.

    `events` stand in the order in which they happened; `aside` are those of it that were set aside,
    with the reason. `attempt_costs` has one for each of `attempts`. `rate` is what it is priced by,
    and `price_event` the event that published that price. `project_id` is that of the key when it
    was accepted, and `rated` its quantities (null while it is open). `landings` are what was told
    of it behind the cut of a month and what people said of it later, each with the month in which
    it counts. `cell` is the cell of the hourly roll-up in which it counts with what that holds, and
    `line` the finest line of its own month's bill: null while it is open, and where the month's cut
    has no end of it. `retries` are the other requests to which the client gave the same id, by the
    time of acceptance.
    """

    request: RequestRow
    events: list[Event]
    aside: list[tuple[str, str]]
    attempts: list[AttemptRow]
    attempt_costs: list[Cost]
    project_id: str | None
    rate: Rate | None
    price_event: Event | None
    rated: Rated | None
    cost: Cost
    landings: list[tuple[str, Landed]]
    cell: tuple[Cell, Rolled] | None
    line: BillLine | None
    retries: list[RequestRow]


def explain(read: ReadSession, request_id: str) -> Explained | None:
    """The request of that id; null if the ledger has none."""
    row = request_rows(read, MAIN, [request_id]).get(request_id)
    if row is None:
        return None
    book = load_book(read)
    sheets = Sheets(book)
    at_us = None if row.accepted_at is None else to_us(row.accepted_at)
    rate = project_id = None
    if row.model is not None and row.key_id is not None and at_us is not None:
        rate = sheets.at(at_us).rate(row.key_id, row.model, at_us, local_time)
        project_id = sheets.at(at_us).project(row.key_id, at_us)
    rated = None if at_us is None else rated_request(row, sheets.at(at_us))
    attempts = attempts_of(read, request_id)
    landings = landings_of(read, book, request_id)
    held = next((one.after for _, one in landings if one.kind == "usage"), row)
    on_line = None if held is None or at_us is None else rated_request(held, sheets.at(at_us))
    return Explained(
        request=row,
        events=events_of(read, request_id),
        aside=_aside(read, request_id),
        attempts=attempts,
        attempt_costs=[priced(one, row, sheets).cost for one in attempts],
        project_id=project_id,
        rate=rate,
        price_event=None if rate is None else _price_event(read, rate.price),
        rated=rated,
        cost=Cost(None, None) if rated is None else cost_of_rated(rated),
        landings=landings,
        cell=_cell_of(read, row),
        line=None if on_line is None else _line_of(read, book, on_line),
        retries=_retries(read, row),
    )


def events_of(read: ReadSession, request_id: str) -> list[Event]:
    """The stored events of one request, in the order in which they happened."""
    column = tables.events.c.id
    # Its ids begin with its own id and a slash; "0" is the character behind the slash.
    within = (column > f"{request_id}/", column < f"{request_id}0")
    found = [event_of(row) for row in read.rows(select(*EVENT_COLUMNS).where(*within))]
    return sorted(found, key=lambda event: (event.time, event.source, event.sequence))


def refusal_of(read: ReadSession, request_id: str) -> Event | None:
    """The event that says that a request of that id was refused; null if there is none."""
    found = checks.event_with_id(read, f"{request_id}/rejected")
    return found if found is not None and found.type == RequestRejected.TYPE else None


def requests_of_client(read: ReadSession, client_request: str) -> list[RequestRow]:
    """The requests to which a client gave the id that hashes to `client_request`, oldest first."""
    table = tables.requests
    rows = read.rows(
        select(*table.columns)
        .where(table.c.client_request == client_request)
        .order_by(table.c.accepted_us, table.c.request_id)
    )
    return [request_of(row) for row in rows]


def near(read: ReadSession, text: str) -> list[str]:
    """Ids of requests that begin with `text`, at most `NEAR_MAX`; none for a short text."""
    column = tables.requests.c.request_id
    if len(text) < PREFIX_MIN:
        return []
    begins = (column >= text, column < text[:-1] + chr(ord(text[-1]) + 1))
    rows = read.rows(select(column).where(*begins).order_by(column).limit(NEAR_MAX))
    return [row.request_id for row in rows]


def _aside(read: ReadSession, request_id: str) -> list[tuple[str, str]]:
    table = tables.conflicts
    columns = (table.c.source, table.c.sequence, table.c.id, table.c.reason)
    # Not by a range: this column is ordered by the database's own language.
    likely = table.c.id.startswith(f"{request_id}/", autoescape=True)
    return [
        (f"{row.source}:{row.sequence} ({row.id})", row.reason)
        for row in read.rows(select(*columns).where(likely).order_by(*table.primary_key.columns))
        if row.id.startswith(f"{request_id}/")
    ]


def _price_event(read: ReadSession, price: Price) -> Event | None:
    if not price.listed:
        found = read.rows(
            select(*EVENT_COLUMNS).where(
                tables.events.c.topic == REGISTRY, tables.events.c.id == price.price_id
            )
        )
        return event_of(found[0]) if found else None
    for facts in registry_facts(read):
        for fact in facts:
            said = fact.payload
            if isinstance(said, PriceListed) and any(
                entry.price_id == price.price_id for entry in said.entries
            ):
                return fact.event
    return None


def _cell_of(read: ReadSession, row: RequestRow) -> tuple[Cell, Rolled] | None:
    counted = contribution(row)
    if counted is None:
        return None
    cell, table = counted[0], tables.usage_hourly
    rows = read.rows(
        select(table).where(
            table.c.hour_us == to_us(cell.hour),
            table.c.key_id == cell.key_id,
            table.c.model == cell.model,
            table.c.basis == cell.basis,
        )
    )
    return hourly_of(rows[0]) if rows else None


def _line_of(read: ReadSession, book: Book, rated: Rated) -> BillLine | None:
    zone = book.rules.zone
    day = local_day(rated.start_us, zone)
    lines = [
        line
        for line in bill(read, month_of(rated.start_us, zone), ("key", "model", "day"), book=book)
        if (line.key_id, line.model, line.basis) == (rated.key_id, rated.model, rated.basis)
        and (line.day, line.kind) == (day, "usage")
    ]
    # A line holds all that was used at one price; a bucket without a price leaves it without cost.
    return _likeliest(lines, rated)


def _likeliest(lines: Sequence[BillLine], rated: Rated) -> BillLine | None:
    rate, cost = rated.rate, cost_of_rated(rated)
    name = (None, None, None) if rate is None else rate.name
    same = [line for line in lines if (line.price_id, line.discount_id, line.band) == name]
    for line in same:
        if (line.cost is None) == (cost.pico is None):
            return line
    return None


def _retries(read: ReadSession, row: RequestRow) -> list[RequestRow]:
    if row.client_request is None:
        return []
    found = requests_of_client(read, row.client_request)
    return [
        other
        for other in found
        if other.request_id != row.request_id and other.key_id == row.key_id
    ]
