"""The bill as Arrow batches: the lines of `ledger.sql.bill`, so that no number is made twice."""

from collections.abc import Iterator, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from ledger.clock import from_us
from ledger.export.columns import KEY_NAME, Column, batch_of
from ledger.export.sums import BATCH_ROWS
from ledger.sql import tables
from ledger.sql.bill import BillLine, bill
from ledger.sql.session import ReadSession

GROUPS = ("key", "model", "day")
"""The finest lines a bill has: any other grouping is a sum of these."""


def bill_lines(read: ReadSession, month: str) -> list[BillLine]:
    """The bill of `month` (2026-11) in its finest lines, in a fixed order."""
    return bill(read, month, GROUPS)


def prices_before(read: ReadSession, before_us: int) -> list[str]:
    """The ids of all prices that begin before the month's end: those its bill was made with."""
    prices = tables.prices
    statement = (
        prices.select()
        .with_only_columns(prices.c.price_id)
        .where(prices.c.effective_us < before_us)
        .order_by(prices.c.price_id)
    )
    return [row.price_id for row in read.rows(statement)]


def costs_of(lines: list[BillLine]) -> tuple[dict[str, str], int]:
    """The exact sum per currency, and how many lines lack a price."""
    sums: dict[str, Decimal] = {}
    for line in lines:
        if line.cost is not None and line.currency is not None:
            sums[line.currency] = sums.get(line.currency, Decimal(0)) + Decimal(line.cost)
    unpriced = sum(1 for line in lines if line.lacks_price)
    return {currency: f"{total:f}" for currency, total in sorted(sums.items())}, unpriced


def batches_of(lines: Sequence[BillLine], columns: Sequence[Column]) -> Iterator[pa.RecordBatch]:
    """`lines` in the `columns` of a file, or with the key's name in those of a view."""
    for start in range(0, len(lines), BATCH_ROWS):
        part = lines[start : start + BATCH_ROWS]
        names = [column.name for column in columns if column.name not in (KEY_NAME.name, "day")]
        values: dict[str, list[Any]] = {n: [getattr(line, n) for line in part] for n in names}
        values[KEY_NAME.name] = [line.name for line in part]
        values["day"] = [
            None if line.day is None else date.fromisoformat(line.day) for line in part
        ]
        yield batch_of(columns, values)


def billed_months(read: ReadSession) -> list[str]:
    """Every UTC month from the first to the last with a request that has an end."""
    hour = tables.usage_hourly.c.hour_us
    hours = tables.usage_hourly.select().with_only_columns(hour)
    first = read.value(hours.order_by(hour).limit(1))
    last = read.value(hours.order_by(hour.desc()).limit(1))
    if first is None:
        return []
    return _months(from_us(first), from_us(last))


def _months(first: datetime, last: datetime) -> list[str]:
    ends = range(first.year * 12 + first.month - 1, last.year * 12 + last.month)
    return [f"{count // 12:04d}-{count % 12 + 1:02d}" for count in ends]
