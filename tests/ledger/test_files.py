"""Files that DuckDB writes and pyarrow reads back: the same bytes from the same rows, and each cell
as it went in.
"""

import csv
import signal
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.clock import from_us
from ledger.errors import ExportFailed
from ledger.events import BUCKETS
from ledger.export import parquet
from ledger.export.check import check_export
from ledger.export.columns import (
    COUNT,
    FLAG,
    INSTANT,
    LIST,
    MONEY,
    TEXT,
    Column,
    batch_of,
    schema_of,
)
from ledger.export.csv import write_csv
from ledger.export.manifest import MANIFEST, describe, read_manifest
from ledger.export.month import export_month
from ledger.export.parquet import write_parquet
from ledger.export.query import run_query
from ledger.export.read_back import read_back
from ledger.export.verify import verify
from tests.ledger.focus_world import MONTH, NEXT, at, close, fill
from tests.support.books import Books
from tests.support.events import life
from tests.support.processes import Process, wait_until

COLUMNS = (
    Column("n", COUNT, "a count"),
    Column("text", TEXT, "a text"),
    Column("list", LIST, "words"),
    Column("money", MONEY, "an amount"),
    Column("at", INSTANT, "an instant"),
    Column("flag", FLAG, "a flag"),
    Column("day", pa.date32(), "a day"),
)
"""One of each type that leaves the ledger."""

Row = tuple[Any, ...]

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
MOMENTS = st.integers(0, 10**16).map(from_us)
AMOUNTS = st.integers(-(10**38) + 1, 10**38 - 1).map(lambda pico: Decimal(f"{pico}e-12"))
ROWS = st.lists(
    st.tuples(
        st.none() | st.integers(-(2**63), 2**63 - 1),
        st.none() | TEXTS | st.sampled_from(["#a", "\r", "NULL", " ", '"', ",", "1.50", "\ufeff"]),
        st.none() | st.lists(st.sampled_from(["uncached_in", "other_out"]), max_size=2),
        st.none() | AMOUNTS,
        st.none() | MOMENTS,
        st.none() | st.booleans(),
        st.none() | st.dates(date(1970, 1, 1)),
    ),
    max_size=40,
)


def batches_of(rows: Sequence[Row], size: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(rows), size):
        cells = zip(*rows[start : start + size], strict=True)
        values = {column.name: list(of) for column, of in zip(COLUMNS, cells, strict=True)}
        yield batch_of(COLUMNS, values)


def some_rows(count: int) -> list[Row]:
    start = datetime(2026, 11, 1, tzinfo=UTC)
    return [
        (
            n if n % 3 else None,
            [None, "", f"request {n}", 'a "b",\nc'][n % 4],
            [None, [], ["uncached_in", "other_out"]][n % 3],
            Decimal(n - 7).scaleb(-n % 13) if n % 5 else None,
            start + timedelta(microseconds=n * 1_000_003),
            [True, False, None][n % 3],
            start.date() if n % 2 else None,
        )
        for n in range(count)
    ]


@settings(max_examples=30, deadline=None)
@given(rows=ROWS, sizes=st.tuples(st.integers(1, 40), st.integers(1, 40)))
def test_any_cells_come_back_as_they_went_in(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row], sizes: tuple[int, int]
) -> None:
    place = tmp_path_factory.mktemp("cells")
    for name, write in (("a.parquet", write_parquet), ("a.csv", write_csv)):
        found = []
        for size in sizes:
            wrote = write(place / name, COLUMNS, batches_of(rows, size))
            assert wrote.rows == len(rows)
            read_back(place / name, COLUMNS, wrote)
            found.append((place / name).read_bytes())
        assert found[0] == found[1], name
    whole = pq.read_table(place / "a.parquet").to_pylist()
    assert [tuple(row.values()) for row in whole] == rows
    # And by a third reader: what stands in the CSV, but for which empty fields are null.
    with (place / "a.csv").open(newline="", encoding="utf-8") as file:
        head, *lines = list(csv.reader(file))
    assert head == [column.name for column in COLUMNS]
    assert [line[1] for line in lines] == [row[1] or "" for row in rows]
    assert [Decimal(line[3] or 0) for line in lines] == [row[3] or 0 for row in rows]


