"""FOCUS 1.2, 1.3 and 1.4: the right rows, exact, the same bytes again, and rules that bite."""

import json
import random
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

from ledger.amounts import PICO_PER_UNIT
from ledger.clock import from_us
from ledger.errors import BadQuery, ExportFailed
from ledger.events import BooksSet, PriceEntry, PriceListed, ProjectSet
from ledger.export import formats
from ledger.export.cells import Cells
from ledger.export.columns import (
    COUNT,
    INSTANT,
    LIST,
    MONEY,
    TEXT,
    Column,
    assert_exact,
    batch_of,
)
from ledger.export.csv import write_csv
from ledger.export.focus import rows as focus_rows
from ledger.export.focus.columns import OURS, VERSIONS, file_columns, profile
from ledger.export.focus.lines import holdable
from ledger.export.manifest import FOCUS, LeftOut, place_of
from ledger.export.month import Exported, export_month
from ledger.sql.charges import charges
from ledger.sql.names import set_name
from ledger.sql.replay import load_book
from ledger.zones import month_span
from tests.ledger.focus_world import (
    FIRST,
    MONTH,
    NEXT,
    at,
    close,
    closing,
    come_late,
    exports_of,
    fill,
    registry,
    told,
    usage,
)
from tests.ledger.ledgers import Feeder, Make, in_files
from tests.support.books import Books
from tests.support.events import Scribe, corrected, life, price, tokens

KINDS = tuple(f"focus-{version}" for version in VERSIONS)
CSV = Path(FOCUS).with_suffix(".csv").name


def export(books: Books, kind: str = "focus-1.2", month: str = MONTH) -> Exported:
    return export_month(books.ledger, month, books.exports, kind=kind)


def rows(done: Exported) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(done.directory / FOCUS).to_pylist()
    return found


def bytes_of(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Books]:
    """The world on SQLite, for what no database can change."""
    made = Books(tmp_path / "small")
    fill(made)
    yield made
    made.ledger.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exports_of(tmp_path_factory.mktemp("focus"))


@pytest.mark.parametrize(("version", "count"), [("1.2", 57), ("1.3", 65), ("1.4", 65)])
def test_each_version_has_its_columns_and_ours_behind_them(version: str, count: int) -> None:
    names = [column.name for column in profile(version)]
    assert len(set(names)) == count and names == sorted(names)
    assert [column.name for column in file_columns(version)][count:] == [c.name for c in OURS]
    assert all(column.name.startswith("x_") for column in OURS)
    assert ("ProviderName" in names, "ServiceProviderName" in names) == (
        version != "1.4",
        version != "1.2",
    )
    assert ("InvoiceDetailId" in names) == (version == "1.4")


def test_no_version_but_these() -> None:
    with pytest.raises(BadQuery, match=r"1\.2, 1\.3, 1\.4"):
        profile("1.1")


def test_rows_are_the_charges_of_the_bill(books: Books) -> None:
    fill(books)
    done = export(books)
    with books.ledger.read() as read:
        there = [c for c in charges(read, load_book(read), MONTH) if c.cost_pico is not None]
    found = rows(done)
    assert [(row["x_KeyId"], row["x_TokenBucket"], row["BilledCost"]) for row in found] == [
        (c.key_id, c.bucket, Decimal(c.cost_pico or 0) / PICO_PER_UNIT) for c in there
    ]
    sums: dict[str, Decimal] = {}
    for row in found:
        sums[row["BillingCurrency"]] = sums.get(row["BillingCurrency"], 0) + row["BilledCost"]
        assert row["ListUnitPrice"] * row["PricingQuantity"] == row["ListCost"]
        assert row["ContractedUnitPrice"] * row["PricingQuantity"] == row["ContractedCost"]
    assert {name: Decimal(total) for name, total in done.manifest.cost.items()} == sums
    # The output of a model with a price for input alone, and one request of a model without any.
    assert done.manifest.left_out == LeftOut(unpriced_tokens=5422, unknown_requests=1)


