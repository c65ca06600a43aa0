"""The pages about views, the sources for dbt and the analyst's page are what the program says."""

from pathlib import Path
from typing import Any

import duckdb
import pytest
import yaml

from gateway.cli.view_docs import sources_yml, views_page
from ledger.export.manifest import exports
from ledger.export.month import export_month
from ledger.export.views import VIEWS
from ledger.sql.session import open_ledger
from tests.analyst import fill, page
from tests.support.books import Books
from tests.support.processes import REPO

DOCS = REPO / "docs"


def test_the_page_of_views_and_the_sources_are_generated() -> None:
    again = "run `python -m gateway.cli.view_docs` and commit what it writes"
    assert (DOCS / "views.md").read_text() == views_page(), again
    assert (DOCS / "dbt" / "sources.yml").read_text() == sources_yml(), again


def test_the_analysts_page_is_real_output() -> None:
    written = (DOCS / "analyst.md").read_text()
    assert written == page(), "run `python -m tests.analyst` and commit what it writes"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("sources")
    with open_ledger(directory / "ledger.db") as ledger:
        books = Books(directory, ledger)
        fill(books)
        for kind in ("parquet", "focus-1.2", "focus-1.3", "focus-1.4"):
            export_month(ledger, "2026-11", books.exports, kind=kind)
            assert list(exports(books.exports, kind))
    return directory / "exports"


@pytest.mark.parametrize("name", [view.name for view in VIEWS if view.of_files])
def test_the_sources_of_exported_files_can_be_read_as_they_say(exported: Path, name: str) -> None:
    table = tables()["tollbook_exports"][name]
    location = table["meta"]["external_location"]
    where = location.replace("{{ env_var('TOLLBOOK_EXPORTS', 'exports') }}", str(exported))
    assert where != location
    with duckdb.connect() as connection:
        found = connection.execute(f"SELECT * FROM {where}")
        read = [(column[0], str(column[1]).lower()) for column in found.description or ()]
        assert found.fetchall()
    said = [(column["name"], column["data_type"]) for column in table["columns"]]
    assert read[:-1] == said
    assert read[-1][0] == "billing_period"


def test_the_sources_are_all_views_with_their_grain_and_units() -> None:
    found = tables()
    assert set(found["tollbook"]) == {view.name for view in VIEWS if not view.of_files}
    assert set(found["tollbook_exports"]) == {view.name for view in VIEWS if view.of_files}
    cost = next(one for one in found["tollbook"]["bill"]["columns"] if one["name"] == "cost")
    assert cost["meta"] == {"unit": "of the currency", "adds_up": True}
    price = found["tollbook"]["charges"]["columns"]
    assert [one["meta"]["adds_up"] for one in price if one["name"] == "unit_price"] == [False]


def tables() -> dict[str, dict[str, Any]]:
    """Tables by source and name."""
    said = yaml.safe_load(sources_yml())
    assert said["version"] == 2
    return {
        source["name"]: {table["name"]: table for table in source["tables"]}
        for source in said["sources"]
    }
