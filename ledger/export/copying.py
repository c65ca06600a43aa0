"""Files that DuckDB writes from Arrow batches, so that their bytes depend on the rows alone.

One thread, the rows in the order in which they come, and runs of one size whatever the batches
were: DuckDB cuts row groups between the runs that it is given.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa

from ledger.errors import ExportFailed
from ledger.export.cells import Cells
from ledger.export.columns import Column, assert_exact, schema_of
from ledger.export.duck import interruptible, named, quoted

RUN_ROWS: Final = 10_000
"""Rows that are handed over at a time. Row groups have to be whole runs."""

Tell = Callable[[int], None]
"""Told how many rows are written, after each run of them."""

_SETTINGS: Final[dict[str, Any]] = {
    "threads": 1,
    "preserve_insertion_order": True,
    # Nothing is fetched from the network, and nothing is left in the current directory.
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "temp_directory": "",
}


def copy_out(
    path: Path,
    columns: Sequence[Column],
    batches: Iterable[pa.RecordBatch],
    *,
    cells: Sequence[str],
    options: str,
    run_rows: int = RUN_ROWS,
    tell: Tell = lambda rows: None,
) -> Cells:
    """Write `batches`, of `columns`, to `path`: of each the expression of SQL in `cells`, by the
    `options` of DuckDB's COPY. Gives the cells that were handed over.

    Whatever `batches` raises comes out as it is. Raises `OSError` if the disk refuses, and
    `ExportFailed` if DuckDB does. The file is whole only when this returns.
    """
    schema = schema_of(columns)
    assert_exact(schema)
    feed = _Feed(columns, schema, batches, run_rows, tell)
    with duckdb.connect(":memory:", config=_SETTINGS) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("feed", pa.RecordBatchReader.from_batches(schema, feed.runs()))
        rows = ", ".join(
            f"{cell} AS {named(column.name)}" for cell, column in zip(cells, columns, strict=True)
        )
        try:
            with interruptible():
                connection.execute(
                    f"COPY (SELECT {rows} FROM feed) TO {quoted(str(path))} {options}"
                )
        except duckdb.Error as wrong:
            # DuckDB has only the words of what was raised while it asked for rows.
            raise feed.failed or _refused(path, wrong) from None
    return feed.cells


class _Feed:
    """Gives DuckDB its rows, and keeps what went wrong while it did."""

    def __init__(
        self,
        columns: Sequence[Column],
        schema: pa.Schema,
        batches: Iterable[pa.RecordBatch],
        run_rows: int,
        tell: Tell,
    ) -> None:
        self.cells = Cells(columns)
        self.failed: BaseException | None = None
        self._schema, self._batches, self._run_rows, self._tell = schema, batches, run_rows, tell

    def runs(self) -> Iterator[pa.RecordBatch]:
        try:
            for run in runs(self._schema, self._batches, self._run_rows):
                self.cells.take(run)
                yield run
                self._tell(self.cells.rows)
        except GeneratorExit:
            raise
        except BaseException as wrong:
            self.failed = wrong
            raise


def runs(
    schema: pa.Schema, batches: Iterable[pa.RecordBatch], size: int
) -> Iterator[pa.RecordBatch]:
    """The rows of `batches` in batches of `size` rows, the last of what is left."""
    waiting: list[pa.RecordBatch] = []
    held = 0
    for batch in batches:
        waiting.append(batch)
        held += batch.num_rows
        if held >= size:
            table = pa.Table.from_batches(waiting, schema)
            whole = held - held % size
            for start in range(0, whole, size):
                yield _one(table.slice(start, size))
            waiting = table.slice(whole).to_batches()
            held -= whole
    if held:
        yield _one(pa.Table.from_batches(waiting, schema))


def _one(table: pa.Table) -> pa.RecordBatch:
    (batch,) = table.combine_chunks().to_batches()
    return batch


def _refused(path: Path, wrong: Exception) -> Exception:
    """What DuckDB said, as what it was: a disk that refuses tells its number among the words."""
    said = str(wrong)
    number = re.search(r'"errno":"(\d+)"', said)
    if number is not None:
        code = int(number.group(1))
        return OSError(code, os.strerror(code), str(path))
    return ExportFailed(f"{path} cannot be written: {said.splitlines()[0]}; nothing was exported")
