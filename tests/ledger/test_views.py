"""The stable views: that each holds what it says, in its grain and units, and that none changes."""

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest

from ledger.errors import ExportFailed, LedgerUnavailable
from ledger.events import (
    BUCKETS,
    CreditPosted,
    Draft,
    KeyAssigned,
    OrganizationSet,
    PriceListed,
    ProjectSet,
)
from ledger.events.money import Band, Posting, PriceEntry
from ledger.export import columns as c
from ledger.export.formats import WRITERS
from ledger.export.month import export_month
from ledger.export.query import run_query, save_views
from ledger.export.views import VIEWS, View
from ledger.sql.session import open_ledger
from tests.support.books import Books
from tests.support.events import (
    SOURCE,
    START,
    abandoned,
    accepted,
    after,
    attempted,
    corrected,
    counted,
    finished,
    key_issued,
    life,
    mark,
    period_closed,
    price,
    tokens,
)

GOLDEN = Path(__file__).parent / "views.json"

BEFORE = after(-40 * 86_400)
"""In September, before the month that is closed and that in which all is used."""


def money() -> Iterator[Draft]:
    """Prices with a band, a charge and a discount, accounts, and movements of money."""
    yield price("p-1", {"uncached_in": "0.5", "cached_in": "0.05", "other_out": "1.25"}, base=0)
    night = Band(
        name="night", days=[1, 2, 3], start=0, end=11 * 60 + 30, per_unit={"other_out": "0.75"}
    )
    dear = PriceEntry(
        price_id="p-2",
        model="m*",
        currency="USD",
        effective_from=START,
        per_unit=dict.fromkeys(BUCKETS, "2") | {"request": "0.01"},
        scope="project/proj-1",
        zone="Europe/Zurich",
        bands=[night],
    )
    less = PriceEntry(
        price_id="p-3",
        model="m",
        currency="USD",
        effective_from=START,
        scope="key/key-2",
        discount="12.5",
    )
    listed = PriceListed(base=1, entries=[dear, less], rerate="they begin at once")
    yield Draft("prices/1", "prices", START, listed)
    organization = OrganizationSet(organization_id="org-1", base=0, version=1)
    yield Draft("org-1/1", "org-1", BEFORE, organization)
    project = ProjectSet(
        project_id="proj-1", organization_id="org-1", base=0, version=1, tags={"team": "ml"}
    )
    yield Draft("proj-1/1", "proj-1", BEFORE, project)
    for number, project_id in enumerate(("proj-1", None)):
        moved = KeyAssigned(key_id="key-1", project_id=project_id, base=number, version=number + 1)
        yield Draft(f"key-1/assigned/{number}", "key-1", after(300 * number), moved)
    paid = CreditPosted(
        entry_id="entry-1",
        kind="top_up",
        postings=[
            Posting(account="project/proj-1", currency="USD", amount="25.00"),
            Posting(account="cash", currency="USD", amount="-25.00"),
        ],
        reason="invoice 7 was paid",
        effective_from=START,
    )
    yield Draft("entry-1", "entry-1", START, paid)


@pytest.fixture
def books(books: Books) -> Books:
    """Everything that any view shows, in November, and an October that is closed."""
    books.add(key_issued("key-1"), key_issued("key-2"), *money())
    books.add(period_closed({}, "2026-10", prices=3, at=START))
    unknown = {"usage": tokens(None, None, None), "basis": "none"}
    books.add(*life("r-1"), *life("r-2", after(60), "key-2"), accepted("r-3"))
    books.add(*life("r-4", after(400)), *life("r-5", after(401), model="other"))
    books.add(*life("r-6", after(7200), "key-2", **unknown), *life("r-9", after(26 * 3600)))
    books.add(
        accepted("r-7"),
        attempted("r-7", 1),
        attempted("r-7", 2, after(1), backend_id="b-2", after="connect refused"),
        finished("r-7", attempts=2, backend_id="b-2"),
        accepted("r-8", after(30)),
        abandoned("r-8", after(30)),
    )
    books.add(mark(SOURCE, 1, START, {}), counted("b-1", 1, START, {"vllm:prompt_tokens": 24}))
    books.add(corrected("r-1", tokens(10, 4), f"{SOURCE}:3", after(9000)))
    books.name("key-1", "ada")
    return books


@pytest.fixture
def exported(books: Books) -> Books:
    for kind in WRITERS:
        if kind != "archive":
            export_month(books.ledger, "2026-11", books.exports, kind=kind)
    return books


def rows(books: Books, sql: str) -> list[tuple[Any, ...]]:
    return run_query(books.ledger, books.exports, sql).rows


def test_every_view_has_rows_exact_types_and_its_grain(exported: Books) -> None:
    for view in VIEWS:
        found = run_query(exported.ledger, exported.exports, f"SELECT * FROM {view.name}")
        assert found.columns == tuple(column.name for column in view.columns)
        assert list(found.types) == [c.duckdb_type(column) for column in view.columns], view.name
        assert found.rows, f"{view.name} is empty, so this test shows nothing"
        grain = ", ".join(f'"{name}"' for name in view.grain)
        twice = rows(
            exported, f"SELECT {grain}, count(*) FROM {view.name} GROUP BY ALL HAVING count(*) > 1"
        )
        assert view.grain and not twice, f"{view.name}: {twice}"


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
def test_every_view_and_column_says_what_it_means(view: View) -> None:
    assert view.meaning.endswith(".")
    assert set(view.grain) <= {column.name for column in view.columns}
    assert all(column.meaning for column in view.columns)
    if not view.name.startswith("focus_"):
        bare = [one.name for one in view.columns if one.type in (c.COUNT, c.MONEY) and not one.unit]
        assert not bare, "every number says what it counts"


