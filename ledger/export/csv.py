"""CSV files whose bytes depend on their rows alone: for spreadsheets and for what reads no Parquet.

Text always stands in quotes, so that an empty text is none the less no null: a null is an empty
field without quotes. Decimals have a point and as many digits as are needed, instants are UTC by
ISO 8601, lists are joined by a space. Lines end with a line feed.
"""

from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.csv import CSVWriter, WriteOptions

from ledger.export.columns import FLAG, INSTANT, LIST, MONEY, Column, assert_exact, schema_of
from ledger.export.parquet import groups


def write_csv(
    path: Path,
    columns: Sequence[Column],
    batches: Iterable[pa.RecordBatch],
    *,
    seconds: bool = False,
) -> Iterator[int]:
    """Write `batches` to `path`; gives the number of rows after each run of rows.

    `seconds`: instants are whole seconds, and are written so. The file is whole only when this
    generator has ended.
    """
    schema = schema_of(columns)
    assert_exact(schema)
    rows = 0
    with path.open("wb") as file:
        file.write(",".join(column.name for column in columns).encode() + b"\n")
        for group in groups(schema, batches):
            _append(file, group, seconds)
            rows += group.num_rows
            yield rows


def _append(file: BinaryIO, group: pa.Table, seconds: bool) -> None:
    table = pa.table(
        [_plain(column, seconds) for column in group.columns], names=group.column_names
    )
    options = WriteOptions(include_header=False, quoting_style="needed")
    with CSVWriter(file, table.schema, write_options=options) as writer:
        writer.write_table(table)


def _plain(column: Any, seconds: bool) -> Any:
    """`column` as it is to be read. A number stays one: only text is written in quotes."""
    if column.type == MONEY:
        return _decimal(column)
    if column.type == INSTANT:
        return pc.strftime(
            pc.cast(column, pa.timestamp("s" if seconds else "us", tz="UTC")), "%Y-%m-%dT%H:%M:%SZ"
        )
    if column.type == LIST:
        return pc.binary_join(column, " ")
    if column.type == FLAG or pa.types.is_date32(column.type):
        return pc.cast(column, pa.string())
    return column


def _decimal(column: Any) -> Any:
    """Exact decimals without the zeros at their end, but with a point: a reader that guesses types
    would take a column of whole numbers for another."""
    text = pc.cast(column, pa.string())
    if pc.any(pc.match_substring(text, "E")).as_py():
        # Arrow writes small ones with an exponent, which spreadsheets read as floats.
        plain = [None if cell is None else f"{Decimal(cell):f}" for cell in text.to_pylist()]
        text = pa.chunked_array([pa.array(plain, pa.string())])
    return pc.replace_substring_regex(text, r"^(-?[0-9]+\.[0-9])([0-9]*[1-9])?0*$", r"\1\2")
