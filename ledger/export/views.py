"""The views that `tollbook query` offers: their columns, grain and meaning, and how each is filled.

They are stable: a view or a column may be added, but none changes its name, type, unit or grain
without a new major version. A view is filled only if a question names it, from one snapshot of the
ledger. Names of keys stand beside their ids here, and nowhere in an exported file.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pyarrow as pa

from ledger.export import columns as c
from ledger.export import finance as f
from ledger.export.beneath import attempts_batch, conservation_batch
from ledger.export.bill import batches_of, bill_lines, billed_months
from ledger.export.duck import quoted
from ledger.export.focus.columns import VERSIONS, file_columns
from ledger.export.formats import WRITERS
from ledger.export.manifest import BILL, FOCUS, PARQUET, REQUESTS, exports
from ledger.export.rows import FILE_COLUMNS, table_batches
from ledger.sql import tables
from ledger.sql.attempts import priced_attempts
from ledger.sql.conservation import balances
from ledger.sql.names import key_names
from ledger.sql.session import ReadSession

Connection = duckdb.DuckDBPyConnection
Fill = Callable[[Connection, ReadSession, Path], None]


class View(msgspec.Struct, frozen=True):
    """One view. `fill` puts its rows into the empty table of that name; `grain` are the columns
    that tell its rows apart; `of_files`: its rows stay in the exported files."""

    name: str
    meaning: str
    columns: tuple[c.Column, ...]
    fill: Fill
    grain: tuple[str, ...]
    of_files: bool = False


def create_empty(connection: Connection, view: View) -> None:
    """The table of `view` without rows: a question is checked before anything is read."""
    empty = c.schema_of(view.columns).empty_table()
    connection.register("feed", empty)
    connection.execute(f"CREATE TABLE {view.name} AS SELECT * FROM feed")
    connection.unregister("feed")


def comment_on(connection: Connection, view: View) -> None:
    """Say in the database what the table and each of its columns mean."""
    connection.execute(f"COMMENT ON TABLE {view.name} IS {quoted(view.meaning)}")
    for column in view.columns:
        unit = "" if column.unit is None else f" [{column.unit}]"
        meaning = quoted(column.meaning + unit)
        connection.execute(f'COMMENT ON COLUMN {view.name}."{column.name}" IS {meaning}')


def _pour(connection: Connection, name: str, batches: Iterator[pa.RecordBatch]) -> None:
    for batch in batches:
        connection.register("feed", batch)
        connection.execute(f"INSERT INTO {name} SELECT * FROM feed")
        connection.unregister("feed")


def _table(
    name: str, meaning: str, columns: Sequence[c.Column], table: Any, *, named: bool = False
) -> View:
    """A view on one table of the ledger; `named` puts the key's name beside its id."""
    shown_as = {column.source: column.name for column in columns}
    grain = tuple(shown_as[column.name] for column in table.primary_key.columns)

    def fill(connection: Connection, read: ReadSession, _: Path) -> None:
        names = key_names(read) if named else {}

        def extra(values: c.Values) -> c.Values:
            return {c.KEY_NAME.name: [names.get(key_id) for key_id in values["key_id"]]}

        shown = c.with_key(columns) if named else columns
        _pour(connection, name, table_batches(read, table, shown, extra if named else None))

    return View(name, meaning, c.with_key(columns) if named else tuple(columns), fill, grain)


Batches = Callable[[ReadSession], Iterator[pa.RecordBatch]]


def _folded(
    name: str, meaning: str, columns: Sequence[c.Column], batches: Batches, *grain: str
) -> View:
    """A view on what is computed from the ledger by `batches`."""

    def fill(connection: Connection, read: ReadSession, _: Path) -> None:
        _pour(connection, name, batches(read))

    return View(name, meaning, tuple(columns), fill, grain)


def _fill_bill(connection: Connection, read: ReadSession, _: Path) -> None:
    for month in billed_months(read):
        lines = bill_lines(read, month)
        batches = batches_of(lines, f.BILL_COLUMNS[1:])
        _pour(connection, "bill", (f.of_month(month, batch) for batch in batches))


def _fill_attempts(connection: Connection, read: ReadSession, _: Path) -> None:
    names = key_names(read)
    batches = (attempts_batch(part, names) for part in priced_attempts(read))
    _pour(connection, "attempts", batches)


def _fill_conservation(connection: Connection, read: ReadSession, _: Path) -> None:
    _pour(connection, "conservation", iter([conservation_batch(balances(read))]))


def _fill_exports(connection: Connection, _: ReadSession, out_dir: Path) -> None:
    files = [
        (manifest, file)
        for kind in WRITERS
        for _, manifest in exports(out_dir, kind)
        for file in manifest.files
    ]
    values: c.Values = {
        "month": [manifest.month for manifest, _ in files],
        "kind": [manifest.kind for manifest, _ in files],
        "period": [manifest.period for manifest, _ in files],
        "root": [manifest.root for manifest, _ in files],
        "file": [file.name for _, file in files],
        "rows": [file.rows for _, file in files],
        "bytes": [file.bytes for _, file in files],
        "sha256": [file.sha256 for _, file in files],
    }
    _pour(connection, "exports", iter([c.batch_of(c.EXPORT_COLUMNS, values)]))


