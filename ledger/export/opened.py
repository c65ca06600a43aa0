"""A file of an export, Parquet or CSV, as DuckDB sees it: the second reader of what was written."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ledger.export.columns import LIST, Column, duckdb_type


def types_in(path: Path, columns: Sequence[Column]) -> dict[str, str]:
    """The types that `columns` have to come back with. CSV holds a list as text."""
    listed = path.suffix == ".csv"
    return {
        column.name: "VARCHAR" if listed and column.type == LIST else duckdb_type(column)
        for column in columns
    }


def opened(connection: Any, path: Path, types: Mapping[str, str]) -> Any:
    """The file at `path` as a relation. CSV tells names and no types: each cell is read as its
    column's of `types`, and `duckdb.Error` comes when one does not fit."""
    connection.execute("SET TimeZone = 'UTC'")
    # The directory is named as a partition; its column is not in the file.
    if path.suffix != ".csv":
        return connection.read_parquet(str(path), hive_partitioning=False)
    with path.open("rb") as file:
        names = file.readline().decode(errors="replace").rstrip("\n").split(",")
    kinds = ", ".join(f"{quoted(name)}: {quoted(types.get(name, 'VARCHAR'))}" for name in names)
    return connection.sql(
        f"SELECT * FROM read_csv({quoted(str(path))}, columns = {{{kinds}}}, header = true, "
        "auto_detect = false, delim = ',', quote = '\"', escape = '\"', nullstr = '', "
        "allow_quoted_nulls = false, strict_mode = true, hive_partitioning = false)"
    )


def quoted(text: str) -> str:
    """`text` as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"
