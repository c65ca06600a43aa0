"""Every door on the real llama.cpp: the ledger has its own counts, whoever calls and who leaves.

One server, started for embeddings and ranks as well, and one gateway. What each call cost is the
difference of the server's own counters before and after it.
"""

import http.client
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import anthropic
import msgspec
import openai
import pytest

from gateway.demo.checks import Counters
from tests.support.llama import KEY, MODEL, counters, llama_server
from tests.support.processes import call, gateway, tollbook, tollbook_json, wait_until

pytestmark = pytest.mark.e2e

WORDS = "Count from one to ten, and then back to one."
MESSAGES: Any = [{"role": "user", "content": WORDS}]
GREEDY: dict[str, Any] = {"model": MODEL, "temperature": 0}
ANSWERS: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": MESSAGES, "max_tokens": 9},
    "completions": {"prompt": WORDS, "max_tokens": 9},
    "responses": {"input": WORDS, "max_output_tokens": 9},
    "messages": {"messages": MESSAGES, "max_tokens": 9},
}
"""The doors behind which something is generated."""

CALLS: list[tuple[str, str, dict[str, Any]]] = [
    *((name, f"/v1/{name}", body) for name, body in ANSWERS.items()),
    *((name, f"/v1/{name}", body | {"stream": True}) for name, body in ANSWERS.items()),
    ("embeddings", "/v1/embeddings", {"input": ["hello there", WORDS]}),
    ("rerank", "/v1/rerank", {"query": "a cat", "documents": ["the cat sat", "a dog", WORDS]}),
    ("messages/count_tokens", "/v1/messages/count_tokens", {"messages": MESSAGES}),
    ("tokenize", "/tokenize", {"content": WORDS}),
]
NOTHING = Counters(prompt=0, cached=0, predicted=0)
FREE_SECONDS_MAX = 3.0
"""From a client's leaving until the engine works for nobody; without a stop it is half a minute."""

LONG = 1000
"""Tokens that a client asks for who leaves after a few."""

PIECES: dict[str, bytes] = {
    "chat/completions": b'"content":"',
    "completions": b'"text":"',
    "responses": b'"response.output_text.delta"',
    "messages": b'"text_delta"',
}
"""What an event with a piece of text holds. A piece is a token."""

SEA = "Tell me everything about the sea."
TALES: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": [{"role": "user", "content": SEA}], "max_tokens": LONG},
    "completions": {"prompt": SEA, "max_tokens": LONG},
    "responses": {"input": SEA, "max_output_tokens": LONG},
    "messages": {"messages": [{"role": "user", "content": SEA}], "max_tokens": LONG},
}
"""What is asked for by a client who will not wait for the end."""


class House(msgspec.Struct):
    """The engine, the gateway in front of it, and a key."""

    engine: str
    front: str
    key: str
    data: Path

    def row(self, request_id: str) -> dict[str, Any]:
        """The request as the ledger has it, once it has its end."""
        sql = f"SELECT * FROM requests WHERE request_id = '{request_id}' AND state <> 'open'"

        def found() -> Any:
            return tollbook_json(self.data, "query", sql)["rows"]

        (row,) = wait_until(f"{request_id} has its end", found)
        assert isinstance(row, dict)
        return row

    def busy(self) -> bool:
        """True while the engine works on a request."""
        page = call(f"{self.engine}/metrics", key=KEY).body.decode()
        return "llamacpp:requests_processing 0" not in page


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    place = tmp_path_factory.mktemp("doors")
    data = place / "books"
    with llama_server(pooled=True) as engine, gateway(data, [engine], backend_key=KEY) as front:
        key = tollbook_json(data, "keys", "create", "--name", "ada")["key"]
        wait_until("the key opens", lambda: call(f"{front.url}/v1/models", key=key).status == 200)
        yield House(engine, front.url, key, data)


class Called(msgspec.Struct):
    """One call: its row's id, and what the engine counted meanwhile."""

    request_id: str
    cost: Counters


