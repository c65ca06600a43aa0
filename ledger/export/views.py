"""The views that `tollbook query` offers: their names, columns and meaning, and how each is filled.

A view is filled only if a question names it, from one snapshot of the ledger. Names of keys stand
beside their ids here, and nowhere in an exported file.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pyarrow as pa

from ledger.export import columns as c
from ledger.export.beneath import attempts_batch, conservation_batch
from ledger.export.bill import batches_of, bill_lines, billed_months
from ledger.export.manifest import BILL, REQUESTS, exports
from ledger.export.rows import FILE_COLUMNS, table_batches
from ledger.sql import tables
from ledger.sql.attempts import priced_attempts
from ledger.sql.conservation import balances
from ledger.sql.names import key_names
from ledger.sql.session import ReadSession

Connection = duckdb.DuckDBPyConnection
Fill = Callable[[Connection, ReadSession, Path], None]


class View(msgspec.Struct, frozen=True):
    """One view. `fill` puts its rows into the empty table of that name."""

    name: str
    meaning: str
    columns: tuple[c.Column, ...]
    fill: Fill


def create_empty(connection: Connection, view: View) -> None:
    """The table of `view` without rows: a question is checked before anything is read."""
    empty = c.schema_of(view.columns).empty_table()
    connection.register("feed", empty)
    connection.execute(f"CREATE TABLE {view.name} AS SELECT * FROM feed")
    connection.unregister("feed")


def _pour(connection: Connection, name: str, batches: Iterator[pa.RecordBatch]) -> None:
    for batch in batches:
        connection.register("feed", batch)
        connection.execute(f"INSERT INTO {name} SELECT * FROM feed")
        connection.unregister("feed")


def _table(
    name: str, meaning: str, columns: Sequence[c.Column], table: Any, *, named: bool = False
) -> View:
    """A view on one table of the ledger; `named` puts the key's name beside its id."""

    def fill(connection: Connection, read: ReadSession, _: Path) -> None:
        names = key_names(read) if named else {}

        def extra(values: c.Values) -> c.Values:
            return {c.KEY_NAME.name: [names.get(key_id) for key_id in values["key_id"]]}

        shown = c.with_key(columns) if named else columns
        _pour(connection, name, table_batches(read, table, shown, extra if named else None))

    return View(name, meaning, c.with_key(columns) if named else tuple(columns), fill)


def _fill_bill(connection: Connection, read: ReadSession, _: Path) -> None:
    for month in billed_months(read):
        lines = bill_lines(read, month)
        _pour(connection, "bill", batches_of(lines, c.with_key(c.BILL_COLUMNS)))


def _fill_attempts(connection: Connection, read: ReadSession, _: Path) -> None:
    names = key_names(read)
    batches = (attempts_batch(part, names) for part in priced_attempts(read))
    _pour(connection, "attempts", batches)


def _fill_conservation(connection: Connection, read: ReadSession, _: Path) -> None:
    _pour(connection, "conservation", iter([conservation_batch(balances(read))]))


def _fill_exports(connection: Connection, _: ReadSession, out_dir: Path) -> None:
    files = [(manifest.month, file) for _, manifest in exports(out_dir) for file in manifest.files]
    values: c.Values = {
        "month": [month for month, _ in files],
        "file": [file.name for _, file in files],
        "rows": [file.rows for _, file in files],
        "bytes": [file.bytes for _, file in files],
        "sha256": [file.sha256 for _, file in files],
    }
    _pour(connection, "exports", iter([c.batch_of(c.EXPORT_COLUMNS, values)]))


def _files(name: str, meaning: str, columns: Sequence[c.Column], file: str) -> View:
    """A view on one file of every exported month, read from the file itself."""

    def fill(connection: Connection, _: ReadSession, out_dir: Path) -> None:
        parts = [
            f"SELECT {_quoted(manifest.month)} AS month, * "
            f"FROM read_parquet({_quoted(str(directory / file))})"
            for directory, manifest in exports(out_dir)
        ]
        if parts:
            # First no rows of every column: a file of an older version may lack some of them.
            empty = ", ".join(f"NULL::{c.duckdb_type(one)} AS {one.name}" for one in every)
            every_part = " UNION ALL BY NAME ".join([f"SELECT {empty} WHERE false", *parts])
            connection.execute(f"DROP TABLE {name}")
            connection.execute(f"CREATE VIEW {name} AS {every_part}")

    every = (c.EXPORT_COLUMNS[0], *columns)
    return View(name, meaning, every, fill)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


VIEWS = (
    _table(
        "requests",
        "one row per accepted request, open ones too",
        c.REQUEST_COLUMNS,
        tables.requests,
        named=True,
    ),
    View(
        "attempts",
        "one row per backend that was called for a request",
        c.with_key(c.ATTEMPT_COLUMNS),
        _fill_attempts,
    ),
    View(
        "bill",
        "what every month's bill says, by day, key, model and basis",
        c.with_key(c.BILL_COLUMNS),
        _fill_bill,
    ),
    _table(
        "usage_hourly",
        "sums by hour, key, model and basis",
        c.HOURLY_COLUMNS,
        tables.usage_hourly,
        named=True,
    ),
    _table("events", "every event that the ledger keeps", c.EVENT_COLUMNS, tables.events),
    _table("keys", "API keys; never a secret", c.KEY_COLUMNS, tables.keys, named=True),
    _table("prices", "every price ever set", c.PRICE_COLUMNS, tables.prices),
    _table(
        "counters",
        "what engines' own counters said, to reconcile with",
        c.COUNTER_COLUMNS,
        tables.counters,
    ),
    View(
        "conservation",
        "accepted = finished + abandoned + open, by source and hour",
        c.CONSERVATION_COLUMNS,
        _fill_conservation,
    ),
    _table("sources", "who wrote events", c.SOURCE_COLUMNS, tables.sources),
    _table("names", "names of ids", c.NAME_COLUMNS, tables.names),
    View("exports", "the files that were exported", c.EXPORT_COLUMNS, _fill_exports),
    _files("exported_requests", "requests as exported", FILE_COLUMNS, REQUESTS),
    _files("exported_bill", "bills as exported", c.BILL_COLUMNS, BILL),
)
"""Every view, in the order in which they are listed for a person."""
