"""CSV files whose bytes depend on their rows alone: for spreadsheets and for what reads no Parquet.

A null is an empty field; an empty text stands in quotes. Decimals have a point and as many digits
as are needed, instants are UTC by ISO 8601, lists are joined by a space. Lines end with a line
feed.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from ledger.export.cells import Cells
from ledger.export.columns import INSTANT, LIST, MONEY, Column
from ledger.export.copying import Tell, copy_out
from ledger.export.duck import named

_OPTIONS: Final = (
    "(FORMAT csv, HEADER true, DELIMITER ',', QUOTE '\"', ESCAPE '\"', NULLSTR '', NEW_LINE '\\n')"
)

_SECONDS: Final = "strftime({}, '%Y-%m-%dT%H:%M:%SZ')"
_CELLS: Final[dict[Any, str]] = {
    # The digits without the zeros at their end, but with a point: a reader that guesses types would
    # take a column of whole numbers for another.
    MONEY: r"regexp_replace({}::VARCHAR, '(\.[0-9]+?)0+$', '\1')",
    INSTANT: "strftime({}, '%Y-%m-%dT%H:%M:%S.%fZ')",
    LIST: "array_to_string({}, ' ')",
}
"""Type of a column to its text in SQL; other types are written as DuckDB writes them."""


def write_csv(
    path: Path,
    columns: Sequence[Column],
    batches: Iterable[pa.RecordBatch],
    tell: Tell = lambda rows: None,
    *,
    seconds: bool = False,
) -> Cells:
    """Write `batches` to `path`; gives the cells that went in. Raises as `copy_out` does.

    `seconds`: instants are whole seconds, and are written so.
    """
    kinds = _CELLS | {INSTANT: _SECONDS} if seconds else _CELLS
    return copy_out(
        path,
        columns,
        batches,
        cells=[kinds.get(column.type, "{}").format(named(column.name)) for column in columns],
        options=_OPTIONS,
        tell=tell,
    )