def test_no_view_of_before_has_changed() -> None:
    """Whoever adds a view or a column adds it to the file; nothing there is changed or taken out
    without a new major version."""
    now = {
        view.name: {
            "grain": list(view.grain),
            "columns": {
                column.name: [c.duckdb_type(column), column.unit] for column in view.columns
            },
        }
        for view in VIEWS
    }
    assert now == json.loads(GOLDEN.read_text())


def test_charges_are_quantity_times_price_and_add_up_to_the_bill(books: Books) -> None:
    wrong = rows(books, "SELECT * FROM charges WHERE cost <> quantity * unit_price")
    assert not wrong
    charged = rows(
        books,
        "SELECT month, project_id, key_id, model, sum(cost)::VARCHAR FROM charges "
        "WHERE model = 'm' GROUP BY ALL ORDER BY ALL",
    )
    billed = rows(
        books,
        "SELECT month, project_id, key_id, model, sum(cost)::VARCHAR FROM bill "
        "WHERE model = 'm' GROUP BY ALL ORDER BY ALL",
    )
    assert charged == billed and len(charged) == 3
    tokens_billed = rows(books, f"SELECT {', '.join(f'sum({name})' for name in BUCKETS)} FROM bill")
    by_bucket = dict(
        rows(
            books,
            "SELECT bucket, sum(quantity) FROM charges WHERE quantity_unit = 'tokens' GROUP BY ALL",
        )
    )
    assert [by_bucket.get(name, 0) for name in BUCKETS] == [int(n) for n in tokens_billed[0]]
    (unpriced,) = rows(books, "SELECT count(*), count(cost) FROM charges WHERE model = 'other'")
    assert unpriced[0] > 0 and unpriced[1] == 0, "what has no price has no cost"


def test_rates_tell_bands_scopes_and_discounts(books: Books) -> None:
    found = rows(
        books,
        "SELECT scope, band, days, starts, ends, zone, unit_price FROM rates "
        "WHERE price_id = 'p-2' AND bucket = 'other_out' ORDER BY band NULLS FIRST",
    )
    zone, scope = "Europe/Zurich", "project/proj-1"
    assert found == [
        (scope, None, None, None, None, zone, Decimal("0.000002")),
        (scope, "night", "1,2,3", "00:00", "11:30", zone, Decimal("0.00000075")),
    ]
    (discount,) = rows(
        books, "SELECT bucket, unit_price, discount_percent FROM rates WHERE price_id = 'p-3'"
    )
    assert discount == (None, None, Decimal("12.5"))


def test_accounts_and_movements_are_seen(books: Books) -> None:
    assert rows(books, "SELECT key, project_id, until - since FROM memberships ORDER BY since")[0][
        :2
    ] == ("ada", "proj-1")
    assert rows(books, "SELECT currency, sum(amount) FROM credits GROUP BY ALL") == [("USD", 0)]
    assert rows(books, "SELECT tags->>'$.team' FROM projects") == [("ml",)]
    (closed,) = rows(books, "SELECT month, prices, without FROM periods")
    assert closed == ("2026-10", 3, [])
    (made,) = rows(books, "SELECT request_id, voided, uncached_in FROM corrections")
    assert made == ("r-1", False, 10)


def test_focus_is_read_from_its_files(exported: Books) -> None:
    sql = (
        "SELECT SubAccountId, x_Model, sum(EffectiveCost)::DECIMAL(38,12) FROM focus_{} "
        "GROUP BY ALL ORDER BY ALL"
    )
    charged = rows(
        exported,
        "SELECT project_id, model, sum(cost)::DECIMAL(38,12) FROM charges "
        "WHERE cost IS NOT NULL GROUP BY ALL ORDER BY ALL",
    )
    for version in ("1_2", "1_3", "1_4"):
        assert rows(exported, sql.format(version)) == charged


def test_views_saved_for_other_tools_are_those_of_the_query(books: Books, tmp_path: Path) -> None:
    place = tmp_path / "books.duckdb"
    place.write_text("an older file")
    counts = save_views(books.ledger, books.exports, place)
    assert set(counts) == {view.name for view in VIEWS if not view.of_files}
    with duckdb.connect(str(place), read_only=True) as saved:
        for name, count in counts.items():
            mine = rows(books, f"SELECT * FROM {name} ORDER BY ALL")
            assert len(mine) == count
            theirs = saved.execute(f"SELECT * FROM {name} ORDER BY ALL").fetchall()
            assert len(theirs) == count
        total = saved.execute("SELECT sum(cost) FROM bill").fetchone()
        comments = saved.execute(
            "SELECT comment FROM duckdb_columns() "
            "WHERE table_name = 'bill' AND column_name = 'cost'"
        ).fetchone()
    assert total == rows(books, "SELECT sum(cost) FROM bill")[0]
    assert comments is not None and "[of the currency]" in comments[0]
    assert [path.name for path in tmp_path.glob(".books*")] == []


def test_a_place_that_cannot_be_written_is_named(books: Books, tmp_path: Path) -> None:
    with pytest.raises(ExportFailed, match=r"books\.duckdb cannot be written: .*nothing was saved"):
        save_views(books.ledger, books.exports, tmp_path / "no such folder" / "books.duckdb")


def test_a_save_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    place = tmp_path / "books.duckdb"
    place.write_text("an older file")
    with open_ledger(tmp_path / "ledger.db") as ledger:
        pass
    (tmp_path / "ledger.db").write_bytes(b"no database" * 100)
    with pytest.raises(LedgerUnavailable):
        save_views(ledger, tmp_path / "exports", place)
    assert place.read_text() == "an older file"
    assert [path.name for path in tmp_path.glob(".books*")] == []
