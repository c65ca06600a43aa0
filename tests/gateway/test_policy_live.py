"""Policies over sockets: what engines tell of themselves decides, per model, and is told."""

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.gateway.doors import CHAT, ask, backend, door, new_key
from tests.support import processes
from tests.support.fake_backend import KEY
from tests.support.processes import Answer, call, wait_until

LONG = "fake-n60-i50000"
"""A stream of three seconds."""
SIGNAL_SECONDS_MAX = 0.5
"""Five times as often as engines are read here."""
BY_SCORE, BY_TURNS = "fake-n2", "fake-n3"
REQUESTS = 20


def by_backend(answers: list[Answer]) -> Counter[str]:
    assert {answer.status for answer in answers} == {200}
    return Counter(answer.headers["x-tollbook-backend"] for answer in answers)


@pytest.mark.e2e
def test_load_that_only_the_engine_knows_of_decides_unless_the_policy_is_turns(
    tmp_path: Path,
) -> None:
    """Eight calls past the gateway keep one engine at work; only its own page tells of them."""
    tables = [{"model": BY_TURNS, "policy": "round_robin"}]
    with ExitStack() as stack:
        one = stack.enter_context(processes.backend(tmp_path))
        two = stack.enter_context(processes.backend(tmp_path))
        gateway = stack.enter_context(
            door(
                tmp_path,
                [backend(one.url, "one"), backend(two.url, "two")],
                gateway={"models": ["*"]},
                routing={"signal_seconds": 0.1, "explore_percent": 0},
                policies=tables,
            )
        )
        key = new_key(tmp_path / "data", "all")
        with ThreadPoolExecutor(8) as pool:
            body = {"model": LONG, "stream": True}
            past = [pool.submit(call, one.url + CHAT, body, KEY) for _ in range(8)]
            wait_until("all run", lambda: one.stats()["ends"].get("open", 0) == 8)
            time.sleep(SIGNAL_SECONDS_MAX)
            scored = [ask(gateway, key, BY_SCORE) for _ in range(REQUESTS)]
            turned = [ask(gateway, key, BY_TURNS) for _ in range(REQUESTS)]
            still = sum(not each.done() for each in past)
        assert still == 8, "the engine was busy all the while"
        assert by_backend(scored) == {"two": REQUESTS}
        assert by_backend(turned) == {"one": REQUESTS // 2, "two": REQUESTS // 2}
        assert {answer.headers["x-tollbook-route"] for answer in turned} == {
            "score=0.000; its turn, 2 of 2 backends fit"
        }
        text = call(gateway.url + "/metrics").body.decode()
        picks = {
            (sample.labels["backend"], sample.labels["how"]): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == "tollbook_picks_total"
        }
        assert picks["two", "score"] >= 1.5 * REQUESTS
        assert not any(how == "explored" for _, how in picks)
