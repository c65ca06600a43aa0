"""One empty ledger per test, of every kind there is."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ledger.sql.session import Ledger
from tests.ledger.ledgers import KINDS, make


@pytest.fixture(params=KINDS)
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    with make(request.param, tmp_path) as made:
        yield made
