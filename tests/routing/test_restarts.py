"""A gateway restarts under load: what it knew of its servers it knows again from the first request
on, by the log alone."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import pytest

from tests.gateway.doors import SOON_SECONDS, Key, door, new_key
from tests.routing.crowd import Crowd, backends, crowd
from tests.routing.street import Street, street
from tests.support.processes import Gateway, call, wait_until

POINTS = 5.0
"""How far the share of a server may move by a restart, in points of a hundred."""

WINDOW = 500
"""Answers of which shares are taken. They are steadier than dice: with two even servers and a slow
one a share moves by 0.7 points from one window to the next (standard deviation, measured)."""

CLIENTS = 8


class Scene(msgspec.Struct):
    """Where gateways follow on each other: one directory, one row of servers. `mute` lists its
    models and fails at every request, which no gateway can know that was only just born."""

    directory: Path
    servers: Street
    key: Key

    @contextmanager
    def gateway(self) -> Iterator[Gateway]:
        tables = [server.table for server in self.servers.servers.values()]
        with door(self.directory, tables) as gateway:
            yield gateway


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    directory = tmp_path_factory.mktemp("restarts")
    with street("even", "other", "slow", "mute") as servers:
        servers.servers["slow"].become("n1-d80")
        servers.servers["mute"].become("e500")
        yield Scene(directory, servers, new_key(directory / "data", "all"))


def shares(calling: Crowd) -> dict[str, float]:
    """The part that each server has of the next answers, in points of a hundred."""
    counted = backends(calling.more(WINDOW)[:WINDOW])
    return {name: 100 * count / counted.total() for name, count in counted.items()}


@pytest.mark.e2e
def test_shares_before_and_after_restarts(scene: Scene) -> None:
    mute = scene.servers.servers["mute"]
    with ExitStack() as stack:
        gateway = stack.enter_context(scene.gateway())
        calling = stack.enter_context(
            crowd([gateway], scene.key, CLIENTS, script="n1-d20", patient=True)
        )
        wait_until("the mute one is known", lambda: known(gateway, "mute"), SOON_SECONDS)
        before, seen = shares(calling), len(mute.calls())
        for end in (Gateway.terminate, Gateway.kill):
            end(gateway)
            gateway = stack.enter_context(scene.gateway())
            calling.go_to(gateway)
            after = shares(calling)
            off = {name: after.get(name, 0.0) - share for name, share in before.items()}
            assert max(map(abs, off.values())) <= POINTS, (end.__name__, before, after)
            assert len(mute.calls()) == seen, f"{end.__name__}: it got requests again"


def known(gateway: Gateway, name: str) -> bool:
    """The gateway says that the backend is down."""
    conditions = call(gateway.url + "/health/ready").json()["backends"]
    return bool(conditions[name].startswith("down: "))
