"""What counts as a sign of life from a model, in the words of several engines."""

import json
from typing import Any

import pytest

from gateway.wire.generated import verdict_of


def body(
    message: dict[str, Any] | None = None, end: str | None = "length", count: int | None = 1
) -> bytes:
    choice = {"index": 0, "message": message or {}, "finish_reason": end}
    usage = None if count is None else {"prompt_tokens": 3, "completion_tokens": count}
    return json.dumps({"choices": [choice], "usage": usage}).encode()


ALIVE = {
    "a token of text": body({"content": "p"}),
    "vLLM, a reasoning model's first token": body({"content": None, "reasoning_content": "Ok"}),
    "SGLang or llama.cpp, the thought not shown": body({"content": ""}),
    "the key left out": body({"role": "assistant"}),
    "an end at once": body({"content": ""}, "stop"),
    "an engine that counts nothing": body({"content": ""}, "stop", None),
    "text though nothing is counted": body({"content": "p"}, None, None),
    "text though the count says zero": body({"content": "p"}, "stop", 0),
    "a call of a tool": body({"content": None, "tool_calls": [{"id": "1"}]}, "tool_calls"),
    "counted and not shown": b'{"choices":[],"usage":{"completion_tokens":1}}',
    "another form": b'{"choices":[{"text":"p"}]}',
}
DEAD = {
    "no answers": b'{"choices":[]}',
    "nothing": b"{}",
    "empty": b"",
    "a page": b"<html>It works!</html>",
    "no token counted, none shown": body({"content": ""}, "stop", 0),
    "no word, no count, no end": body({"content": ""}, None, None),
    "an error with status 200": b'{"error":{"message":"engine is dead"}}',
}


@pytest.mark.parametrize("said", ALIVE.values(), ids=ALIVE)
def test_a_model_that_lives(said: bytes) -> None:
    assert verdict_of(200, said)[0] == "made"


@pytest.mark.parametrize("said", DEAD.values(), ids=DEAD)
def test_a_model_that_does_not(said: bytes) -> None:
    assert verdict_of(200, said)[0] == "failed"


def test_an_error_of_the_server_or_of_the_key_is_a_failure_and_a_refusal_is_none() -> None:
    for status, verdict in (
        (500, "failed"),
        (503, "failed"),
        (401, "failed"),
        (403, "failed"),
        (429, "failed"),
        (400, "refused"),
        (404, "refused"),
        (422, "refused"),
    ):
        assert verdict_of(status, b"{}")[0] == verdict
    assert "server key" in verdict_of(401, b"")[1]
