"""One house of gateways and backends for all tests that only call them."""

from collections.abc import Iterator

import pytest

from tests.gateway.doors import opened
from tests.gateway.house import House, check_settled, open_house


@pytest.fixture(autouse=True)
def no_open_clients() -> Iterator[None]:
    """Close what a test that failed has left open, so that no other test is blamed for it."""
    yield
    while opened:
        opened.pop().break_off()


@pytest.fixture(scope="package")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with open_house(tmp_path_factory.mktemp("house")) as opened:
        yield opened
        check_settled(opened)
