"""A file of an export, Parquet or CSV, as pyarrow sees it, which reads what DuckDB wrote."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from ledger.export.columns import LIST, TEXT, Column

_ROWS: Final = 10_000
"""Rows of a Parquet file that are read at a time."""


def types_in(path: Path, columns: Sequence[Column]) -> dict[str, Any]:
    """The types that `columns` have to come back with. CSV holds a list as text."""
    listed = path.suffix == ".csv"
    return {
        column.name: TEXT if listed and column.type == LIST else column.type for column in columns
    }


class Opened:
    """The file at `path`, whose `types` are by name in the file's own order.

    CSV tells names and no types: each cell is read as its column's of `wanted`, and reading raises
    where one does not fit. Raises `pa.ArrowException` or `OSError` if it cannot be read.
    """

    def __init__(self, path: Path, wanted: Mapping[str, Any]) -> None:
        self._path = path
        if path.suffix == ".csv":
            with path.open("rb") as file:
                names = file.readline().decode(errors="replace").rstrip("\n").split(",")
            self.types: dict[str, Any] = {name: wanted.get(name, TEXT) for name in names}
        else:
            schema = pq.read_schema(path)
            self.types = dict(zip(schema.names, schema.types, strict=True))

    def reader(
        self,
        names: Sequence[str] | None = None,
        watch: Callable[[pa.RecordBatch], None] | None = None,
    ) -> pa.RecordBatchReader:
        """Its rows in their order, of the columns `names` or all. `watch` sees them go by."""
        wanted = list(self.types) if names is None else list(names)
        if self._path.suffix == ".csv":
            rows = self._text(wanted)
        else:
            schema = pa.schema([(name, self.types[name]) for name in wanted])
            rows = pa.RecordBatchReader.from_batches(schema, self._groups(wanted))
        if watch is None:
            return rows
        return pa.RecordBatchReader.from_batches(rows.schema, _watched(rows, watch))

    def _text(self, names: list[str]) -> pa.RecordBatchReader:
        return pa_csv.open_csv(
            self._path,
            parse_options=pa_csv.ParseOptions(newlines_in_values=True),
            convert_options=pa_csv.ConvertOptions(
                column_types=self.types,
                include_columns=names,
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                true_values=["true"],
                false_values=["false"],
            ),
        )

    def _groups(self, names: list[str]) -> Iterator[pa.RecordBatch]:
        with pq.ParquetFile(self._path) as file:
            for batch in file.iter_batches(_ROWS, columns=names):
                yield batch.select(names)


def _watched(
    rows: pa.RecordBatchReader, watch: Callable[[pa.RecordBatch], None]
) -> Iterator[pa.RecordBatch]:
    for batch in rows:
        watch(batch)
        yield batch
