"""A backend's life at run time over sockets: added, drained under load, stopped and removed, while
no request fails and nothing is restarted. `tests/routing/test_life.py` rolls updates out."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.doors import Key, ask, backend, door, ended, new_key
from tests.support import processes
from tests.support.fake_backend import KEY
from tests.support.processes import (
    Answer,
    Backend,
    Gateway,
    call,
    tollbook,
    tollbook_json,
    wait_until,
)

LONG = "fake-n40-i50000"
"""A stream of two seconds."""
SHORT = "fake-n4-i5000"
MAX_TOKENS = 60
"""At 50 ms for each, what a long answer may still have takes three seconds at most."""


class Load(threading.Thread):
    """Calls the gateway over and over in `count` threads, and keeps every answer."""

    def __init__(self, gateway: Gateway, key: Key, model: str) -> None:
        super().__init__(daemon=True)
        self.answers: list[Answer] = []
        self._gateway, self._key, self._model = gateway, key, model
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.is_set():
            answer = ask(self._gateway, self._key, self._model, stream=True, max_tokens=MAX_TOKENS)
            self.answers.append(answer)

    def end(self) -> None:
        self._ended.set()
        self.join(20)


@contextmanager
def loaded(gateway: Gateway, key: Key, count: int, model: str = SHORT) -> Iterator[list[Load]]:
    loads = [Load(gateway, key, model) for _ in range(count)]
    for load in loads:
        load.start()
    try:
        yield loads
    finally:
        for load in loads:
            load.end()


def models(gateway: Gateway, key: Key) -> Answer:
    return call(f"{gateway.url}/v1/models", key=key.secret)


def known_key(gateway: Gateway, data: Path, name: str, *args: str) -> Key:
    """A new key that the gateway knows by now."""
    key = new_key(data, name, *args)
    wait_until("the key is known", lambda: models(gateway, key).status == 200)
    return key


def shares(loads: list[Load]) -> Counter[str]:
    """Answers by backend; none of them failed."""
    answers = [answer for load in loads for answer in load.answers]
    assert {answer.status for answer in answers} == {200}
    assert all(answer.body.endswith(b"data: [DONE]\n\n") for answer in answers)
    return Counter(answer.headers["x-tollbook-backend"] for answer in answers)


def running(one: Backend) -> int:
    """Requests that the server is at work on."""
    return int(one.stats()["ends"].get("open", 0))


def listed(data: Path) -> dict[str, dict[str, Any]]:
    found = tollbook_json(data, "backends", "list")["backends"]
    return {one["id"]: one for one in found}


def states(data: Path) -> dict[str, str]:
    return {name: said["state"] for name, said in listed(data).items()}


@pytest.mark.e2e
def test_a_backend_is_added_drained_stopped_and_removed_under_load(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with ExitStack() as stack:
        one = stack.enter_context(processes.backend(tmp_path))
        two = stack.enter_context(processes.backend(tmp_path))
        gateway = stack.enter_context(
            door(tmp_path, [backend(one.url, "one")], gateway={"models": ["*"]})
        )
        key = known_key(gateway, data, "all")
        reference = f"file:{tmp_path}/server-key"
        with loaded(gateway, key, 3) as loads:
            tollbook(data, "backends", "add", "two", "--url", two.url, "--key", reference)
            wait_until("the new backend gets requests", lambda: two.stats()["requests"] > 3)
        assert set(shares(loads)) == {"one", "two"}
        wait_until("both are told of as up", lambda: states(data) == {"one": "up", "two": "up"})
        origins = {name: said["from"] for name, said in listed(data).items()}
        assert origins == {"one": "heard of", "two": "registry"}

        with loaded(gateway, key, 3) as loads, loaded(gateway, key, 2, LONG) as long:
            wait_until("a long answer runs at it", lambda: running(one) > 0)
            drained = tollbook_json(data, "backends", "drain", "one")
            assert drained["safe"] and drained["running"] == 0
            assert 1 <= drained["grace_seconds"] <= 20 and drained["waited_seconds"] < 20
            assert call(f"{gateway.url}/health/ready").json()["backends"]["one"] == "draining"
            left = running(one)
            one.kill()
            assert left == 0
            wait_until("the load goes on", lambda: all(load.answers for load in loads))
        shares(loads)
        shares(long)
        tollbook(data, "backends", "remove", "one")
        with loaded(gateway, key, 2) as loads:
            wait_until("answers", lambda: sum(len(load.answers) for load in loads) > 10)
        assert set(shares(loads)) == {"two"}
        wait_until("it is forgotten", lambda: set(listed(data)) == {"two"})
        (told,) = tollbook_json(data, "shares", "--ended")["gateways"]
        assert [one["id"] for one in told["backends"]] == ["two"], "its last view is kept for a day"
        assert KEY not in gateway.output() and "Traceback" not in gateway.output()


@pytest.mark.e2e
def test_a_smaller_model_answers_is_named_and_is_billed_as_what_it_was(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with ExitStack() as stack:
        big = stack.enter_context(processes.backend(tmp_path, models="fake-big"))
        small = stack.enter_context(processes.backend(tmp_path, models="fake-small"))
        servers = [backend(big.url, "one"), backend(small.url, "two")]
        to = [{"model": model, "to": ["fake-small"]} for model in ("fake-big", "fake-ghost")]
        gateway = stack.enter_context(door(tmp_path, servers, fallbacks=to))
        key = known_key(gateway, data, "all")
        strict = known_key(gateway, data, "strict", "--no-fallback")
        few = known_key(gateway, data, "few", "--models", "fake-big")
        usual = ask(gateway, key, "fake-big")
        assert usual.headers["x-tollbook-backend"] == "one"
        assert "x-tollbook-fallback" not in usual.headers
        big.kill()
        # The first one finds out by itself, the later ones know.
        for stream in (False, True, False):
            answer = ask(gateway, key, "fake-big", stream=stream)
            assert answer.status == 200 and answer.headers["x-tollbook-backend"] == "two"
            assert answer.headers["x-tollbook-fallback"] == "fake-small"
            assert b"fake-small" in answer.body and b"fake-big" not in answer.body
        assert "fallback, as no backend" in answer.headers["x-tollbook-route"]
        ghost = ask(gateway, key, "fake-ghost")
        assert ghost.status == 200 and ghost.headers["x-tollbook-fallback"] == "fake-small"
        refusals = 0
        for one in (strict, few):
            refused = ask(gateway, one, "fake-big")
            assert refused.status in (502, 503)
            # A call is billed, if for nothing, once a backend was tried.
            refusals += "x-tollbook-backend" in refused.headers
        end = ended(data, answer.headers["x-request-id"])
        assert (end.model, end.asked_model) == ("fake-small", "fake-big")
        metrics = call(f"{gateway.url}/metrics").body.decode()
        assert 'tollbook_fallbacks_total{model="fake-big",to="fake-small"} 3.0' in metrics
    billed = Counter[str]()
    for row in tollbook_json(data, "bill", "--by", "model")["rows"]:
        billed[row["model"]] += row["requests"]
    # Those of the two keys without a fallback failed, and stand on the bill without tokens.
    assert billed == {"fake-big": 1 + refusals, "fake-small": 4}
    assert tollbook(data, "audit").returncode == 0
