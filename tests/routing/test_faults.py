"""Servers that are slow, come and go, hang, and come back from the dead, in front of one gateway
over sockets; and clients whose errors are their own."""

from collections.abc import Iterator

import pytest

from tests.routing import faults
from tests.routing.faults import Scene, scene_in


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with scene_in(tmp_path_factory.mktemp("faults")) as opened:
        yield opened


@pytest.mark.e2e
def test_a_slow_server_gets_less_and_is_not_shut_out(scene: Scene) -> None:
    faults.slow(scene)


@pytest.mark.e2e
def test_clients_errors_and_clients_who_leave_open_nothing(scene: Scene) -> None:
    faults.clients_errors(scene)


@pytest.mark.e2e
def test_a_server_that_flaps_costs_no_answer(scene: Scene) -> None:
    faults.flapping(scene)


@pytest.mark.e2e
def test_a_server_that_hangs_is_left_alone_until_it_goes_on(scene: Scene) -> None:
    faults.hanging(scene)


@pytest.mark.e2e
def test_a_server_that_was_dead_since_the_start_has_requests_within_one_probe(scene: Scene) -> None:
    faults.returning(scene)