@pytest.fixture(scope="module")
def called(house: House) -> dict[tuple[str, bool], Called]:
    """Every call of `CALLS` twice, one after the other; the second one finds its prompt cached."""
    found: dict[tuple[str, bool], Called] = {}
    for name, path, body in CALLS * 2:
        before = counters(house.engine)
        answer = call(f"{house.front}{path}", GREEDY | body, house.key)
        assert answer.status == 200, answer.body
        cost = counters(house.engine).minus(before)
        found[name, "stream" in body] = Called(answer.headers["x-request-id"], cost)
    return found


@pytest.fixture(scope="module")
def rows(house: House, called: dict[tuple[str, bool], Called]) -> dict[str, dict[str, Any]]:
    """The ledger's rows of these calls, by request id."""
    house.row(list(called.values())[-1].request_id)
    found = tollbook_json(house.data, "query", "SELECT * FROM requests")["rows"]
    return {row["request_id"]: row for row in found}


@pytest.mark.parametrize(
    ("name", "streamed"), [(name, "stream" in body) for name, _, body in CALLS]
)
def test_the_ledger_has_what_the_engine_counted(
    called: dict[tuple[str, bool], Called],
    rows: dict[str, dict[str, Any]],
    name: str,
    streamed: bool,
) -> None:
    one = called[name, streamed]
    row = rows[one.request_id]
    assert (row["endpoint"], row["stream"]) == (name, streamed)
    assert (row["outcome"], row["basis"]) == ("completed", "reported")
    made = (row["reasoning_out"] or 0) + row["other_out"]
    counted = Counters(prompt=row["uncached_in"], cached=row["cached_in"] or 0, predicted=made)
    assert counted == one.cost
    if name in ANSWERS:
        assert one.cost.predicted == 9 and one.cost.cached > 0, "a second call finds its prompt"
    elif name in ("embeddings", "rerank"):
        assert one.cost.prompt > 8 and one.cost.predicted == 0
    else:
        assert one.cost == NOTHING, "the model did not run"


def test_the_official_openai_client(house: House) -> None:
    with openai.OpenAI(base_url=f"{house.front}/v1", api_key=house.key, max_retries=0) as api:
        before = counters(house.engine)
        answer = api.responses.create(model=MODEL, input=WORDS, max_output_tokens=7)
        with api.responses.create(
            model=MODEL, input=WORDS, max_output_tokens=7, stream=True
        ) as stream:
            (last,) = [event for event in stream if event.type == "response.completed"]
        vectors = api.embeddings.create(model=MODEL, input=["hello there", WORDS])
        cost = counters(house.engine).minus(before)
    assert answer.usage is not None and last.response.usage is not None
    usages = [answer.usage, last.response.usage]
    assert [usage.output_tokens for usage in usages] == [7, 7] and cost.predicted == 14
    told = sum(usage.input_tokens for usage in usages) + vectors.usage.prompt_tokens
    assert told == cost.prompt + cost.cached
    assert len(vectors.data) == 2


def test_the_official_anthropic_client(house: House) -> None:
    with anthropic.Anthropic(base_url=house.front, api_key=house.key, max_retries=0) as api:
        before = counters(house.engine)
        answer = api.messages.create(model=MODEL, messages=MESSAGES, max_tokens=7)
        with api.messages.stream(model=MODEL, messages=MESSAGES, max_tokens=7) as stream:
            streamed = stream.get_final_message()
        cost = counters(house.engine).minus(before)
        said = api.messages.count_tokens(model=MODEL, messages=MESSAGES).input_tokens
    usages = [answer.usage, streamed.usage]
    assert [usage.output_tokens for usage in usages] == [7, 7] and cost.predicted == 14
    assert sum(usage.input_tokens for usage in usages) == cost.prompt
    assert sum(usage.cache_read_input_tokens or 0 for usage in usages) == cost.cached
    assert 2 * said == cost.prompt + cost.cached
    with (
        anthropic.Anthropic(base_url=house.front, api_key="no", max_retries=0) as stranger,
        pytest.raises(anthropic.AuthenticationError, match="key"),
    ):
        stranger.messages.create(model=MODEL, messages=MESSAGES, max_tokens=7)