def test_bytes_do_not_depend_on_batches_or_on_where_groups_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # More rows than DuckDB takes at a time, so that its own pieces lie across ours.
    rows = some_rows(9_000)
    monkeypatch.setattr(parquet, "GROUP_ROWS", 4_000)
    for name, write in (("a.parquet", write_parquet), ("a.csv", write_csv)):
        found = set()
        for size in (700, 2_048, 4_000, 9_000):
            write(tmp_path / name, COLUMNS, batches_of(rows, size))
            found.add((tmp_path / name).read_bytes())
        assert len(found) == 1, name
    groups = pq.read_metadata(tmp_path / "a.parquet")
    assert [groups.row_group(n).num_rows for n in range(3)] == [4_000, 4_000, 1_000]
    assert groups.created_by.startswith("DuckDB ")
    assert {groups.row_group(0).column(n).compression for n in range(len(COLUMNS))} == {"ZSTD"}


@pytest.mark.parametrize("name", ["a.parquet", "a.csv"])
def test_a_cell_that_comes_back_otherwise_is_named(tmp_path: Path, name: str) -> None:
    rows, path = some_rows(50), tmp_path / name
    write = write_parquet if name == "a.parquet" else write_csv
    wrote = write(path, COLUMNS, batches_of(rows, 50))
    for place, column in enumerate(COLUMNS):
        row = next(n for n, row in enumerate(rows) if row[place] is not None)
        changed = list(rows[row])
        changed[place] = None
        write(path, COLUMNS, batches_of([*rows[:row], tuple(changed), *rows[row + 1 :]], 50))
        with pytest.raises(ExportFailed, match=f"in {column.name};"):
            read_back(path, COLUMNS, wrote)
    # The same texts in other rows are other cells, and so are fewer rows.
    write(path, COLUMNS, batches_of([*rows[1:], rows[0]], 50))
    with pytest.raises(ExportFailed, match="50 rows of 50"):
        read_back(path, COLUMNS, wrote)
    write(path, COLUMNS, batches_of(rows[:-1], 50))
    with pytest.raises(ExportFailed, match="49 rows of 50"):
        read_back(path, COLUMNS, wrote)


def test_a_file_of_other_types_does_not_pass(tmp_path: Path) -> None:
    path, columns = tmp_path / "file.parquet", [Column("n", COUNT, "a number")]
    wrote = write_parquet(path, columns, [batch_of(columns, {"n": [1]})])
    pq.write_table(pa.table({"n": pa.array([1.0])}), path)
    with pytest.raises(ExportFailed, match="n double, not n int64"):
        read_back(path, columns, wrote)
    path = tmp_path / "file.csv"
    path.write_text("n\n1.5\n")
    with pytest.raises(ExportFailed, match="cannot be read back"):
        read_back(path, columns, wrote)
    path.write_text("n,more\n1,2\n")
    with pytest.raises(ExportFailed, match="more string"):
        read_back(path, columns, wrote)


def test_sums_are_exact_beyond_64_bits_and_costs_by_currency(tmp_path: Path) -> None:
    columns = (
        *(Column(name, COUNT, "tokens") for name in BUCKETS),
        Column("requests", COUNT, "requests"),
        Column("cost", MONEY, "cost"),
        Column("currency", TEXT, "currency"),
    )
    most = 2**63 - 1
    values: dict[str, Sequence[Any]] = {name: [most, most, None, 1] for name in BUCKETS}
    values["requests"] = [most, most, 1, 1]
    values["cost"] = ["0.000000000001", "12345678901234567890.1", None, "-0.1"]
    values["currency"] = ["EUR", "EUR", None, "EUR"]
    for name, write in (("a.parquet", write_parquet), ("a.csv", write_csv)):
        wrote = write(tmp_path / name, columns, [batch_of(columns, values)])
        found = read_back(
            tmp_path / name, columns, wrote, requests="requests", cost=("cost", "currency")
        )
        assert found.sums.requests == 2 * most + 2
        assert set(found.sums.tokens.values()) == {2 * most + 1}
        assert set(found.sums.known.values()) == {3}
        assert found.cost == {"EUR": "12345678901234567890.000000000001"}


def test_no_rows_are_a_whole_file_too(tmp_path: Path) -> None:
    for name, write in (("a.parquet", write_parquet), ("a.csv", write_csv)):
        wrote = write(tmp_path / name, COLUMNS, [])
        assert read_back(tmp_path / name, COLUMNS, wrote).sums.requests == 0
    assert pq.read_table(tmp_path / "a.parquet").schema == schema_of(COLUMNS)
    assert (tmp_path / "a.csv").read_text() == "n,text,list,money,at,flag,day\n"