def _files(
    name: str,
    meaning: str,
    columns: Sequence[c.Column],
    file: str,
    *grain: str,
    kind: str = PARQUET,
) -> View:
    """A view on one file of every month exported as `kind`, read from the file itself."""

    def fill(connection: Connection, _: ReadSession, out_dir: Path) -> None:
        parts = [
            f"SELECT {quoted(manifest.month)} AS month, * "
            f"FROM read_parquet({quoted(str(directory / file))}, hive_partitioning = false)"
            for directory, manifest in exports(out_dir, kind)
        ]
        if parts:
            # First no rows of every column: a file of an older version may lack some of them.
            empty = ", ".join(f"NULL::{c.duckdb_type(one)} AS {one.name}" for one in every)
            every_part = " UNION ALL BY NAME ".join([f"SELECT {empty} WHERE false", *parts])
            connection.execute(f"DROP TABLE {name}")
            connection.execute(f"CREATE VIEW {name} AS {every_part}")

    every = (c.EXPORT_COLUMNS[0], *columns)
    return View(name, meaning, every, fill, grain, of_files=True)


_LINE_GRAIN = (
    *("month", "day", "project_id", "key_id", "model", "basis"),
    *("price_id", "discount_id", "band", "currency", "kind", "corrects"),
)
_FOCUS_GRAIN = (
    *("month", "ChargePeriodStart", "SubAccountId", "x_KeyId", "x_Model", "x_TokenBucket"),
    *("x_UsageBasis", "x_PriceId", "x_PriceBand", "x_DiscountId", "x_CorrectsEvent"),
)

VIEWS = (
    _table(
        "requests",
        "Every accepted request, open ones too.",
        c.REQUEST_COLUMNS,
        tables.requests,
        named=True,
    ),
    View(
        "attempts",
        "Every backend that was called for a request.",
        c.with_key(c.ATTEMPT_COLUMNS),
        _fill_attempts,
        ("request_id", "attempt"),
    ),
    View(
        "bill",
        "What the bill of every month says, by day; costs of requests without a price are null.",
        f.BILL_COLUMNS,
        _fill_bill,
        _LINE_GRAIN,
    ),
    _folded(
        "charges",
        "The same usage by hour and bucket with the price of each: quantity times unit_price is "
        "cost. Requests of which nothing is known have no charge.",
        c.with_key(f.CHARGE_COLUMNS),
        f.charge_batches,
        *("month", "hour", "project_id", "key_id", "model", "bucket", "basis"),
        *("price_id", "band", "discount_id", "kind", "corrects"),
    ),
    _table(
        "usage_hourly",
        "Requests with an end and their tokens, whatever was closed or corrected since.",
        c.HOURLY_COLUMNS,
        tables.usage_hourly,
        named=True,
    ),
    _table("events", "Every event that the ledger keeps.", c.EVENT_COLUMNS, tables.events),
    _table("keys", "API keys; never a secret.", c.KEY_COLUMNS, tables.keys, named=True),
    _table("prices", "Every price ever set, by model.", c.PRICE_COLUMNS, tables.prices),
    _folded(
        "rates",
        "Every price ever set, by bucket and band, discounts too.",
        f.RATE_COLUMNS,
        f.rate_batches,
        *("price_id", "band", "bucket"),
    ),
    _folded("projects", "Projects.", f.PROJECT_COLUMNS, f.project_batches, "project_id"),
    _folded(
        "memberships",
        "Which project a key belonged to, and when.",
        c.with_key(f.MEMBERSHIP_COLUMNS),
        f.membership_batches,
        *("key_id", "since"),
    ),
    _folded(
        "credits",
        "Every movement of money and every budget.",
        f.ENTRY_COLUMNS,
        f.entry_batches,
        *("entry_id", "account", "currency"),
    ),
    _folded("periods", "Closed months.", f.PERIOD_COLUMNS, f.period_batches, "month"),
    _folded(
        "corrections",
        "What a person corrected.",
        f.CORRECTION_COLUMNS,
        f.correction_batches,
        "correction_id",
    ),
    _table(
        "counters",
        "What engines' own counters said, to reconcile with.",
        c.COUNTER_COLUMNS,
        tables.counters,
    ),
    View(
        "conservation",
        "Accepted = finished + abandoned + open.",
        c.CONSERVATION_COLUMNS,
        _fill_conservation,
        ("source", "hour"),
    ),
    _table("sources", "Who wrote events.", c.SOURCE_COLUMNS, tables.sources),
    _table("names", "Names of ids.", c.NAME_COLUMNS, tables.names),
    View(
        "exports",
        "The files that were exported.",
        c.EXPORT_COLUMNS,
        _fill_exports,
        ("month", "kind", "file"),
    ),
    _files(
        "exported_requests",
        "Requests as exported in Parquet.",
        FILE_COLUMNS,
        REQUESTS,
        "request_id",
    ),
    _files(
        "exported_bill",
        "Bills as exported in Parquet.",
        c.BILL_COLUMNS,
        BILL,
        *_LINE_GRAIN,
    ),
    *(
        _files(
            f"focus_{version.replace('.', '_')}",
            f"FOCUS {version} CostAndUsage as exported: a charge of one hour, key, model, bucket "
            "and price.",
            file_columns(version),
            FOCUS,
            *_FOCUS_GRAIN,
            kind=f"focus-{version}",
        )
        for version in VERSIONS
    ),
)
"""Every view, in the order in which they are listed for a person."""
