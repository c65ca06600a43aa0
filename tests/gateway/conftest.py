"""One house of gateways and backends for all tests that only call them."""

from collections.abc import Iterator

import pytest

from tests.gateway.house import House, check_settled, open_house


@pytest.fixture(scope="package")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with open_house(tmp_path_factory.mktemp("house")) as opened:
        yield opened
        check_settled(opened)
