"""Engines' counters and probes through whole processes: spool, ledger, bill and metrics."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from gateway.wire.scrape import read_page
from ledger.events import BackendCounted, Event, RequestAccepted, payload_of
from ledger.events.requests import SYSTEM_KEY_ID
from streams.local.layout import Layout
from streams.log.reader import SpoolReader
from tests.gateway.doors import SOON_SECONDS, Key, ask, backend, door, new_key
from tests.support import processes
from tests.support.processes import Backend, Gateway, call, tollbook, tollbook_json, wait_until
from tests.support.shapes import Engine

ENGINES: tuple[Engine, ...] = ("vllm", "sglang", "llamacpp")
MADE = {
    "vllm": "vllm:generation_tokens_total",
    "sglang": "sglang:generation_tokens_total",
    "llamacpp": "llamacpp:tokens_predicted_total",
}
OFTEN = 0.3


class House(msgspec.Struct):
    """A gateway of two workers, with a backend of each engine."""

    data: Path
    engines: dict[str, Backend]
    gateway: Gateway
    key: Key


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    directory = tmp_path_factory.mktemp("counters")
    key = new_key(directory / "data", "all")
    with ExitStack() as stack:
        engines: dict[str, Backend] = {
            engine: stack.enter_context(
                processes.backend(directory, engine, models=f"fake-n2-p7-i{number}")
            )
            for number, engine in enumerate(ENGINES)
        }
        tables = [backend(one.url, name) for name, one in engines.items()]
        often = {"workers": 2, "scrape_seconds": OFTEN, "probe_seconds": OFTEN}
        gateway = stack.enter_context(door(directory, tables, gateway=often))
        yield House(directory / "data", engines, gateway, key)


def counted(data: Path) -> list[BackendCounted]:
    """What the spools tell of counters, in the order of time."""
    found = sorted(events(data, "counters"), key=lambda event: event.time)
    return [said for said in map(payload_of, found) if isinstance(said, BackendCounted)]


def events(data: Path, topic: str) -> Iterator[Event]:
    for directory in Layout(data).spool_directories():
        reader, offset = SpoolReader(directory), 0
        while (chunk := reader.read(offset)).events:
            yield from (event for event in chunk.events if event.topic == topic)
            offset = chunk.next_offset
        reader.close()


def metric(house: House, name: str) -> dict[str, float]:
    """The samples of `name` by backend, of whichever worker answers."""
    page = call(house.gateway.url + "/metrics").body.decode()
    found = re.findall(rf'^{name}\{{backend="([^"]+)"[^}}]*\}} (\S+)$', page, re.MULTILINE)
    return {backend_id: float(value) for backend_id, value in found}


def test_counters_are_read_before_the_door_opens_by_one_of_the_workers(house: House) -> None:
    said = wait_until("three readings", lambda: counted(house.data)[2:] and counted(house.data))
    assert {one.gateway for one in said} == {"gateway#0"}
    assert {one.backend_id: one.engine for one in said} == {name: name for name in ENGINES}
    for first in said[:3]:
        assert first.fault is None and set(first.counters.values()) == {0}
        assert first.running == first.waiting == 0
    assert {one.backend_id for one in said if one.process_started is not None} == {"vllm"}


@pytest.fixture(scope="module")
def served(house: House) -> House:
    """The house when requests and probes have been served, and its gateway has stopped."""
    for number in range(len(ENGINES)):
        for _ in range(3):
            assert ask(house.gateway, house.key, f"fake-n2-p7-i{number}").status == 200

    def probed() -> bool:
        return metric(house, "tollbook_probe_seconds").keys() == set(ENGINES)

    wait_until("every backend was probed", probed, SOON_SECONDS)
    ages = wait_until("the reader answers", lambda: metric(house, "tollbook_scrape_age_seconds"))
    assert ages.keys() == set(ENGINES)
    assert all(age < SOON_SECONDS for age in ages.values())
    assert metric(house, "tollbook_probe_failures_total") == {}
    house.gateway.stop()
    return house


def test_what_is_served_and_probed_is_what_the_engines_counted(served: House) -> None:
    """The last reading comes behind the last request, and holds all of them and nothing else."""
    last = {one.backend_id: one.counters for one in counted(served.data)}
    for name, engine in served.engines.items():
        assert last[name] == read_page(call(engine.url + "/metrics").body).counters
    rows = tollbook_json(served.data, "query", "SELECT * FROM requests")["rows"]
    by_backend = {name: [row for row in rows if row["backend_id"] == name] for name in ENGINES}
    for name, own in by_backend.items():
        assert {row["basis"] for row in own} == {"reported"}
        assert sum(row["key_id"] == SYSTEM_KEY_ID for row in own) >= 1
        out = sum(row["other_out"] + (row["reasoning_out"] or 0) for row in own)
        assert last[name][MADE[name]] == out > 3 * 2
    done = tollbook(served.data, "reconcile", "--json", check=False)
    assert done.returncode == 0, done.stdout


def test_a_probe_is_shown_as_the_systems_own(served: House) -> None:
    lines = tollbook_json(served.data, "bill")["rows"]
    ids = {line["name"]: line["key"] for line in lines}
    assert ids == {"all": served.key.id, "system": SYSTEM_KEY_ID}
    probes = [
        said
        for said in map(payload_of, events(served.data, "requests"))
        if isinstance(said, RequestAccepted) and said.key_id == SYSTEM_KEY_ID
    ]
    assert {said.model for said in probes} == {f"fake-n2-p7-i{n}" for n in range(len(ENGINES))}
    assert all(said.held_out == 1 for said in probes)
    shown = tollbook(served.data, "keys", "list").stdout
    assert "system" not in shown, "nobody can call with it"
