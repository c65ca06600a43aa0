"""One empty ledger per test, of every kind there is, and the tests' books on it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.dev.postgres import Postgres
from ledger.sql.session import Ledger
from tests.ledger.ledgers import KINDS, Make, in_files, on_postgres
from tests.support.books import Books


@pytest.fixture(scope="session")
def make_on_postgres(postgres: Postgres) -> Make:
    """Made once, however often the files of a session go from one kind to the other."""
    return on_postgres(postgres.create_database)


@pytest.fixture(scope="session", params=KINDS)
def make_ledger(request: pytest.FixtureRequest) -> Make:
    """Makes empty ledgers of one kind: `make_ledger(directory, name)`."""
    if request.param == "sqlite":
        return in_files
    made: Make = request.getfixturevalue("make_on_postgres")
    return made


@pytest.fixture
def ledger(make_ledger: Make, tmp_path: Path) -> Iterator[Ledger]:
    with make_ledger(tmp_path, "ledger") as made:
        yield made


@pytest.fixture
def books(ledger: Ledger, tmp_path: Path) -> Books:
    return Books(tmp_path, ledger)
