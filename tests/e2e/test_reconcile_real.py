"""Reconciliation on the real llama.cpp: calls made around the gateway are exactly the surplus."""

import http.client
import json
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import msgspec
import pytest

from gateway.demo.checks import Counters
from ledger.clock import SystemClock
from ledger.folds.counters import COUNTINGS
from ledger.folds.reconcile import EDGE
from tests.support.llama import KEY, MODEL, counters, llama_server
from tests.support.processes import call, gateway, tollbook, tollbook_json, wait_until

pytestmark = pytest.mark.e2e

CONFIG = "[gateway]\nscrape_seconds = 1\n"


class Story(msgspec.Struct):
    """A gateway's life: first everything came through it, then some calls went around it."""

    data: Path
    begin: str
    middle: str
    end: str
    first: Counters
    second: Counters
    around: list[dict[str, Any]]


READ_SECONDS = 0.5
"""The reading nearest to a moment is at most so far from it."""


def moment(quiet: timedelta = EDGE) -> str:
    """Now, when nothing was at work for so long that it could be on either side."""
    time.sleep(quiet.total_seconds() + READ_SECONDS + 0.2)
    return SystemClock().now().isoformat()


def ask(url: str, key: str, words: str, tokens: int) -> dict[str, Any]:
    """One plain answer; what the engine says of its tokens."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": words}], "max_tokens": tokens}
    usage: dict[str, Any] = call(f"{url}/v1/chat/completions", body, key).json()["usage"]
    return usage


def leave(url: str, key: str, chunks: int) -> None:
    """Begin a long stream, read some of it, and hang up."""
    body = {"model": MODEL, "stream": True, "max_tokens": 400}
    body["messages"] = [{"role": "user", "content": "Tell me everything about the sea."}]
    line = http.client.HTTPConnection(urlparse(url).netloc, timeout=30)
    head = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    line.request("POST", "/v1/chat/completions", json.dumps(body), head)
    with line.getresponse() as answer:
        seen = 0
        while seen < chunks:
            seen += answer.readline().startswith(b"data:")
    line.close()


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    place = tmp_path_factory.mktemp("reconcile")
    data, config = place / "books", place / "tollbook.toml"
    config.write_text(CONFIG)
    with llama_server() as engine:
        with gateway(data, [engine], "--config", str(config), backend_key=KEY) as front:
            key = tollbook_json(data, "keys", "create", "--name", "ada")["key"]
            url = front.url
            wait_until("the key opens", lambda: call(f"{url}/v1/models", key=key).status == 200)
            begin, before = moment(timedelta()), counters(engine)
            moment()
            ask(url, key, "Say one word.", 3)
            ask(url, key, "Say one word, and another.", 5)
            leave(url, key, 12)
            middle, between = moment(EDGE + COUNTINGS[0].notice), counters(engine)
            moment()
            ask(url, key, "Say one word.", 4)
            around = [ask(engine, KEY, "Nobody sees me.", 7), ask(engine, KEY, "Nor me.", 6)]
            end, after = moment(), counters(engine)
            front.terminate()
        yield Story(data, begin, middle, end, between.minus(before), after.minus(between), around)


def compared(story: Story, since: str, until: str, code: int) -> dict[str, Any]:
    """The one window from `since` to `until`, by side."""
    options = ("--since", since, "--until", until, "--json")
    done = tollbook(story.data, "reconcile", *options, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    (window,) = json.loads(done.stdout)["windows"]
    assert window["engine"] == "llamacpp" and window["over"] and not window["restarts"]
    return {side["side"]: side for side in window["sides"]}


def test_what_came_through_the_gateway_is_explained(story: Story) -> None:
    sides = compared(story, story.begin, story.middle, 0)
    engine = [sides[name]["engine"] for name in ("uncached_in", "cached_in", "out")]
    assert engine == [story.first.prompt, story.first.cached, story.first.predicted]
    assert sides["uncached_in"]["difference"] == sides["cached_in"]["difference"] == 0
    cut = sides["out"]
    (cause,) = [one for one in cut["causes"] if one["name"] == "cut"]
    assert cause["requests"] == 1 and 0 <= cut["difference"] <= cause["more"] < 400


def test_what_went_around_it_is_exactly_the_surplus(story: Story) -> None:
    sides = compared(story, story.middle, story.end, 1)
    cached = sum(one["prompt_tokens_details"]["cached_tokens"] for one in story.around)
    prompt = sum(one["prompt_tokens"] for one in story.around) - cached
    made = sum(one["completion_tokens"] for one in story.around)
    for name, surplus in (("uncached_in", prompt), ("cached_in", cached), ("out", made)):
        assert sides[name]["difference"] == sides[name]["beyond"] == surplus, sides
        found = [one["more"] for one in sides[name]["causes"] if one["name"] == "back_door"]
        assert found == [surplus] * bool(surplus)
    engine = [sides[name]["engine"] for name in ("uncached_in", "cached_in", "out")]
    assert engine == [story.second.prompt, story.second.cached, story.second.predicted]


def test_a_person_reads_who_was_at_the_back_door(story: Story) -> None:
    done = tollbook(story.data, "reconcile", "--hours", "1", check=False)
    assert done.returncode == 1
    assert "BACK DOOR" in done.stdout and "surplus" in done.stdout
