"""The backends that all tests here share."""

from collections.abc import Iterator

import pytest

from tests.kill.world import Fleet, fleet


@pytest.fixture(scope="package")
def ships(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet(tmp_path_factory.mktemp("cluster-fleet")) as found:
        yield found
