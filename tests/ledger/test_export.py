"""A month as Parquet: exact, the same bytes again, and held against the ledger."""

import fcntl
import random
import shutil
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ledger.errors import BadQuery, ExportFailed
from ledger.events import BUCKETS
from ledger.export import parquet, sums
from ledger.export.check import check_export
from ledger.export.columns import COUNT, Column, assert_exact, batch_of, schema_of
from ledger.export.manifest import (
    PARQUET,
    Manifest,
    damage,
    exports,
    place_of,
    read_manifest,
)
from ledger.export.month import Exported, export_month
from ledger.export.parquet import write_parquet
from ledger.sql import tables
from tests.support.books import Books
from tests.support.events import (
    START,
    Scribe,
    abandoned,
    accepted,
    after,
    key_issued,
    life,
    price,
    tokens,
)

MONTH = "2026-11"
PRICES = {"uncached_in": "0.5", "cached_in": "0.05", "other_out": "1.250001"}
HUGE = 10**12
"""The largest count that the ledger takes; no float32 holds it, and sums of it strain a double."""


def rows(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return found


def export(books: Books, month: str = MONTH) -> Exported:
    return export_month(books.ledger, month, books.exports)


def test_files_and_manifest_hold_what_the_ledger_holds(books: Books) -> None:
    books.add(key_issued("key-1"), price("p-1", PRICES), *life("r-1"), *life("r-2", after(60)))
    done = export(books)
    assert (done.change, done.directory) == ("new", place_of(books.exports, PARQUET, MONTH))
    first, second = rows(done.directory / "requests.parquet")
    assert (first["request_id"], second["request_id"]) == ("r-1", "r-2")
    assert first["accepted_at"] == START
    assert first["ended_event"].endswith(":3")
    assert {name: first[name] for name in BUCKETS} == {
        "uncached_in": 12, "cached_in": 0, "cache_write_in": 0, "reasoning_out": 0, "other_out": 4
    }  # fmt: skip
    (line,) = rows(done.directory / "bill.parquet")
    assert (line["requests"], line["day"]) == (2, START.date())
    # 24 × 0.5 and 8 × 1.250001 per million
    assert line["cost"] == Decimal("0.000022000008")
    manifest = read_manifest(done.directory)
    assert manifest == done.manifest
    assert (manifest.requests, manifest.open, manifest.prices) == (2, 0, ["p-1"])
    assert manifest.tokens["uncached_in"] == 24
    assert manifest.cost == {"USD": "0.000022000008"}
    assert list(manifest.position.values()) == [{"requests": 6}]
    assert damage(done.directory, manifest) == []


def test_a_second_run_gives_the_same_bytes(books: Books) -> None:
    books.add(price("p-1", PRICES), *life("r-1"))
    done = export(books)
    first = {path.name: path.read_bytes() for path in done.directory.iterdir()}
    assert export(books).change == "same"
    shutil.rmtree(done.directory)
    assert export(books).change == "new"
    assert {path.name: path.read_bytes() for path in done.directory.iterdir()} == first


@pytest.mark.parametrize("seed", range(3))
def test_bytes_do_not_depend_on_arrival_or_on_how_rows_are_cut(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    scribe = Scribe()
    events = scribe.write_all(price("p-1", PRICES))
    for n in range(20):
        at = START + timedelta(hours=7 * n)
        events += scribe.write_all(*life(f"r-{n:02}", at, f"key-{n % 3}"))
    adopters = [Scribe(f"/runner/test/{n}") for n in (2, 1)]
    # Two adopters wrote the same fact; which of them the ledger hears first is chance.
    events += [adopter.write(abandoned("r-lost")) for adopter in adopters]
    found = []
    for name, shuffled in (("plain", False), ("shuffled", True)):
        books = Books(tmp_path / name)
        order = list(events)
        if shuffled:
            random.Random(seed).shuffle(order)
            monkeypatch.setattr(sums, "BATCH_ROWS", 3)
        for event in order:
            books.write([event])
        done = export(books)
        found.append({path.name: path.read_bytes() for path in done.directory.iterdir()})
        books.ledger.close()
    assert found[0] == found[1]


def test_row_groups_are_cut_by_count_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "GROUP_ROWS", 10)
    columns = [Column("n", COUNT, "a number")]
    files = []
    for size in (1, 4, 10, 33):
        path = tmp_path / f"{size}.parquet"
        batches = (
            batch_of(columns, {"n": list(range(start, min(start + size, 33)))})
            for start in range(0, 33, size)
        )
        told: list[int] = []
        assert write_parquet(path, columns, batches, told.append).rows == 33
        assert told == [10, 20, 30, 33]
        groups = pq.read_metadata(path)
        assert [groups.row_group(n).num_rows for n in range(4)] == [10, 10, 10, 3]
        files.append(path.read_bytes())
    assert len(set(files)) == 1


def test_unknown_is_null_and_zero_is_zero(books: Books) -> None:
    books.add(*life("r-1", usage=tokens(None, 3, None), basis="counted"))
    books.add(*life("r-2", usage=tokens(0, 0, 0)))
    done = export(books)
    unknown, zero = rows(done.directory / "requests.parquet")
    assert (unknown["uncached_in"], unknown["cached_in"], unknown["other_out"]) == (None, None, 3)
    assert (zero["uncached_in"], zero["cached_in"], zero["other_out"]) == (0, 0, 0)
    counted, reported = rows(done.directory / "bill.parquet")
    assert (counted["uncached_in"], reported["uncached_in"]) == (None, 0)
    assert done.manifest.known["uncached_in"] == 1


def test_counts_beyond_a_float_come_back_exactly(books: Books) -> None:
    for n in range(3):
        books.add(*life(f"r-{n}", usage=tokens(HUGE - 1, HUGE, 1)))
    done = export(books)
    assert done.manifest.tokens["uncached_in"] == 3 * (HUGE - 1)
    with duckdb.connect() as connection:
        answer = connection.execute(
            "SELECT sum(uncached_in)::HUGEINT FROM read_parquet(?)",
            [str(done.directory / "requests.parquet")],
        ).fetchone()
    assert answer == (3 * (HUGE - 1),)


def test_no_float_column_and_exact_types_in_any_file(books: Books) -> None:
    books.add(price("p-1", PRICES), *life("r-1"))
    done = export(books)
    for path in done.directory.glob("*.parquet"):
        schema = pq.read_schema(path)
        assert_exact(schema)
        assert {str(schema.field(name).type) for name in BUCKETS} == {"int64"}
    assert str(pq.read_schema(done.directory / "bill.parquet").field("cost").type) == (
        "decimal128(38, 12)"
    )
    with pytest.raises(AssertionError, match="exact decimals"):
        assert_exact(pa.schema([pa.field("cost", pa.float64())]))


def test_a_month_is_half_open_and_utc(books: Books) -> None:
    first, last = (datetime(2026, month, 1, tzinfo=UTC) for month in (11, 12))
    tick = timedelta(microseconds=1)
    for name, at in (("a", first - tick), ("b", first), ("c", last - tick), ("d", last)):
        books.add(*life(f"r-{name}", at))
    done = export(books)
    ids = [row["request_id"] for row in rows(done.directory / "requests.parquet")]
    assert ids == ["r-b", "r-c"]


def test_open_requests_are_counted_but_in_no_file(books: Books) -> None:
    books.add(*life("r-1"), accepted("r-2"))
    done = export(books)
    assert len(rows(done.directory / "requests.parquet")) == 1
    assert (done.manifest.requests, done.manifest.open) == (1, 1)


def test_an_empty_month_is_exported_empty(books: Books) -> None:
    done = export(books)
    assert rows(done.directory / "requests.parquet") == []
    assert rows(done.directory / "bill.parquet") == []
    assert (done.manifest.requests, done.manifest.cost) == (0, {})


def test_what_has_no_price_has_no_cost(books: Books) -> None:
    books.add(price("p-1", {"uncached_in": "1"}), *life("r-1"))
    done = export(books)
    bare, priced = rows(done.directory / "bill.parquet")
    assert (priced["cost"], priced["unpriced"]) == (Decimal("0.000012"), [])
    assert (bare["cost"], bare["unpriced"], bare["other_out"]) == (None, ["other_out"], 4)
    assert (done.manifest.cost, done.manifest.unpriced) == ({"USD": "0.000012"}, 1)


def test_names_are_in_no_file(books: Books) -> None:
    books.add(key_issued("key-1"), *life("r-1"))
    books.name("key-1", "Ada Lovelace")
    done = export(books)
    for path in done.directory.iterdir():
        assert b"Lovelace" not in path.read_bytes()


def test_progress_counts_rows(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "GROUP_ROWS", 2)
    for n in range(5):
        books.add(*life(f"r-{n}"))
    seen: list[tuple[int, int]] = []
    export_month(
        books.ledger, MONTH, books.exports, progress=lambda done, total: seen.append((done, total))
    )
    assert seen == [(2, 5), (4, 5), (5, 5)]


def test_what_came_later_replaces_the_export_whole(books: Books) -> None:
    books.add(*life("r-1"))
    old = export(books).manifest
    books.add(*life("r-2"))
    with books.ledger.read() as read:
        checked = check_export(read, place_of(books.exports, PARQUET, MONTH), old)
    assert (checked.differences, checked.newer) == ([], 1)
    done = export(books)
    assert (done.change, done.manifest.requests) == ("replaced", 2)
    assert sorted(path.name for path in books.exports.iterdir()) == [".lock", "parquet"]
    assert [path.name for path in (books.exports / "parquet").iterdir()] == [
        f"billing_period={MONTH}"
    ]


def test_a_changed_file_is_named(books: Books) -> None:
    books.add(*life("r-1"))
    done = export(books)
    path = done.directory / "requests.parquet"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    (found,) = damage(done.directory, done.manifest)
    assert str(path) in found and "changed" in found
    path.unlink()
    (found,) = damage(done.directory, done.manifest)
    assert "cannot be read" in found
    assert export(books).change == "replaced"
    assert damage(done.directory, done.manifest) == []


def tamper(books: Books, **values: int) -> None:
    with books.ledger.write() as tx:
        tx.execute(tables.usage_hourly.update().values(**values))


def test_a_roll_up_that_does_not_add_up_is_not_exported(books: Books) -> None:
    books.add(*life("r-1"))
    tamper(books, other_out=999)
    with pytest.raises(ExportFailed, match=r"999.*tollbook audit"):
        export(books)
    assert [path.name for path in books.exports.iterdir()] == [".lock"]


def test_a_ledger_that_changed_since_is_a_difference(books: Books) -> None:
    books.add(*life("r-1"))
    done = export(books)
    tamper(books, other_out=5)
    with books.ledger.write() as tx:
        tx.execute(tables.requests.update().values(other_out=5))
    with books.ledger.read() as read:
        checked = check_export(read, done.directory, done.manifest)
    assert checked.newer == 0
    assert checked.differences == [
        "the export of 2026-11 says other_out 4, and the ledger has 5 of the same requests"
    ]


def test_two_exports_at_once_are_refused(books: Books) -> None:
    books.exports.mkdir()
    with (books.exports / ".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ExportFailed, match="another export"):
            export(books)
    export(books)


def test_what_a_killed_export_left_is_cleared_away(books: Books) -> None:
    left = books.exports / ".writing-dead"
    left.mkdir(parents=True)
    (left / "manifest.json").write_text("half")
    export(books)
    assert not left.exists()
    assert [manifest.month for _, manifest in exports(books.exports)] == [MONTH]


def test_a_strangers_directory_is_left_alone(books: Books) -> None:
    place = place_of(books.exports, PARQUET, MONTH)
    place.mkdir(parents=True)
    (place / "thesis.txt").write_text("mine")
    with pytest.raises(ExportFailed, match="no export"):
        export(books)
    assert (place / "thesis.txt").read_text() == "mine"


def test_no_month_is_refused(books: Books) -> None:
    with pytest.raises(BadQuery, match="2026-11"):
        export(books, "November")
    assert not books.exports.exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("not json", "not a manifest"),
        ("{}", "not a manifest"),
        ("\udcff", "not a manifest"),
        (None, "cannot be read"),
    ],
)
def test_a_broken_manifest_is_named(tmp_path: Path, text: str | None, words: str) -> None:
    if text is not None:
        (tmp_path / "manifest.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ExportFailed, match=words):
        read_manifest(tmp_path)


def test_a_newer_manifest_asks_for_an_upgrade(books: Books) -> None:
    done = export(books)
    path = done.directory / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b'"format": 3', b'"format": 4'))
    with pytest.raises(ExportFailed, match="upgrade"):
        list(exports(books.exports))


def test_manifest_bytes_come_back(books: Books) -> None:
    manifest: Manifest = export(books).manifest
    assert manifest.encode().endswith(b"}\n")
    assert schema_of([Column("n", COUNT, "a number")]).names == ["n"]
