"""The usage APIs of two gateways over one Kafka and one Postgres: both tell the same, soon."""

import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from ledger.clock import SystemClock
from streams.kafka.access import KafkaAccess
from tests.support.kafka import named_places, settings_file
from tests.support.processes import (
    Answer,
    Gateway,
    backend,
    call,
    chat,
    gateway,
    role,
    tollbook_json,
    wait_until,
)

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]


def told(door: Gateway, key: str, path: str = "/v1/usage") -> Answer:
    start = int(SystemClock().now().timestamp()) - 86_400
    return call(f"{door.url}{path}?start_time={start}", key=key)


def requests(answer: Answer) -> int:
    assert answer.status == 200, answer.body
    results = [one for bucket in answer.json()["data"] for one in bucket["results"]]
    return sum(one["num_model_requests"] for one in results)


def test_an_answer_of_one_gateway_is_told_by_the_other_within_two_seconds(
    kafka: KafkaAccess, postgres_url: str, tmp_path: Path
) -> None:
    text = settings_file(tmp_path, kafka, postgres_url).read_text()
    places = named_places(tmp_path, text, "a", "b")
    without = tmp_path / "without.toml"
    without.write_text(settings_file(tmp_path, kafka).read_text())
    with ExitStack() as stack:
        server = stack.enter_context(backend(tmp_path))
        for verb in ("worker", "write"):
            stack.enter_context(role(verb, tmp_path, *places[0]))
        made = [
            tollbook_json(tmp_path / "keys", "keys", "create", "--name", name, *more, *places[0])
            for name, more in (("ann", ()), ("boss", ("--admin",)))
        ]
        ann, boss = (one["key"] for one in made)
        one, other, blind = (
            stack.enter_context(gateway(tmp_path / f"data-{n}", [server.url], *place))
            for n, place in enumerate((*places, ("--config", str(without))))
        )
        for door in (one, other, blind):
            wait_until("it knows the key", lambda door=door: chat(door.url, ann).status == 200)
        wait_until("it is told", lambda: told(other, ann).status == 200)
        wait_until("all of it", lambda: requests(told(other, ann)) == 3)
        late = []
        for number in range(4, 8):
            assert chat(one.url, ann).status == 200
            began = time.monotonic()
            wait_until("it is told", lambda n=number: requests(told(other, ann)) == n)
            late.append(time.monotonic() - began)
        assert max(late) < 2.0, late
        assert requests(told(one, boss, "/v1/organization/usage/completions")) == 7
        refused = told(blind, ann)
        assert refused.status == 503 and b"does not know where the ledger is" in refused.body
        assert chat(blind.url, ann).status == 200
