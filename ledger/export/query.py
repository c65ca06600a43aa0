"""A person's SQL over ledger and exports, in a DuckDB of its own that lives for one question.

The question sees copies in memory and the exported files: it cannot change the ledger, read another
file, reach the network or change a setting.
"""

import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import msgspec

from ledger.errors import ExportFailed, QueryRefused
from ledger.export.duck import in_thread, interruptible
from ledger.export.views import VIEWS, Connection, View, comment_on, create_empty
from ledger.identity import mint_id
from ledger.sql.session import Ledger

QUESTIONS = ("SELECT", "EXPLAIN")
"""Kinds of statement that only ask. SHOW, DESCRIBE, SUMMARIZE and WITH are SELECT to DuckDB."""


class Result(msgspec.Struct, frozen=True):
    """The answer. A cell is null, bool, int, float, str, an exact Decimal, an aware UTC datetime,
    a date, or a list or dict of these."""

    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: list[tuple[Any, ...]]


def run_query(ledger: Ledger, exports_dir: Path, sql: str) -> Result:
    """Answer one SQL question over `VIEWS` from one snapshot of `ledger`.

    Raises `QueryRefused` for anything that is not one question, and for whatever DuckDB says
    against it; `ExportFailed` if it names an export that cannot be read.
    """
    with (
        tempfile.TemporaryDirectory(prefix="tollbook-query-") as spill,
        ledger.read() as read,
        duckdb.connect(":memory:") as connection,
        interruptible(),
    ):
        try:
            _lock_down(connection, exports_dir, spill)
            for view in VIEWS:
                create_empty(connection, view)
            for view in _named(connection, sql):
                view.fill(connection, read, exports_dir)
            return in_thread(connection, lambda: _answer(connection, sql))
        except duckdb.Error as wrong:
            raise QueryRefused(_words(wrong)) from wrong


def save_views(ledger: Ledger, exports_dir: Path, path: Path) -> dict[str, int]:
    """Write all views of the ledger, from one snapshot, as tables of a new DuckDB database at
    `path`, with their meaning as comments; what was there is replaced once it is whole.

    Returns the rows by view. Views of exported files are none of them: the files can be read as
    they are. Raises `LedgerError`, of which `ExportFailed` says that `path` cannot be written, and
    `OSError`.
    """
    fresh = path.with_name(f".{path.name}.{mint_id()}")
    rows = {}
    try:
        with (
            ledger.read() as read,
            duckdb.connect(str(fresh)) as connection,
            interruptible(),
        ):
            connection.execute("SET TimeZone = 'UTC'")
            for view in VIEWS:
                if not view.of_files:
                    create_empty(connection, view)
                    comment_on(connection, view)
                    view.fill(connection, read, exports_dir)
                    counted = connection.execute(f"SELECT count(*) FROM {view.name}").fetchall()
                    rows[view.name] = int(counted[0][0])
        fresh.replace(path)
    except duckdb.Error as wrong:
        why = str(wrong).splitlines()[0]
        raise ExportFailed(f"{path} cannot be written: {why}; nothing was saved") from wrong
    finally:
        fresh.unlink(missing_ok=True)
        fresh.with_name(f"{fresh.name}.wal").unlink(missing_ok=True)
    return rows


def _lock_down(connection: Connection, exports_dir: Path, spill: str) -> None:
    """Leave the question nothing but the tables, and the exports to read."""
    directory = str(exports_dir.absolute()).replace("'", "''")
    for setting in (
        "TimeZone = 'UTC'",
        "python_enable_replacements = false",
        "autoinstall_known_extensions = false",
        "autoload_known_extensions = false",
        # Else DuckDB makes a directory in the current one when it runs out of memory.
        f"temp_directory = '{spill}'",
        f"allowed_directories = ['{directory}']",
        "enable_external_access = false",
        "lock_configuration = true",
    ):
        connection.execute(f"SET {setting}")


def _named(connection: Connection, sql: str) -> Sequence[View]:
    """The views that `sql` names. Raises `QueryRefused` if it is not one question."""
    statements = duckdb.extract_statements(sql)
    if len(statements) != 1:
        raise QueryRefused(
            "there is no statement in the SQL; give a SELECT"
            if not statements
            else f"the SQL holds {len(statements)} statements; ask one question at a time"
        )
    kind = statements[0].type.name
    if kind == "MULTI":
        raise QueryRefused(
            "PIVOT without a list of values is more than one statement; name the values: "
            "PIVOT requests ON basis IN ('reported', 'running') USING count(*)"
        )
    if kind not in QUESTIONS:
        raise QueryRefused(
            f"{kind} is not a question: `query` reads copies and changes nothing; give a SELECT"
        )
    names = connection.get_table_names(sql)
    return [view for view in VIEWS if view.name in names]


def _answer(connection: Connection, sql: str) -> Result:
    connection.execute(sql)
    described = connection.description or []
    rows = connection.fetchall()
    return Result(
        columns=tuple(str(column[0]) for column in described),
        types=tuple(str(column[1]) for column in described),
        rows=[tuple(_cell(cell) for cell in row) for row in rows],
    )


def _cell(cell: Any) -> Any:
    """An instant with a zone in plain UTC; everything else as it is."""
    if isinstance(cell, datetime) and cell.tzinfo is not None:
        return cell.astimezone(UTC)
    return cell


def _words(wrong: duckdb.Error) -> str:
    """What DuckDB says, and where to go from there."""
    said = str(wrong).strip()
    if isinstance(wrong, duckdb.CatalogException):
        return f"{said}\nThe views are {', '.join(view.name for view in VIEWS)}"
    if isinstance(wrong, duckdb.PermissionException):
        return f"{said}\nA question sees the views and no other file"
    return said
