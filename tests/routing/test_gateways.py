"""Several gateways, one row of servers: what each of them does the others take into account."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from tests.gateway.doors import Key, ask, door, new_key
from tests.routing.street import TAG, Street, street
from tests.support.processes import Gateway, in_threads, wait_until

SERVERS = ("a", "b", "c", "d", "e")
GATEWAYS = ("north", "south", "west")

BURST = 15
"""Requests that each gateway gets at once."""


class Scene(msgspec.Struct):
    gateways: list[Gateway]
    key: Key
    servers: Street

    def running(self) -> dict[str, int]:
        return {name: server.running() for name, server in self.servers.servers.items()}


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    directory: Path = tmp_path_factory.mktemp("gateways")
    key = new_key(directory / "data", "all")
    with ExitStack() as stack:
        servers = stack.enter_context(street(*SERVERS))
        tables = [server.table for server in servers.servers.values()]
        gateways = [
            stack.enter_context(door(directory, tables, ready=False, gateway={"name": name}))
            for name in GATEWAYS
        ]
        for gateway in gateways:
            gateway.wait_ready()
        yield Scene(gateways, key, servers)


def together(scene: Scene, gateways: list[Gateway], count: int, script: str) -> None:
    """So many requests at once at each of the gateways; all of them are answered."""

    def one(gateway: Gateway) -> None:
        answer = ask(gateway, scene.key, "fake", user=TAG, script=script)
        assert answer.status == 200, answer.body

    in_threads([lambda g=gateway: one(g) for gateway in gateways for _ in range(count)])


@pytest.mark.e2e
def test_bursts_at_three_gateways_keep_the_busiest_below_one_and_a_half_of_the_mean(
    scene: Scene,
) -> None:
    """The second burst comes while the first is at work, and at one gateway alone."""
    with ThreadPoolExecutor(1) as beside:
        first = beside.submit(together, scene, scene.gateways, BURST, "n1-d1500")
        wait_until("they run", lambda: sum(scene.running().values()) == len(GATEWAYS) * BURST)
        check_even(scene.running())
        together(scene, scene.gateways[:1], BURST, "n1-d200")
        first.result()
    check_even({name: len(server.calls()) for name, server in scene.servers.servers.items()})


def check_even(counted: dict[str, int]) -> None:
    assert max(counted.values()) <= 1.5 * sum(counted.values()) / len(counted), counted
