"""Parquet files whose bytes depend on their rows alone. DuckDB writes them; pyarrow reads them back
(`ledger.export.read_back`): a mistake of one in a type or a sum is seen by the other.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa

from ledger.export.cells import Cells
from ledger.export.columns import Column
from ledger.export.copying import RUN_ROWS, Tell, copy_out
from ledger.export.duck import named

GROUP_ROWS = 100_000
"""Rows in a row group. Fixed, because the cut is part of the bytes; about 3 MiB on disk."""

COMPRESSION_LEVEL = 3
"""zstd's own default, named here so that a new default does not change the bytes."""


def write_parquet(
    path: Path,
    columns: Sequence[Column],
    batches: Iterable[pa.RecordBatch],
    tell: Tell = lambda rows: None,
) -> Cells:
    """Write `batches` to `path`; gives the cells that went in. Raises as `copy_out` does.

    Row groups are cut by count, so the bytes do not depend on how the rows came.
    """
    return copy_out(
        path,
        columns,
        batches,
        cells=[named(column.name) for column in columns],
        # Bloom filters would serve a search by id within a month, for a tenth more bytes.
        options=f"(FORMAT parquet, PARQUET_VERSION V1, COMPRESSION zstd, COMPRESSION_LEVEL "
        f"{COMPRESSION_LEVEL}, ROW_GROUP_SIZE {GROUP_ROWS}, WRITE_BLOOM_FILTER false)",
        run_rows=min(RUN_ROWS, GROUP_ROWS),
        tell=tell,
    )
