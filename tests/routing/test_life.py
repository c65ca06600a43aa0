"""A server's life under load, one step after the other: it is drained, an update is rolled out and
another one rolled back, the last one dies and another model answers; no request fails, and the bill
says who answered."""

from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.gateway.doors import SOON_SECONDS, Key, ask, door, new_key
from tests.routing.crowd import backends, crowd
from tests.routing.street import Server, Street, street
from tests.support.processes import Gateway, tollbook, tollbook_json, wait_until

CLIENTS = 4

PROMPT, ANSWER = 12, 3
"""Tokens of every request here and of its answer."""

SCRIPT = f"n{ANSWER}-i3000-p{PROMPT}"

PRICES = {"big": (100, 1000), "small": (1, 10)}
"""What a million tokens cost, in and out."""

SHIFT = ("--steps", "50,100", "--hold-seconds", "1", "--requests-min", "5", "--slower-max", "20")
"""A machine that is busy with something else is no reason for a roll-back here, failures are."""


class Scene(msgspec.Struct):
    """One gateway, its servers, and a key; `loyal` is a key that takes no other model's answer."""

    gateway: Gateway
    data: Path
    key: Key
    loyal: Key
    servers: Street

    def __getitem__(self, name: str) -> Server:
        return self.servers.servers[name]

    def add(self, name: str, reference: str) -> None:
        """A further server of the big model joins at run time, and gets nothing yet."""
        server = self.servers.add(name, ("big",))
        options = ("--url", server.fake.url, "--key", reference, "--weight", "0")
        tollbook(self.data, "backends", "add", name, *options)

    def wait_up(self, name: str) -> None:
        """Until it is told, too, that the server is up."""

        def up() -> bool:
            listed = tollbook_json(self.data, "backends", "list")["backends"]
            return any((one["id"], one["state"]) == (name, "up") for one in listed)

        wait_until(f"{name} is up", up, SOON_SECONDS)

    def billed(self) -> dict[str, Any]:
        """Requests and cost of each model that is on the bill."""
        requests: Counter[str] = Counter()
        cost: dict[str, Decimal] = {}
        for line in tollbook_json(self.data, "bill", "--by", "model")["rows"]:
            requests[line["model"]] += line["requests"]
            cost[line["model"]] = cost.get(line["model"], Decimal()) + Decimal(line["cost"] or 0)
        return {model: (count, cost[model]) for model, count in requests.items()}


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    directory = tmp_path_factory.mktemp("life")
    data = directory / "data"
    key, loyal = new_key(data, "all"), new_key(data, "loyal", "--no-fallback")
    for model, (price_in, price_out) in PRICES.items():
        options = ("--in", str(price_in), "--out", str(price_out), "--from", "2026-01-01")
        tollbook(data, "prices", "set", model, *options)
    with street() as servers:
        tables = [servers.add(name, ("big",)).table for name in ("old", "drained")]
        tables.append(servers.add("little", ("small",)).table)
        fallbacks = [{"model": "big", "to": ["small"]}]
        with door(directory, tables, fallbacks=fallbacks) as gateway:
            yield Scene(gateway, data, key, loyal, servers)
            assert "Traceback" not in gateway.output()


@pytest.mark.e2e
def test_a_whole_life_without_a_failed_request(scene: Scene) -> None:
    reference = f"file:{scene.data.parent}/server-key"
    with crowd(
        [scene.gateway], scene.key, CLIENTS, model="big", script=SCRIPT, stream=True
    ) as calling:
        calling.more(20)
        drain(scene)
        # A key that is nowhere: the server may not be asked for anything.
        scene.add("forbidden", "env:NOBODY_SET_THIS")
        scene.add("new", reference)
        scene.wait_up("new")
        done = tollbook(scene.data, "backends", "shift", "--from", "old", "--to", "new", *SHIFT)
        assert "all requests go to new" in done.stdout
        assert set(backends(calling.more(50)[CLIENTS:])) == {"new"}

        scene.add("bad", reference)
        scene["bad"].become("e500")
        scene.wait_up("bad")
        done = tollbook(
            scene.data, "backends", "shift", "--from", "new", "--to", "bad", *SHIFT, check=False
        )
        assert done.returncode == 1, done.stdout
        assert "rolled back" in done.stdout
        calling.more(50)
    counted = backends(calling.answers)
    assert set(counted) == {"old", "drained", "new"}
    assert not scene["forbidden"].fake.counts.connections


def drain(scene: Scene) -> None:
    """Drain one under load, and stop it when that is said to be safe."""
    drained = tollbook_json(scene.data, "backends", "drain", "drained")
    assert drained["safe"]
    server = scene["drained"]
    had = len(server.calls())
    assert server.running() == 0
    wait_until("the load goes on", lambda: len(scene["old"].calls()) > 50, SOON_SECONDS)
    assert len(server.calls()) == had
    server.kill()


@pytest.mark.e2e
def test_a_fallback_is_named_and_billed_as_what_answered(scene: Scene) -> None:
    before = scene.billed()
    for server in scene.servers.servers.values():
        if server.name != "little":
            server.kill()
    with crowd([scene.gateway], scene.key, 2, model="big", script=SCRIPT, stream=True) as calling:
        wait_until(
            "the small one answers",
            lambda: all(answer.backend == "little" for answer in calling.more(5)),
            SOON_SECONDS,
        )
        refused = ask(scene.gateway, scene.loyal, "big", script=SCRIPT)
        assert refused.status in (502, 503), refused.body
    answers = [answer for answer in calling.answers if answer.backend == "little"]
    assert {answer.model for answer in answers} == {"small"}
    assert all(answer.good for answer in answers)
    count = len(answers)
    price_in, price_out = PRICES["small"]
    cost = Decimal(count * (PROMPT * price_in + ANSWER * price_out)) / 1_000_000
    now = scene.billed()
    was = before.get("small", (0, Decimal()))
    assert (now["small"][0] - was[0], now["small"][1] - was[1]) == (count, cost)
    assert now["big"][1] == before["big"][1]
