"""The gateway in front of the real llama.cpp server: the same answer as direct, the same counts."""

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest

from tests.support.llama import KEY, MODEL, counters, llama_server
from tests.support.processes import call, gateway, tollbook, tollbook_json, wait_until

pytestmark = pytest.mark.e2e

GREEDY = {"model": MODEL, "temperature": 0, "max_tokens": 12, "cache_prompt": False}
CHAT = GREEDY | {"messages": [{"role": "user", "content": "Count from one to ten."}]}
TEXT = GREEDY | {"prompt": "Once upon a time"}
DOORS = [("chat/completions", CHAT), ("completions", TEXT)]
VOLATILE = ("id", "created", "timings")
"""What differs between any two answers of llama.cpp."""


class Sides:
    """The same engine, reached directly and through the gateway."""

    def __init__(self, engine: str, front: str, key: str, data: Path) -> None:
        self.engine, self.front, self.key, self.data = engine, front, key, data

    def direct(self, door: str, body: Any) -> bytes:
        return call(f"{self.engine}/v1/{door}", body, KEY).body

    def through(self, door: str, body: Any) -> bytes:
        return call(f"{self.front}/v1/{door}", body, self.key).body

    def rows(self) -> list[dict[str, Any]]:
        """Every request that has an end, oldest first."""
        sql = (
            "SELECT stream, basis, outcome, uncached_in, cached_in, other_out "
            "FROM requests WHERE state <> 'open' ORDER BY accepted_at"
        )
        found: list[dict[str, Any]] = tollbook_json(self.data, "query", sql)["rows"]
        return found


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    place = tmp_path_factory.mktemp("real")
    data = place / "books"
    with llama_server() as engine, gateway(data, [engine], backend_key=KEY) as front:
        key = tollbook_json(data, "keys", "create", "--name", "ada")["key"]
        wait_until("the key opens", lambda: call(f"{front.url}/v1/models", key=key).status == 200)
        yield Sides(engine, front.url, key, data)


def chunks(stream: bytes) -> list[Any]:
    """The parsed chunks of a stream without what differs each time; `[DONE]` stays a word."""
    events = [event.removeprefix("data: ") for event in stream.decode().split("\n\n") if event]
    return [event if event == "[DONE]" else still(json.loads(event)) for event in events]


def still(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name not in VOLATILE}


@pytest.mark.parametrize(("door", "body"), DOORS)
def test_a_plain_answer_is_the_engines_own(sides: Sides, door: str, body: Any) -> None:
    direct, through = sides.direct(door, body), sides.through(door, body)
    assert still(json.loads(through)) == still(json.loads(direct))


@pytest.mark.parametrize(("door", "body"), DOORS)
def test_a_stream_with_usage_is_the_engines_own(sides: Sides, door: str, body: Any) -> None:
    asked = body | {"stream": True, "stream_options": {"include_usage": True}}
    through = sides.through(door, asked)
    assert chunks(through) == chunks(sides.direct(door, asked))
    assert any("usage" in chunk for chunk in chunks(through)[:-1])
    # The engine was asked for timings with every chunk; only its last word carries them here.
    assert through.count(b'"timings"') == 1


@pytest.mark.parametrize(("door", "body"), DOORS)
def test_a_stream_without_usage_lacks_only_the_usage(sides: Sides, door: str, body: Any) -> None:
    asked = body | {"stream": True}
    direct = chunks(sides.direct(door, asked))
    for chunk in direct[:-1]:
        # On /v1/completions llama.cpp writes usage on the finishing chunk, asked or not.
        chunk.pop("usage", None)
    assert chunks(sides.through(door, asked)) == direct


def test_timings_that_were_asked_for_stay(sides: Sides) -> None:
    asked = CHAT | {"stream": True, "timings_per_token": True}
    assert sides.through("chat/completions", asked).count(b'"timings"') > 2


def test_every_count_is_the_engines_and_a_cut_stream_is_counted_while_it_runs(sides: Sides) -> None:
    before, known = counters(sides.engine), len(sides.rows())
    for door, body in DOORS:
        sides.through(door, body)
        sides.through(door, body | {"stream": True})
    seen = hang_up_after(sides, 6)
    wait_until("the ledger has them", lambda: len(sides.rows()) >= known + 5)
    made = counters(sides.engine)
    rows = sides.rows()[known:]
    *whole, cut = rows
    assert {row["basis"] for row in whole} == {"reported"}
    assert (cut["basis"], cut["outcome"]) == ("running", "client_gone")
    assert sum(row["uncached_in"] for row in rows) == made.prompt - before.prompt
    assert sum(row["cached_in"] for row in rows) == made.cached - before.cached
    output = made.predicted - before.predicted
    billed = sum(row["other_out"] for row in rows)
    # The engine stops a token or a few after the last chunk that anyone saw; it never made less.
    assert billed <= output <= billed + 32
    assert cut["other_out"] >= seen
    assert output < 4 * 12 + 400, "the engine stopped when the client left"
    assert tollbook(sides.data, "audit").returncode == 0


def hang_up_after(sides: Sides, events: int) -> int:
    """Read `events` chunks with text of a long stream, then close the connection."""
    place = urlparse(sides.front)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)
    body = TEXT | {"stream": True, "max_tokens": 400, "ignore_eos": True}
    headers = {"authorization": f"Bearer {sides.key}", "content-type": "application/json"}
    connection.request("POST", "/v1/completions", json.dumps(body), headers)
    answer = connection.getresponse()
    seen = 0
    while seen < events:
        line = answer.readline()
        assert line, "the stream is longer than what is read of it"
        seen += line.startswith(b"data: {")
    answer.close()
    connection.close()
    return seen
