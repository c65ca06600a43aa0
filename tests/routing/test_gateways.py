"""Three gateways in front of one row of servers, under load from all three at once: bursts, a
server that recovers, a drain, a gateway that restarts, a roll-back, and a fallback at the end."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.routing.breaker import ANSWERED_MIN, TRIALS
from gateway.scraper import SIGNAL_SECONDS
from tests.gateway.doors import SOON_SECONDS, Key, ask, door, new_key
from tests.routing.crowd import Crowd, backends, crowd
from tests.routing.street import TAG, Server, Street, street
from tests.support.processes import (
    Gateway,
    call,
    in_threads,
    tollbook,
    tollbook_json,
    wait_until,
)

SERVERS = ("a", "b", "c", "d", "e")
GATEWAYS = ("north", "south", "west")

BURST = 15
"""Requests that each gateway gets at once."""

CLIENTS = 6

PROMPT, ANSWER = 12, 3
"""Tokens of the requests that are billed here, and of their answers."""

PRICES = {"fake": (100, 1000), "small": (1, 10)}
"""What a million tokens cost, in and out."""

SHIFT = ("--steps", "50", "--hold-seconds", "2", "--requests-min", "5", "--slower-max", "20")
"""A machine that is busy with something else is no reason for a roll-back here, failures are."""


class Scene(msgspec.Struct):
    """The gateways by name; `loyal` is a key that takes no other model's answer."""

    directory: Path
    gateways: dict[str, Gateway]
    key: Key
    loyal: Key
    servers: Street

    def __getitem__(self, name: str) -> Server:
        return self.servers.servers[name]

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @contextmanager
    def gateway(self, name: str, *, ready: bool = True) -> Iterator[Gateway]:
        """A gateway of this name in front of the servers that are configured."""
        tables = [self[one].table for one in (*SERVERS, "little")]
        fallbacks: Any = [{"model": "fake", "to": ["small"]}]
        with door(
            self.directory, tables, ready=ready, gateway={"name": name}, fallbacks=fallbacks
        ) as opened:
            yield opened

    @contextmanager
    def crowd(self, script: str, model: str = "fake") -> Iterator[Crowd]:
        """Clients of all gateways, who ask again while one of these is away."""
        doors = list(self.gateways.values())
        with crowd(
            doors, self.key, CLIENTS, model=model, script=script, stream=True, patient=True
        ) as calling:
            yield calling

    def running(self) -> list[int]:
        """Requests at work at each of the servers that a burst goes to."""
        return [self[name].running() for name in SERVERS]

    def add(self, name: str, reference: str) -> Server:
        """A further server joins at run time, and has no part of the requests yet."""
        server = self.servers.add(name)
        options = ("--url", server.fake.url, "--key", reference, "--weight", "0")
        tollbook(self.data, "backends", "add", name, *options)
        return server

    def all_say(self, name: str, word: str) -> bool:
        """Every gateway says that the backend is `word`: up or down."""
        for gateway in self.gateways.values():
            told: dict[str, str] = call(gateway.url + "/health/ready").json()["backends"]
            if not told.get(name, "").startswith(word):
                return False
        return True

    def billed(self) -> dict[str, tuple[int, Decimal]]:
        """Requests and cost of each model that is on the bill."""
        found: dict[str, tuple[int, Decimal]] = {}
        for line in tollbook_json(self.data, "bill", "--by", "model")["rows"]:
            count, cost = found.get(line["model"], (0, Decimal()))
            cost += Decimal(line["cost"] or 0)
            found[line["model"]] = count + line["requests"], cost
        return found


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    directory = tmp_path_factory.mktemp("gateways")
    data = directory / "data"
    key, loyal = new_key(data, "all"), new_key(data, "loyal", "--no-fallback")
    for model, (price_in, price_out) in PRICES.items():
        options = ["--in", str(price_in), "--out", str(price_out), "--from", "2026-01-01"]
        options += ["--rerate", "first price"]
        tollbook(data, "prices", "set", model, *options)
    with ExitStack() as stack:
        servers = stack.enter_context(street(*SERVERS))
        servers.add("little", ("small",))
        opened = Scene(directory, {}, key, loyal, servers)
        for name in GATEWAYS:
            opened.gateways[name] = stack.enter_context(opened.gateway(name, ready=False))
        for gateway in opened.gateways.values():
            gateway.wait_ready()
        yield opened
        assert not any("Traceback" in gateway.output() for gateway in opened.gateways.values())


def together(scene: Scene, names: Sequence[str], count: int, script: str) -> None:
    """So many requests at once at each of the gateways; all of them are answered."""

    def one(name: str) -> None:
        answer = ask(scene.gateways[name], scene.key, "fake", user=TAG, script=script)
        assert answer.status == 200, answer.body

    in_threads([lambda n=name: one(n) for name in names for _ in range(count)])


