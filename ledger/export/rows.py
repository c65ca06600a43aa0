"""Rows of the ledger as Arrow batches, in a fixed order and in bounded memory.

All reads of one export or query go through one `ReadSession`, so through one snapshot.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from ledger.export.columns import ENDED_EVENT, REQUEST_COLUMNS, Column, Values, batch_of
from ledger.export.facts import Month
from ledger.export.sums import BATCH_ROWS, ended_requests
from ledger.sql.session import ReadSession

FILE_COLUMNS = (*REQUEST_COLUMNS, ENDED_EVENT)
"""What a month's requests say in a file. No name is among them: names are erased in one table.
A column may be added; files of older versions lack it and are read beside newer ones."""

Extra = Callable[[Values], Values]
"""Gives more columns for columns just read."""


def table_batches(
    read: ReadSession, table: Any, columns: Sequence[Column], extra: Extra | None = None
) -> Iterator[pa.RecordBatch]:
    """Every row of `table` in the order of its primary key."""
    sources = [column.source for column in columns if column.source is not None]
    statement = (
        table.select()
        .with_only_columns(*(table.c[name] for name in sources))
        .order_by(*table.primary_key.columns)
    )
    for part in read.stream(statement, size=BATCH_ROWS):
        values = _renamed(columns, dict(zip(sources, zip(*part, strict=True), strict=True)))
        more = {} if extra is None else extra(values)
        yield batch_of(columns, {**values, **more})


def request_batches(
    read: ReadSession, month: Month, last: dict[str, int]
) -> Iterator[pa.RecordBatch]:
    """The requests of the month that have an end, by acceptance; of a closed month as they were
    when it was closed. Their columns: `FILE_COLUMNS`. `last` takes the last event of each source
    that ended one of them: its sequence by source."""
    sources = [column.source for column in REQUEST_COLUMNS if column.source is not None]
    for found, ends in ended_requests(read, month.span, sources, month.closed):
        for end in ends:
            if end is not None and end[1] > last.get(end[0], 0):
                last[end[0]] = end[1]
        names = [None if end is None else f"{end[0]}:{end[1]}" for end in ends]
        yield batch_of(FILE_COLUMNS, {**_renamed(REQUEST_COLUMNS, found), ENDED_EVENT.name: names})


def _renamed(columns: Sequence[Column], found: Mapping[str, Sequence[Any]]) -> Values:
    """What was `found` under the names of the SQL table, under those of `columns`."""
    return {c.name: found[c.source] for c in columns if c.source is not None}
