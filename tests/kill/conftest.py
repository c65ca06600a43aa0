"""The fleet that all tests here share, and a place of its own for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kill.place import Place
from tests.kill.world import Fleet, fleet


@pytest.fixture(scope="package")
def ships(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Two backends and a data directory to copy, for all tests of this package."""
    with fleet(tmp_path_factory.mktemp("fleet")) as found:
        yield found


@pytest.fixture
def place(ships: Fleet, tmp_path: Path, seed: int) -> Place:
    """Where one scenario is played, with the dice of this run's seed."""
    print(f"seed: {seed}")
    return Place(ships, tmp_path, seed)
