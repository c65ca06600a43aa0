"""Parquet files whose bytes depend on their rows alone, and what a second reader says of them.

pyarrow writes, DuckDB reads back: a mistake of one in a type or a sum is seen by the other.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from ledger.errors import ExportFailed
from ledger.events import BUCKETS
from ledger.export.columns import Column, assert_exact, schema_of
from ledger.export.opened import opened, types_in
from ledger.export.sums import Sums

GROUP_ROWS = 100_000
"""Rows in a row group. Fixed, because the cut is part of the bytes; about 3 MiB on disk."""

COMPRESSION_LEVEL = 3
"""zstd's own default, named here so that a new default does not change the bytes."""


def write_parquet(
    path: Path, columns: Sequence[Column], batches: Iterable[pa.RecordBatch]
) -> Iterator[int]:
    """Write `batches` to `path`; gives the number of rows after each row group.

    Row groups are cut by count, so the bytes do not depend on how the rows came. The file is whole
    only when this generator has ended.
    """
    schema = schema_of(columns)
    assert_exact(schema)
    rows = 0
    with pq.ParquetWriter(
        path,
        schema,
        version="2.6",
        compression="zstd",
        compression_level=COMPRESSION_LEVEL,
        use_dictionary=True,
        write_statistics=True,
        store_schema=False,
    ) as writer:
        for group in groups(schema, batches):
            writer.write_table(group, row_group_size=GROUP_ROWS)
            rows += group.num_rows
            yield rows


def read_back(path: Path, columns: Sequence[Column], count: str) -> tuple[Sums, int]:
    """What the file at `path` adds up to by DuckDB, and its rows. `count` counts requests in SQL.

    Raises `ExportFailed` if a column is missing, strange, or not of the type it was written as.
    """
    with duckdb.connect(":memory:") as connection:
        wanted = types_in(path, columns)
        file = opened(connection, path, wanted)
        found = dict(zip(file.columns, (str(kind) for kind in file.types), strict=True))
        if found != wanted:
            raise ExportFailed(f"{path} came back with columns {found}, not {wanted}; {_FAULT}")
        sums = ", ".join(f"coalesce(sum({name}), 0)::HUGEINT, count({name})" for name in BUCKETS)
        (row,) = file.aggregate(f"count(*), coalesce({count}, 0)::HUGEINT, {sums}").fetchall()
    rows, requests, *rest = (int(cell) for cell in row)
    tokens = dict(zip(BUCKETS, rest[::2], strict=True))
    return Sums(requests, tokens, known=dict(zip(BUCKETS, rest[1::2], strict=True))), rows


_FAULT = "this is a fault of Tollbook or of a library: please report it"


def groups(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    waiting: list[pa.RecordBatch] = []
    held = 0
    for batch in batches:
        waiting.append(batch)
        held += batch.num_rows
        while held >= GROUP_ROWS:
            table = pa.Table.from_batches(waiting, schema)
            yield table.slice(0, GROUP_ROWS).combine_chunks()
            waiting = table.slice(GROUP_ROWS).to_batches()
            held -= GROUP_ROWS
    if held:
        yield pa.Table.from_batches(waiting, schema).combine_chunks()
