"""Correcting a request by hand: what it counts as now, and the event that says otherwise."""

from collections.abc import Mapping
from datetime import datetime

import msgspec

from ledger.clock import to_us
from ledger.errors import CorrectionRefused, EventError
from ledger.events import BUCKETS, Draft, Usage, UsageCorrected
from ledger.folds.book import Book
from ledger.folds.late import steps
from ledger.folds.money import Correction
from ledger.folds.requests import RequestRow
from ledger.sql.adjust import open_month
from ledger.sql.late import told_of
from ledger.sql.projections import MAIN, request_rows
from ledger.sql.session import ReadSession


class Correctable(msgspec.Struct, frozen=True):
    """A request that has an end: its row, and the event that ended it, `source:sequence`."""

    row: RequestRow
    original: str


def correctable(read: ReadSession, request_id: str) -> Correctable:
    """The request of that id. Raises `CorrectionRefused` if there is none, or it has no end."""
    row = request_rows(read, MAIN, [request_id]).get(request_id)
    if row is None:
        raise CorrectionRefused(
            f"the ledger knows no request {request_id}; the header x-request-id of its answer is "
            "its id, and `tollbook explain --client` finds it by the id that its client gave"
        )
    if not row.billed:
        raise CorrectionRefused(
            f"request {request_id} has no end yet, so there is nothing to correct; a gateway that "
            "never comes back is closed by `tollbook sources close`"
        )
    told = told_of(read, [request_id])[request_id]
    end = steps((), 0, told)[-1].end
    if end is None:
        raise CorrectionRefused(
            f"no event ended request {request_id}; `tollbook rebuild` sets its row right"
        )
    return Correctable(row, f"{end[0]}:{end[2]}")


def corrections_of(book: Book, request_id: str) -> list[Correction]:
    """The corrections of a request so far, oldest first."""
    return [one for one in book.corrections if one.request_id == request_id]


def standing(book: Book, row: RequestRow) -> Usage | None:
    """What a request counts as now, with its corrections; null for nothing at all."""
    made = corrections_of(book, row.request_id)
    return made[-1].usage if made else row.usage


def changed(book: Book, row: RequestRow, counts: Mapping[str, int]) -> Usage:
    """What it counts as after some buckets were set; the others stay.

    Raises `CorrectionRefused` for a count that is none, and where nothing changes.
    """
    before = standing(book, row)
    old = before or Usage()
    values = {name: getattr(old, name) for name in BUCKETS} | dict(counts)
    try:
        usage = Usage(**values)
    except EventError as wrong:
        raise CorrectionRefused(str(wrong)) from wrong
    if usage == before:
        raise CorrectionRefused(
            f"request {row.request_id} counts as that already; nothing was written"
        )
    return usage


def draft(
    book: Book,
    found: Correctable,
    counts: Mapping[str, int] | None,
    reason: str,
    now: datetime,
    correction_id: str,
) -> Draft:
    """The event that corrects a request, told at `now` into a registry that says `book`.

    `counts` sets buckets; null: it counts as nothing at all. Raises `CorrectionRefused`.
    """
    row = found.row
    number = len(corrections_of(book, row.request_id))
    if counts is None and standing(book, row) is None:
        raise CorrectionRefused(
            f"request {row.request_id} counts as nothing already; nothing was written"
        )
    payload = UsageCorrected(
        correction_id=correction_id,
        request_id=row.request_id,
        original=found.original,
        base=number,
        version=number + 1,
        reason=reason,
        usage=None if counts is None else changed(book, row, counts),
    )
    return Draft(event_id(correction_id), row.request_id, now, payload)


def event_id(correction_id: str) -> str:
    """The id of the event that made a correction."""
    return f"correction/{correction_id}"


def month_of_correction(book: Book, row: RequestRow) -> str:
    """The month in which a correction lands that is made now."""
    assert row.accepted_at is not None, "a request with an end was accepted"
    return open_month(book, to_us(row.accepted_at))