def leave(front: str, key: str, name: str, after: int, **more: Any) -> tuple[str, int]:
    """Begin a long stream, hang up after so many pieces of text; the row's id, pieces seen."""
    body = GREEDY | TALES[name] | {"stream": True, "ignore_eos": True} | more
    line = http.client.HTTPConnection(urlparse(front).netloc, timeout=60)
    head = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    line.request("POST", f"/v1/{name}", json.dumps(body), head)
    answer = line.getresponse()
    seen = 0
    while seen < after:
        event = answer.readline()
        assert event, "the stream is longer than what is read of it"
        seen += event.startswith(b"data: ") and PIECES[name] in event
    answer.close()
    line.close()
    request_id = answer.headers["x-request-id"]
    assert request_id is not None
    return request_id, seen


@pytest.mark.parametrize("name", list(TALES))
def test_a_client_that_leaves_frees_the_slot_and_is_billed(house: House, name: str) -> None:
    before = counters(house.engine)
    request_id, seen = leave(house.front, house.key, name, 6)
    left = time.monotonic()
    wait_until("the slot is free", lambda: not house.busy(), FREE_SECONDS_MAX)
    print(f"{name}: free {1000 * (time.monotonic() - left):.0f} ms after the client left")
    cost = counters(house.engine).minus(before)
    row = house.row(request_id)
    assert row["outcome"] == "client_gone"
    # Where llama.cpp says nothing while it runs, its own tokenizer is asked.
    known = name in ("chat/completions", "completions")
    assert row["basis"] == ("running" if known else "tokenized")
    assert row["uncached_in"] + (row["cached_in"] or 0) == cost.prompt + cost.cached
    # The engine stops a token or a few after the last chunk that anyone saw.
    assert seen <= row["other_out"] <= cost.predicted < LONG / 2


def leave_whole(house: House, url: str, key: str) -> Counters:
    """Ask for a whole answer of 60 tokens, leave once the engine works on it; what it cost."""
    before = counters(house.engine)
    place = urlparse(url)
    asked = GREEDY | TALES["chat/completions"] | {"ignore_eos": True, "max_tokens": 60}
    body = json.dumps(asked).encode()
    with socket.create_connection((place.hostname, place.port)) as line:
        line.sendall(
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}"
            f"\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        wait_until("the engine works on it", house.busy)
    return counters(house.engine).minus(before)


def test_llama_cpp_goes_on_with_a_whole_answer_whose_client_left(house: House) -> None:
    """If it stops one day, `gateway.cuts.reads_on` should let it."""
    assert leave_whole(house, house.engine, KEY).predicted == 60


def test_so_the_gateway_reads_it_to_its_end(house: House) -> None:
    cost = leave_whole(house, house.front, house.key)
    sql = "SELECT * FROM requests WHERE NOT stream AND outcome = 'client_gone'"
    (row,) = wait_until("it is billed", lambda: tollbook_json(house.data, "query", sql)["rows"])
    assert row["basis"] == "reported"
    assert Counters(row["uncached_in"], row["cached_in"], row["other_out"]) == cost


def test_a_model_that_is_drained_is_billed_as_the_engine_says(house: House, tmp_path: Path) -> None:
    config = tmp_path / "tollbook.toml"
    config.write_text(f'[gateway]\ndrain_to_end = ["{MODEL}"]\n')
    data = tmp_path / "books"
    key = tollbook_json(data, "keys", "create", "--name", "ben")["key"]
    with gateway(data, [house.engine], "--config", str(config), backend_key=KEY) as front:
        before = counters(house.engine)
        request_id, _ = leave(front.url, key, "responses", 2, max_output_tokens=40)
        drained = House(house.engine, front.url, key, data)
        row = drained.row(request_id)
        cost = counters(house.engine).minus(before)
    assert (row["outcome"], row["basis"]) == ("client_gone", "reported")
    assert row["other_out"] == cost.predicted == 40
    assert (row["uncached_in"], row["cached_in"]) == (cost.prompt, cost.cached)


def test_streams_one_behind_the_other_all_arrive(house: House) -> None:
    """llama.cpp closes a connection behind a stream though it says that it keeps it."""
    body = GREEDY | ANSWERS["completions"] | {"stream": True, "max_tokens": 1}
    found = [call(f"{house.front}/v1/completions", body, house.key) for _ in range(20)]
    assert {answer.status for answer in found} == {200}
    assert all(answer.body.endswith(b"[DONE]\n\n") for answer in found)


def test_the_books_are_in_order(house: House) -> None:
    assert tollbook(house.data, "audit").returncode == 0
