"""Fixtures of the tests of `streams`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.streams.house import House


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path / "data")
    yield made
    made.close()
