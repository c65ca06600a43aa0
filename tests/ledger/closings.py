"""Closing months in tests of the ledger, by what `tollbook close` does but for the command line."""

from collections.abc import Collection
from datetime import datetime, timedelta

from ledger.clock import from_us
from ledger.events import Event, PeriodClosed
from ledger.sql.close import draft, foresee
from ledger.sql.replay import load_book
from ledger.sql.session import Ledger
from ledger.zones import month_span
from tests.ledger.ledgers import Feeder, scribed


def closing(
    ledger: Ledger,
    month: str = "2026-11",
    now: datetime | None = None,
    without: Collection[str] = (),
    name: str = "1",
) -> tuple[PeriodClosed, Event]:
    """What closing `month` freezes, an hour after its end, and the event that says so."""
    with ledger.read() as read:
        book = load_book(read)
        _, end_us = month_span(month, book.rules.zone)
        now = from_us(end_us) + timedelta(hours=1) if now is None else now
        found = foresee(read, book, month, now, dict.fromkeys(without, "its disk is lost"))
    said = draft(found, book, now, name)
    return found.payload, scribed([said], f"/cli/close/{month}/{name}")[0]


def close(
    ledger: Ledger,
    month: str = "2026-11",
    now: datetime | None = None,
    without: Collection[str] = (),
) -> PeriodClosed:
    """Close `month` for good."""
    payload, event = closing(ledger, month, now, without)
    Feeder(ledger, f"closing/{month}").feed([event])
    return payload