def test_one_row_says_all_that_is_known_of_it(small: Books) -> None:
    found = rows(export(small, "focus-1.4"))
    (row,) = (
        row
        for row in found
        if row["x_TokenBucket"] == "other_out" and row["ChargePeriodStart"] == at(2)
    )
    cost, usual = Decimal("0.00000078894"), Decimal("0.0000009")
    assert {name: value for name, value in row.items() if value is not None} == {
        "BilledCost": cost,
        "BillingAccountId": "org-1",
        "BillingAccountName": "org-1",
        "BillingAccountType": "Organization",
        "BillingCurrency": "EUR",
        "BillingPeriodEnd": at(720),
        "BillingPeriodStart": FIRST,
        "ChargeCategory": "Usage",
        "ChargeDescription": "Output Tokens of m",
        "ChargeFrequency": "Usage-Based",
        "ChargePeriodEnd": at(3),
        "ChargePeriodStart": at(2),
        "ConsumedQuantity": 1,
        "ConsumedUnit": "Tokens",
        "ContractedCost": cost,
        "ContractedUnitPrice": Decimal("0.78894"),
        "EffectiveCost": cost,
        "HostProviderName": "Lab GmbH",
        "InvoiceIssuerName": "Lab GmbH",
        "ListCost": usual,
        "ListUnitPrice": Decimal("0.9"),
        "PricingCategory": "Standard",
        "PricingCurrency": "EUR",
        "PricingCurrencyContractedUnitPrice": Decimal("0.78894"),
        "PricingCurrencyEffectiveCost": cost,
        "PricingCurrencyListUnitPrice": Decimal("0.9"),
        "PricingQuantity": Decimal("0.000001"),
        "PricingUnit": "1000000 Tokens",
        "ResourceId": "key-2",
        "ResourceType": "API Key",
        "ServiceCategory": "AI and Machine Learning",
        "ServiceName": "Tollbook",
        "ServiceProviderName": "Lab GmbH",
        "ServiceSubcategory": "Generative AI",
        "SkuId": "m/other_out",
        "SkuMeter": "Output Tokens",
        "SkuPriceDetails": '{"x_PriceBand":"night","x_TokenType":"other_out"}',
        "SkuPriceId": "m/other_out/night",
        "SubAccountId": "proj-2",
        "SubAccountName": "proj-2",
        "SubAccountType": "Project",
        "Tags": '{"env":"lab","team":"team, 2"}',
        "x_DiscountId": "off-2",
        "x_EventCount": 1,
        "x_KeyId": "key-2",
        "x_Model": "m",
        "x_PriceBand": "night",
        "x_PriceId": "price-m",
        "x_PriceVersion": 1,
        "x_TokenBucket": "other_out",
        "x_UsageBasis": "reported",
    }


def test_units_are_what_a_price_was_set_for(small: Books) -> None:
    found = rows(export(small))
    units = {
        (row["x_Model"], row["x_TokenBucket"]): (row["PricingUnit"], row["ConsumedUnit"])
        for row in found
    }
    assert units["m", "uncached_in"] == ("1000000 Tokens", "Tokens")
    assert units["k2", "uncached_in"] == ("1000 Tokens", "Tokens")
    assert units["m", "request"] == ("Requests", "Requests")
    assert units["m", "gpu_second"] == ("Seconds", "Seconds")
    assert units["m", "failed_attempt"] == ("Attempts", "Attempts")
    gpu = next(row for row in found if row["x_TokenBucket"] == "gpu_second")
    # 1,500,000 µs less the gateway's own 1,000, at 0.002 a second.
    assert (gpu["PricingQuantity"], gpu["BilledCost"]) == (Decimal("1.499"), Decimal("0.002998"))


def test_an_hour_in_which_a_price_begins_has_a_row_for_each(small: Books) -> None:
    small.add(*life("r-a", at(100.2), "key-1"), *life("r-b", at(100.8), "key-1"))
    found = [
        (row["x_PriceId"], row["ContractedUnitPrice"], row["ConsumedQuantity"])
        for row in rows(export(small))
        if row["ChargePeriodStart"] == at(100) and row["x_TokenBucket"] == "uncached_in"
    ]
    assert [one for one in found if one[2] == 12] == [
        ("price-m", Decimal("0.5"), 12),
        ("price-m-2", Decimal("0.7"), 12),
    ]


