"""Servers that die, flap, hang and dawdle, in front of one gateway over sockets: who gets requests,
and when it gets them again."""

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.gateway.doors import SOON_SECONDS, Key, door, new_key
from tests.routing.crowd import backends, crowd
from tests.routing.street import Server, Street, street
from tests.support.processes import Gateway, call, wait_until

FIRST_BYTE_SECONDS = 1.0
"""How long an answer may take here, so that a server that hangs is soon known to."""

FLAPS, FLAP_SECONDS = 5, 0.3
CLIENTS = 6


class Scene(msgspec.Struct):
    """One gateway and its servers; `dead` has been so since before the gateway began."""

    gateway: Gateway
    key: Key
    servers: Street

    def __getitem__(self, name: str) -> Server:
        return self.servers.servers[name]

    def condition(self, name: str) -> str:
        """What the gateway says of a backend."""
        said: str = call(self.gateway.url + "/health/ready").json()["backends"][name]
        return said

    def metrics(self) -> str:
        return call(self.gateway.url + "/metrics").body.decode()


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    directory: Path = tmp_path_factory.mktemp("faults")
    key = new_key(directory / "data", "all")
    with street("hangs", "flaps", "slow") as servers:
        servers.add("dead", started=False)
        tables = [server.table for server in servers.servers.values()]
        with door(
            directory, tables, timeouts={"first_byte_seconds": FIRST_BYTE_SECONDS}
        ) as gateway:
            yield Scene(gateway, key, servers)
            assert "Traceback" not in gateway.output()


def test_a_slow_server_gets_less_and_is_not_shut_out(scene: Scene) -> None:
    calls = crowd([scene.gateway], scene.key, CLIENTS, script="n1-d20")
    with scene["slow"].being("n1-d300"), calls as calling:
        counted = backends(calling.more(300))
    assert set(counted) == {"slow", "hangs", "flaps"}
    assert counted["slow"] * 3 < min(counted["hangs"], counted["flaps"])
    assert scene.condition("slow") == "up"


def test_clients_errors_open_nothing(scene: Scene) -> None:
    with crowd([scene.gateway], scene.key, 4, script="e400") as calling:
        refused = calling.more(300)
    assert {answer.status for answer in refused} == {400}
    assert {answer.backend for answer in refused} == {"slow", "hangs", "flaps"}
    assert {scene.condition(name) for name in ("slow", "hangs", "flaps")} == {"up"}


def test_a_server_that_flaps_costs_no_answer(scene: Scene) -> None:
    server = scene["flaps"]
    with crowd([scene.gateway], scene.key, 4, script="n1-d10") as calling:
        for _ in range(FLAPS):
            server.kill()
            time.sleep(FLAP_SECONDS)
            seen, lists = len(server.calls()), server.fake.lists
            server.start()
            time.sleep(FLAP_SECONDS)
        server.waits_at_most_one_list(seen, lists)
        calling.more(20)
    assert set(backends(calling.answers)) >= {"hangs", "slow"}


def test_a_server_that_hangs_is_left_alone_until_it_goes_on(scene: Scene) -> None:
    server = scene["hangs"]
    with crowd([scene.gateway], scene.key, CLIENTS, script="n1-d10") as calling:
        calling.more(20)
        server.freeze()
        wait_until("it is noticed", lambda: scene.condition("hangs") != "up", 2 * SOON_SECONDS)
        noticed = time.monotonic()
        calling.more(100)
        seen, lists = len(server.calls()), server.fake.lists
        server.thaw()
        server.waits_at_most_one_list(seen, lists)
    failed = [answer for answer in calling.answers if not answer.good]
    assert {(answer.status, answer.backend) for answer in failed} == {(504, "hangs")}
    # A client waits for one answer at a time, and three in a row without one are enough.
    assert len(failed) < CLIENTS + 3
    assert max(answer.began for answer in failed) < noticed


def test_a_server_that_was_dead_since_the_start_has_requests_within_one_probe(scene: Scene) -> None:
    server = scene["dead"]
    with crowd([scene.gateway], scene.key, 4, script="n1-d10") as calling:
        assert "dead" not in backends(calling.more(50))
        assert scene.condition("dead").startswith("down: ")
        assert f'backend="{server.name}",how' not in scene.metrics()
        server.start()
        server.waits_at_most_one_list(0, 0)
        backends(calling.answers)