@pytest.mark.parametrize("write", [write_parquet, write_csv])
def test_a_disk_that_refuses_says_so_as_other_files_do(write: Any) -> None:
    with pytest.raises(OSError, match=r"No space left on device: '/dev/full'") as refused:
        write(Path("/dev/full"), COLUMNS, batches_of(some_rows(2_000), 100))
    assert refused.value.errno == 28


@pytest.mark.parametrize("wrong", [ExportFailed("no"), OSError(5, "gone"), KeyboardInterrupt()])
def test_what_goes_wrong_while_rows_are_read_comes_out_as_it_is(
    tmp_path: Path, wrong: BaseException
) -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        yield from batches_of(some_rows(20_000), 5_000)
        raise wrong

    for write in (write_parquet, write_csv):
        with pytest.raises(type(wrong)) as raised:
            write(tmp_path / "file", COLUMNS, rows())
        assert raised.value is wrong


ENDLESS = """
from pathlib import Path
from ledger.export.parquet import write_parquet
from tests.ledger.test_files import COLUMNS, batches_of, some_rows

def endless():
    (batch,) = batches_of(some_rows(10_000), 10_000)
    while True:
        yield batch

write_parquet(Path("file"), COLUMNS, endless(), lambda rows: print(rows, flush=True))
"""


def has(process: Process, words: str) -> bool:
    return words in process.output()


def test_ctrl_c_while_a_file_is_written_is_a_keyboard_interrupt(tmp_path: Path) -> None:
    # It comes to Python or to DuckDB, whichever is at work.
    for log in (tmp_path / f"{run}.log" for run in range(3)):
        process = Process((sys.executable, "-c", ENDLESS), log, tmp_path)
        try:
            wait_until("rows are written", partial(has, process, "100000\n"))
            process.signal(signal.SIGINT)
            assert process.popen.wait(60) == -signal.SIGINT
        finally:
            process.stop()
        assert process.output().endswith("\nKeyboardInterrupt\n")


def as_older_versions_wrote(directory: Path) -> None:
    """Write the Parquet files of the export in `directory` as pyarrow did until December 2026."""
    manifest = read_manifest(directory)
    for file in manifest.files:
        with pq.ParquetFile(directory / file.name) as made:
            rows = made.read()
        pq.write_table(
            rows,
            directory / file.name,
            row_group_size=100_000,
            version="2.6",
            compression="zstd",
            compression_level=3,
            store_schema=False,
        )
    files = [describe(directory / file.name, file.rows) for file in manifest.files]
    assert files != manifest.files
    older = msgspec.structs.replace(manifest, files=files)
    (directory / MANIFEST).write_bytes(older.encode())


def test_exports_of_older_versions_still_verify_and_are_read_beside_new_ones(books: Books) -> None:
    fill(books)
    close(books)
    books.add(*life("r-new", at(900), "key-1"))
    for kind in ("parquet", "archive"):
        done = export_month(books.ledger, MONTH, books.exports, kind=kind)
        as_older_versions_wrote(done.directory)
        (verified,) = verify(done.directory, done.manifest.root)
        assert verified.findings == []
        assert verified.root == done.manifest.root is not None
        if kind == "archive":
            assert verified.events == done.manifest.files[0].rows > 0
        with books.ledger.read() as read:
            older = read_manifest(done.directory)
            assert check_export(read, done.directory, older).differences == []
    export_month(books.ledger, NEXT, books.exports)
    for view, counted in (("exported_requests", "count(*)"), ("exported_bill", "sum(requests)")):
        found = run_query(
            books.ledger,
            books.exports,
            f"SELECT month, ({counted})::BIGINT FROM {view} GROUP BY ALL ORDER BY ALL",
        )
        assert [month for month, _ in found.rows] == [MONTH, NEXT]
        assert found.rows[1][1] == 1 < found.rows[0][1]
    # The rows are the same, and so is what they add up to: only the bytes are others.
    again = export_month(books.ledger, MONTH, books.exports)
    assert again.change == "replaced"
    assert export_month(books.ledger, MONTH, books.exports).change == "same"
