"""The bill as Arrow batches: the lines of `ledger.sql.bill`, so that no number is made twice."""

from collections.abc import Iterator, Sequence
from datetime import date
from typing import Any, Final

import pyarrow as pa

from ledger.clock import to_us
from ledger.export.columns import KEY_NAME, Column, batch_of
from ledger.export.sums import BATCH_ROWS
from ledger.folds.book import Book
from ledger.sql import tables
from ledger.sql.adjust import open_month
from ledger.sql.bill import BillLine, bill
from ledger.sql.replay import load_book
from ledger.sql.session import ReadSession
from ledger.sql.unpriced import unpriced_requests
from ledger.zones import month_of, next_month

GROUPS: Final = ("project", "key", "model", "day")
"""The finest lines a bill has: any other grouping is a sum of these."""

CHARGED: Final = {
    "requests_charged": "request",
    "failed_attempts_charged": "failed_attempt",
    "gpu_us_charged": "gpu_second",
}
"""Column name to the charge beside tokens that it counts."""


def bill_lines(read: ReadSession, month: str, book: Book | None = None) -> list[BillLine]:
    """The bill of `month` (2026-11) in its finest lines, in a fixed order."""
    return bill(read, month, GROUPS, book=book)


def unpriced_in(read: ReadSession, month: str, book: Book, lines: Sequence[BillLine]) -> int:
    """How many requests of `month` have tokens without a price; `lines` are those of its bill."""
    if not any(line.lacks_price for line in lines):
        return 0
    return unpriced_requests(read, book, month).total()


def batches_of(lines: Sequence[BillLine], columns: Sequence[Column]) -> Iterator[pa.RecordBatch]:
    """`lines` in the `columns` of a file, or with the key's name in those of a view."""
    elsewhere = (KEY_NAME.name, "day", *CHARGED)
    for start in range(0, len(lines), BATCH_ROWS):
        part = lines[start : start + BATCH_ROWS]
        names = [column.name for column in columns if column.name not in elsewhere]
        values: dict[str, list[Any]] = {n: [getattr(line, n) for line in part] for n in names}
        for name, charge in CHARGED.items():
            values[name] = [line.charges.get(charge) for line in part]
        values[KEY_NAME.name] = [line.name for line in part]
        values["day"] = [
            None if line.day is None else date.fromisoformat(line.day) for line in part
        ]
        yield batch_of(columns, values)


def billed_months(read: ReadSession) -> list[str]:
    """Every month of the books from the first to the last that something was billed in."""
    hour = tables.usage_hourly.c.hour_us
    hours = tables.usage_hourly.select().with_only_columns(hour)
    first = read.value(hours.order_by(hour).limit(1))
    last = read.value(hours.order_by(hour.desc()).limit(1))
    if first is None:
        return []
    book = load_book(read)
    zone = book.rules.zone
    # A correction lands in the month that is open when it is made, also without use in it; what
    # comes late lands at the latest in the first month that is open.
    landings = [open_month(book, to_us(one.made_at)) for one in book.corrections]
    after_closed = [open_month(book, 0)] if book.periods else []
    month = month_of(first, zone)
    end = max([month_of(last, zone), *landings, *after_closed])
    months = [month]
    while month < end:
        month = next_month(month)
        months.append(month)
    return months
