"""What befalls the servers behind one gateway, step by step, and what must hold in each: played
once by the suite (`test_faults.py`) and over and over by the soak (`long.py`)."""

import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tests.gateway.doors import CHAT, SOON_SECONDS, Key, RawClient, door, new_key
from tests.routing.crowd import Said, backends, crowd
from tests.routing.street import Server, Street, street
from tests.support.processes import Gateway, call, wait_until

FIRST_BYTE_SECONDS = 1.0
"""How long an answer may take here, so that a server that hangs is soon known to."""

CLIENTS = 6

ALIVE = ("flaps", "hangs", "slow")
"""The servers; one more, `dead`, has been so since before the gateway began."""

QUICK, TOO_LONG = "n1-d10", "n1-d300"

FAULTS_IN_A_ROW = 3
"""So many faults without a success in between open a backend, see `gateway.routing.breaker`."""


class Scene(msgspec.Struct):
    """One gateway and its servers."""

    gateway: Gateway
    data: Path
    key: Key
    servers: Street

    def __getitem__(self, name: str) -> Server:
        return self.servers.servers[name]

    def condition(self, name: str) -> str:
        """What the gateway says of a backend."""
        said: str = call(self.gateway.url + "/health/ready").json()["backends"][name]
        return said

    def picks(self, name: str) -> int:
        """How often the gateway chose a backend, for whatever reason."""
        lines = call(self.gateway.url + "/metrics").body.decode().splitlines()
        mark = f'tollbook_picks_total{{backend="{name}",'
        return sum(int(float(line.split()[-1])) for line in lines if line.startswith(mark))


@contextmanager
def scene_in(directory: Path) -> Iterator[Scene]:
    """A gateway with three servers that are up and one that is dead."""
    data = directory / "data"
    key = new_key(data, "all")
    with street(*ALIVE) as servers:
        servers.add("dead", started=False)
        tables = [server.table for server in servers.servers.values()]
        limits = {"first_byte_seconds": FIRST_BYTE_SECONDS}
        with door(directory, tables, timeouts=limits) as gateway:
            yield Scene(gateway, data, key, servers)
            assert "Traceback" not in gateway.output()


def slow(scene: Scene, count: int = 300) -> list[Said]:
    """A slow server gets less than the others, and is not shut out."""
    calls = crowd([scene.gateway], scene.key, CLIENTS, script="n1-d20")
    with scene["slow"].being(TOO_LONG), calls as calling:
        counted = backends(calling.more(count))
    assert 0 < 3 * counted["slow"] < min(counted["hangs"], counted["flaps"]), counted
    assert scene.condition("slow").startswith("up")
    return calling.answers


def clients_errors(scene: Scene, count: int = 300, gone: int = 20) -> list[Said]:
    """Errors of clients, and clients who leave, open nothing."""
    with crowd([scene.gateway], scene.key, CLIENTS, script="e400") as calling:
        for _ in range(gone):
            leaver = RawClient(scene.gateway.port)
            leaver.send(CHAT, scene.key, {"model": "fake", "messages": [], "script": TOO_LONG})
            time.sleep(0.01)
            leaver.break_off(reset=True)
        calling.more(max(count - len(calling.answers), 1))
        conditions = {name: scene.condition(name) for name in ALIVE}
    refused = Counter((answer.status, answer.backend) for answer in calling.answers)
    assert set(refused) == {(400, name) for name in ALIVE}
    assert all(said.startswith("up") for said in conditions.values()), conditions
    return calling.answers


def flapping(scene: Scene, flaps: int = 5, dice: random.Random | None = None) -> list[Said]:
    """A server that comes and goes costs no client an answer, and has its requests in the end."""
    server = scene["flaps"]
    with crowd([scene.gateway], scene.key, CLIENTS, script=QUICK) as calling:
        for _ in range(flaps):
            server.kill()
            time.sleep(0.3 if dice is None else dice.uniform(0.0, 1.5))
            seen, lists = len(server.calls()), server.fake.lists
            server.start()
            time.sleep(0.3 if dice is None else dice.uniform(0.0, 3.0))
        server.has_calls_by_the_first_list(seen, lists)
    assert set(backends(calling.answers)) >= {"hangs", "slow"}
    return calling.answers


def hanging(scene: Scene, frozen: int = 100) -> list[Said]:
    """A server that accepts and never answers is left alone once that is seen, and has requests
    again when it goes on. Meanwhile the others give `frozen` answers."""
    server = scene["hangs"]
    with crowd([scene.gateway], scene.key, CLIENTS, script=QUICK) as calling:
        calling.more(20)
        server.freeze()
        wait_until(
            "it is noticed",
            lambda: scene.condition("hangs").startswith("down: "),
            2 * SOON_SECONDS,
        )
        noticed = time.monotonic()
        calling.more(frozen)
        seen, lists = len(server.calls()), server.fake.lists
        server.thaw()
        server.has_calls_by_the_first_list(seen, lists)
    failed = [answer for answer in calling.answers if not answer.good]
    assert {(answer.status, answer.backend) for answer in failed} <= {(504, "hangs")}
    # Each client waits for one answer at a time, and a few of them are enough to know.
    assert len(failed) < CLIENTS + FAULTS_IN_A_ROW
    assert all(answer.began < noticed for answer in failed)
    return calling.answers


def returning(scene: Scene) -> list[Said]:
    """One that was dead since before the gateway began was never chosen, and has requests within
    one interval of probes when it is there; then it dies again."""
    server = scene["dead"]
    seen = len(server.calls())
    with crowd([scene.gateway], scene.key, CLIENTS, script=QUICK) as calling:
        picks = scene.picks("dead")
        assert "dead" not in backends(calling.more(50))
        assert scene.condition("dead").startswith("down: ")
        assert scene.picks("dead") == picks
        lists = server.fake.lists
        server.start()
        server.has_calls_by_the_first_list(seen, lists)
    server.kill()
    backends(calling.answers)
    return calling.answers
