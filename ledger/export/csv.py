"""CSV files whose bytes depend on their rows alone: for spreadsheets and for what reads no Parquet.

A null is an empty field; an empty text stands in quotes. Decimals have a point and as many digits
as are needed, instants are UTC by ISO 8601, lists are joined by a space. Lines end with a line
feed.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

import pyarrow as pa
import pyarrow.compute as pc

from ledger.export.columns import INSTANT, LIST, MONEY, TEXT, Column, assert_exact, schema_of
from ledger.export.parquet import groups

WHOLE: Final = pa.decimal128(MONEY.precision, 0)


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
    cells = [_cells(column.combine_chunks(), seconds) for column in group.columns]
    lines = pc.binary_join_element_wise(*cells, ",", null_handling="replace", null_replacement="")
    file.write("".join(f"{line}\n" for line in lines.to_pylist()).encode())


def _cells(column: pa.Array, seconds: bool) -> pa.Array:
    """`column` as the text that stands in the file; null stays null."""
    if column.type == MONEY:
        return _decimal(column)
    if column.type == INSTANT:
        unit = pa.timestamp("s" if seconds else "us", tz="UTC")
        return pc.strftime(pc.cast(column, unit), "%Y-%m-%dT%H:%M:%SZ")
    if column.type == LIST:
        return _quoted(pc.binary_join(column, " "))
    if column.type == TEXT:
        return _quoted(column)
    return pc.cast(column, pa.string())


def _quoted(column: pa.Array) -> pa.Array:
    """Text in quotes where it needs them: for the sake of a comma, a quote or a line's end in it,
    and where it is empty, because nothing at all is a null."""
    quoted = pc.binary_join_element_wise('"', pc.replace_substring(column, '"', '""'), '"', "")
    return pc.if_else(pc.match_substring_regex(column, '[",\r\n]|^$'), quoted, column)


def _decimal(column: pa.Array) -> pa.Array:
    """Exact decimals without the zeros at their end, but with a point: a reader that guesses types
    would take a column of whole numbers for another."""
    # Arrow would write small ones with an exponent. The same bytes without decimals are whole
    # numbers of 10^-12, which it writes out; the point comes before the last twelve digits.
    whole = pa.Array.from_buffers(WHOLE, len(column), column.buffers(), offset=column.offset)
    text = pc.cast(whole, pa.string())
    digits = pc.ascii_lpad(pc.ascii_ltrim(text, "-"), 1 + MONEY.scale, "0")
    before = pc.utf8_slice_codeunits(digits, 0, -MONEY.scale)
    behind = pc.ascii_rtrim(pc.utf8_slice_codeunits(digits, -MONEY.scale), "0")
    behind = pc.if_else(pc.equal(behind, ""), "0", behind)
    sign = pc.if_else(pc.starts_with(text, "-"), "-", "")
    return pc.binary_join_element_wise(pc.binary_join_element_wise(sign, before, ""), behind, ".")