def check_even(counted: Sequence[int]) -> None:
    assert max(counted) <= 1.5 * sum(counted) / len(counted), counted


@pytest.mark.e2e
def test_bursts_keep_the_busiest_below_one_and_a_half_of_the_mean(scene: Scene) -> None:
    """One server looks idle to all gateways and the others do not: who went by what servers told
    of themselves alone would send it everything."""
    few = len(SERVERS) - 1
    with ThreadPoolExecutor(1) as beside:
        first = beside.submit(together, scene, GATEWAYS[:1], few, "n1-d4000")
        wait_until("they run", lambda: sum(scene.running()) == few)
        time.sleep(1.2 * SIGNAL_SECONDS)
        together(scene, GATEWAYS, BURST, "n1-d500")
        first.result()
    counted = [len(scene[name].calls()) for name in SERVERS]
    assert sum(counted) == len(GATEWAYS) * BURST + few
    check_even(counted)


@pytest.mark.e2e
def test_a_server_that_recovers_has_few_trials_of_all_gateways_together(scene: Scene) -> None:
    server = scene["e"]
    server.kill()
    wait_until("all know", lambda: scene.all_say("e", "down"), SOON_SECONDS)
    seen, most = len(server.calls()), 0
    with server.being("n1-d500"), scene.crowd("n1-d20") as calling:
        server.start()
        while True:
            # One look, so that both numbers are of the same moment.
            calls = server.calls()[seen:]
            at_work = sum(one.end == "open" for one in calls)
            if len(calls) - at_work >= ANSWERED_MIN:
                break
            assert at_work <= TRIALS
            most = max(most, at_work)
            calling.more(1)
    assert most > 0
    backends(calling.answers)


@pytest.mark.e2e
def test_a_drained_a_dead_and_a_forbidden_server_get_nothing_also_of_a_new_gateway(
    scene: Scene,
) -> None:
    """The gateway in the west restarts, and leaves with the end of this test."""
    forbidden = scene.add("forbidden", "env:NOBODY_SET_THIS")
    drained, old = scene["a"], scene.gateways["west"]
    with ExitStack() as stack:
        calling = stack.enter_context(scene.crowd("n4-i5000"))
        calling.more(50)
        told = tollbook_json(scene.data, "backends", "drain", "a")
        assert told["safe"]
        had = len(drained.calls())
        assert drained.running() == 0
        calling.more(100)
        assert len(drained.calls()) == had
        drained.kill()

        assert old.terminate() == 0
        del scene.gateways["west"]
        new = stack.enter_context(scene.gateway("west"))
        calling.ports[GATEWAYS.index("west")] = new.port
        calling.more(100)
        calling.end()
    assert set(backends(calling.answers)) <= set(SERVERS)
    assert len(drained.calls()) == had
    assert not forbidden.fake.counts.connections


@pytest.mark.e2e
def test_a_roll_back_costs_no_answer(scene: Scene) -> None:
    bad = scene.add("bad", f"file:{scene.directory}/server-key")
    bad.become("e500")
    wait_until("all know it", lambda: scene.all_say("bad", "up"), SOON_SECONDS)
    with scene.crowd("n4-i5000") as calling:
        calling.more(20)
        assert not bad.calls()
        done = tollbook(
            scene.data, "backends", "shift", "--from", "b", "--to", "bad", *SHIFT, check=False
        )
        assert (done.returncode, "rolled back" in done.stdout) == (1, True), done.stdout
        assert bad.calls()

        def left_alone() -> bool:
            had = len(bad.calls())
            return "b" in backends(calling.more(60)) and len(bad.calls()) == had

        wait_until("all know the weights that were", left_alone, SOON_SECONDS)
    backends(calling.answers)


@pytest.mark.e2e
def test_a_fallback_is_named_and_billed_as_what_answered(scene: Scene) -> None:
    for server in scene.servers.servers.values():
        if server.name != "little":
            server.kill()
    for name in SERVERS:
        wait_until("all know", lambda n=name: scene.all_say(n, "down"), SOON_SECONDS)
    before = scene.billed()
    with scene.crowd(f"n{ANSWER}-p{PROMPT}") as calling:
        calling.more(50)
        refused = ask(scene.gateways["north"], scene.loyal, "fake")
    assert refused.status in (502, 503), refused.body
    assert backends(calling.answers).keys() == {"little"}
    assert {answer.model for answer in calling.answers} == {"small"}
    count = len(calling.answers)
    price_in, price_out = PRICES["small"]
    cost = Decimal(count * (PROMPT * price_in + ANSWER * price_out)) / 1_000_000
    after = scene.billed()
    assert "small" not in before
    assert after["small"] == (count, cost)
    assert after["fake"][1] == before["fake"][1]