def test_late_and_corrected_use_are_rows_that_name_what_they_correct(files: Path) -> None:
    path = place_of(files, "focus-1.2", NEXT) / FOCUS
    found = pq.read_table(path).to_pylist()
    assert {row["ChargeClass"] for row in found} == {"Correction"}
    assert {row["x_CorrectsEvent"].rpartition(":")[0] for row in found} <= {
        "/gateway/gone/0193a0000000700080000000000000b2",
        "/gateway/test/0193a0000000700080000000000000a1",
    }
    assert {row["ChargePeriodStart"] for row in found} == {at(300), at(301)}
    taken, given = (
        sum(row["ConsumedQuantity"] for row in found if row["x_UsageBasis"] == basis)
        for basis in ("running", "reported")
    )
    assert taken < 0 < given


def test_a_correction_within_the_month_has_no_class(small: Books) -> None:
    name = "/gateway/test/0193a0000000700080000000000000a1:3"
    small.add(corrected("r-00", tokens(7, 0), name, at(400)))
    found = [row for row in rows(export(small)) if row["x_CorrectsEvent"] is not None]
    assert found and {row["ChargeClass"] for row in found} == {None}
    inputs = sum(r["ConsumedQuantity"] for r in found if r["x_TokenBucket"] == "uncached_in")
    assert inputs == 7 - 1000


def test_without_a_project_somebody_is_billed_none_the_less(small: Books) -> None:
    found = {row["x_KeyId"]: row for row in rows(export(small))}
    assert found["key-3"]["BillingAccountId"] == "unassigned"
    assert [found["key-3"][name] for name in ("SubAccountId", "SubAccountType", "Tags")] == [
        None,
        None,
        None,
    ]


@pytest.mark.parametrize("kind", ["parquet", "csv", *KINDS, "archive"])
def test_a_second_run_gives_the_same_bytes_and_leaves_other_formats_alone(
    small: Books, kind: str
) -> None:
    close(small)
    export(small, "parquet" if kind != "parquet" else "csv")
    other = bytes_of(small.exports)
    first = export(small, kind)
    assert first.change == "new"
    made = bytes_of(first.directory)
    assert export(small, kind).change == "same"
    for path in first.directory.iterdir():
        path.unlink()
    first.directory.rmdir()
    assert export(small, kind).change == "new"
    assert bytes_of(first.directory) == made
    assert {name: there for name, there in bytes_of(small.exports).items() if name in other} == (
        other
    )


def test_a_closed_month_keeps_its_bytes_whatever_comes(books: Books) -> None:
    fill(books)
    close(books)
    made = {kind: bytes_of(export(books, kind).directory) for kind in ("parquet", "csv", *KINDS)}
    books.write(come_late())
    books.add(*life("r-after", at(10), "key-1"), corrected("r-01", None, "x:1", at(800)))
    tagged = ProjectSet(
        project_id="proj-1", organization_id="org-1", base=1, version=2, tags={"team": "another"}
    )
    books.add(told(tagged, "proj-1/v2", at(800)))
    for kind, before in made.items():
        done = export(books, kind)
        assert (done.change, bytes_of(done.directory)) == ("same", before), kind
    manifest = done.manifest
    assert (manifest.period, manifest.requests, manifest.open) == ("closed", 63, 1)
    assert manifest.root is not None and len(manifest.root) == 64


def test_an_open_month_says_so_and_a_closed_one_says_its_root(small: Books) -> None:
    done = export(small)
    assert (done.manifest.period, done.manifest.root, done.manifest.cut) == ("open", None, None)
    assert {row["x_LedgerRoot"] for row in rows(done)} == {None}
    told = json.loads((export(small, "focus-1.3").directory / "metadata.json").read_bytes())
    assert told["Recency"]["DatasetInstanceComplete"] is False
    close(small)
    done = export(small)
    assert (done.change, done.manifest.period) == ("replaced", "closed")
    assert {row["x_LedgerRoot"] for row in rows(done)} == {done.manifest.root}
    told = json.loads((export(small, "focus-1.3").directory / "metadata.json").read_bytes())
    assert told["Recency"]["DatasetInstanceComplete"] is True
    assert told["Recency"]["TimeSectors"][0]["TimeSectorStart"] == "2026-10-31T23:00:00Z"
    defined = {one["ColumnName"]: one for one in told["Schema"]["ColumnDefinition"]}
    assert defined["BilledCost"]["NumberScale"] == 12
    assert defined["ProviderName"]["Deprecated"] is True


def test_bytes_depend_on_no_arrival_no_writer_and_no_database(
    tmp_path: Path, make_on_postgres: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order into SQLite by one writer; shuffled into SQLite by two; shuffled into Postgres."""
    scribe, other = Scribe(), Scribe("/gateway/two/0193a0000000700080000000000000c3")
    drafts, book = usage(other.source), scribe.write_all(*registry())
    # Thirty requests of four events each by the one gateway, the rest by the other.
    events = scribe.write_all(*drafts[:120]) + other.write_all(*drafts[120:])
    made = []
    for name, make, writers in (
        ("plain", in_files, 1),
        ("two", in_files, 2),
        ("postgres", make_on_postgres, 2),
    ):
        with make(tmp_path, name) as ledger:
            feeders = [Feeder(ledger, f"log-{n}") for n in range(writers)]
            feeders[0].feed(book)
            order = list(events)
            if name != "plain":
                random.Random(name).shuffle(order)
                monkeypatch.setattr(focus_rows, "BATCH_ROWS", 7)
            for n in range(0, len(order), 11):
                feeders[n % writers].feed(order[n : n + 11])
            last = closing(ledger, [scribe.source, other.source])
            feeders[0].feed(Scribe("/cli/test/0193a0000000700080000000000000d4").write_all(last))
            out = tmp_path / f"{name}-out"
            for kind in ("parquet", "csv", "focus-1.2", "focus-1.4", "archive"):
                export_month(ledger, MONTH, out, kind=kind)
            made.append(bytes_of(out))
    assert len(made[0]) == 3 + 3 + 4 + 4 + 2
    assert made[0] == made[1] == made[2]


def test_names_are_in_no_file_and_erasing_one_changes_none(small: Books) -> None:
    close(small)
    with small.ledger.write() as tx:
        set_name(tx, "key", "key-1", "Ada Lovelace")
        set_name(tx, "project", "proj-1", "Ada Lovelace")
        set_name(tx, "organization", "org-1", "Ada Lovelace")
    made = {kind: bytes_of(export(small, kind).directory) for kind in ("csv", *KINDS)}
    assert not any(b"Lovelace" in text for each in made.values() for text in each.values())


def test_a_currency_that_is_none_is_refused_with_words(small: Books) -> None:
    entry = PriceEntry(
        price_id="credits",
        model="m",
        currency="CRD",
        effective_from=at(0),
        per_unit={"uncached_in": "1"},
    )
    small.add(told(PriceListed(base=5, entries=[entry], rerate="credits"), "credits", at(0)))
    with pytest.raises(ExportFailed, match=r"CurrencyFormat-A-001.*BillingCurrency"):
        export(small)
    assert [path.name for path in small.exports.iterdir()] == [".lock"]
    assert export(small, "parquet").change == "new"


def test_a_broken_run_leaves_the_files_of_the_run_before(
    small: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = export(small)
    before = bytes_of(small.exports)
    small.add(*life("r-new", at(20), "key-1"))

    def full(*_: Any, **__: Any) -> Cells:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(formats, "write_csv", full)
        with pytest.raises(OSError, match="No space left"):
            export(small)
    assert bytes_of(small.exports) == before
    assert sorted(path.name for path in small.exports.iterdir()) == [".lock", "focus-1.2"]
    assert export(small).change == "replaced" and done.directory.is_dir()


def test_what_would_cost_otherwise_than_the_bill_is_not_exported(
    small: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "holdable", lambda *them: list(holdable(*them))[1:])
    with pytest.raises(ExportFailed, match="the bill says"):
        export(small)
    assert [path.name for path in small.exports.iterdir()] == [".lock"]


def test_an_archive_of_an_open_month_is_refused_with_words(small: Books) -> None:
    with pytest.raises(ExportFailed, match=r"is open.*tollbook close 2026-11"):
        export(small, "archive")
    with pytest.raises(BadQuery, match=r"focus-1\.4"):
        export(small, "focus-9")


@pytest.mark.parametrize("zone", ["Asia/Kolkata", "Australia/Lord_Howe", "America/St_Johns"])
def test_hours_are_cut_where_a_month_begins_within_one(tmp_path: Path, zone: str) -> None:
    books = Books(tmp_path)
    first, after = month_span(MONTH, zone)
    early = from_us(first - 10**12)
    books.add(
        told(BooksSet(base=0, version=1, zone=zone), "books", early),
        price("p-1", {"uncached_in": "1", "other_out": "2"}, start=early),
        *(life(f"r-{n}", from_us(edge + n * 60_000_000))[k] for n, edge in
          ((-1, first), (1, first), (-2, after), (2, after)) for k in range(4)),
    )  # fmt: skip
    found = rows(export(books, "focus-1.4"))
    assert [row["x_EventCount"] for row in found] == [1, 1, 1, 1]
    assert {row["ChargePeriodStart"] for row in found} >= {from_us(first)}
    assert max(row["ChargePeriodEnd"] for row in found) == from_us(after)
    books.ledger.close()


def test_csv_holds_the_very_same_rows(files: Path) -> None:
    for kind in KINDS:
        for month in (MONTH, NEXT):
            place = place_of(files, kind, month)
            names = ", ".join(column.name for column in file_columns(kind.removeprefix("focus-")))
            with duckdb.connect() as connection:
                connection.execute("SET TimeZone = 'UTC'")
                connection.execute(
                    f"CREATE TABLE p AS SELECT {names} FROM read_parquet(?)", [str(place / FOCUS)]
                )
                connection.execute("CREATE TABLE c AS SELECT * FROM p WHERE false")
                connection.execute(
                    f"INSERT INTO c SELECT {names} FROM read_csv(?, all_varchar = true)",
                    [str(place / CSV)],
                )
                for one, other in (("p", "c"), ("c", "p")):
                    parted = connection.execute(
                        f"SELECT count(*) FROM (SELECT * FROM {one} EXCEPT ALL FROM {other})"
                    ).fetchone()
                    assert parted == (0,), (kind, month, one)


def test_csv_tells_null_from_empty_and_writes_no_exponent(tmp_path: Path) -> None:
    columns = [
        Column("t", TEXT, ""), Column("m", MONEY, ""), Column("n", COUNT, ""),
        Column("l", LIST, ""), Column("i", INSTANT, ""),
    ]  # fmt: skip
    values: dict[str, list[Any]] = {
        "t": ["", None, 'a "b", c', "two\nlines", "plain"],
        "m": ["0.000000000001", "-3000", None, "12345678901234567890.5", "0"],
        "n": [1, None, 0, -5, 2**62],
        "l": [["a", "b"], [], None, ["c"], []],
        "i": [FIRST, None, at(1), FIRST, FIRST],
    }
    path = tmp_path / "file.csv"
    assert write_csv(path, columns, [batch_of(columns, values)]).rows == 5
    assert path.read_text() == (
        "t,m,n,l,i\n"
        '"",0.000000000001,1,a b,2026-10-31T23:00:00.000000Z\n'
        ',-3000.0,,"",\n'
        '"a ""b"", c",,0,,2026-11-01T00:00:00.000000Z\n'
        '"two\nlines",12345678901234567890.5,-5,c,2026-10-31T23:00:00.000000Z\n'
        'plain,0.0,4611686018427387904,"",2026-10-31T23:00:00.000000Z\n'
    )


def test_money_takes_no_way_through_a_float() -> None:
    amounts = [0, 1, -1, None, 10**37 + 7, -(10**37) - 7]
    made = focus_rows.money_array(amounts)
    assert [None if cell is None else int(f"{cell:f}".replace(".", "")) for cell in
            made.to_pylist()] == amounts  # fmt: skip
    assert focus_rows.money_array([5, 7]).null_count == 0


def test_no_column_is_a_float_and_money_is_exact(files: Path) -> None:
    for kind in KINDS:
        schema = pq.read_schema(place_of(files, kind, MONTH) / FOCUS)
        assert_exact(schema)
        assert str(schema.field("BilledCost").type) == "decimal128(38, 12)"
        assert str(schema.field("ChargePeriodStart").type) == "timestamp[us, tz=UTC]"
