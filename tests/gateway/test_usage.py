"""Token counts of engines as the ledger's buckets: disjoint, never negative, adding up."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.endpoints import BY_NAME, ENDPOINTS
from gateway.wire.requests import Engine
from gateway.wire.usage import (
    NOTHING_USED,
    usage_from,
    usage_from_in_out,
    usage_from_messages,
    usage_from_prompt_only,
    usage_from_timings,
    usage_of_answer,
)
from ledger.events import Usage
from ledger.events.usage import TOKENS_MAX

counts = st.integers(-3, 50) | st.none()


def raw(said: Any) -> bytes:
    return json.dumps(said).encode()


def buckets(uncached: int, cached: int, written: int, reasoning: int, other: int) -> Usage:
    return Usage(
        uncached_in=uncached,
        cached_in=cached,
        cache_write_in=written,
        reasoning_out=reasoning,
        other_out=other,
    )


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ({"prompt_tokens": 12, "completion_tokens": 4}, buckets(12, 0, 0, 0, 4)),
        ({"prompt_tokens": 12}, buckets(12, 0, 0, 0, 0)),
        (
            {
                "prompt_tokens": 100,
                "completion_tokens": 30,
                "total_tokens": 130,
                "prompt_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 25, "x": 1},
                "completion_tokens_details": {"reasoning_tokens": 20, "audio_tokens": 0},
            },
            buckets(15, 60, 25, 20, 10),
        ),
        (
            {
                "prompt_tokens": 5,
                "completion_tokens": 1,
                "prompt_tokens_details": None,
                "completion_tokens_details": None,
            },
            buckets(5, 0, 0, 0, 1),
        ),
        (
            {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": None}},
            buckets(5, 0, 0, 0, 0),
        ),
        # Details that contradict their total are cut down to it: 12 cached of 5 are 5.
        (
            {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 12}},
            buckets(0, 5, 0, 0, 0),
        ),
        (
            {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": -1}},
            buckets(5, 0, 0, 0, 0),
        ),
        # SGLang says its reasoning tokens beside the totals; the details, where they are, win.
        (
            {"prompt_tokens": 5, "completion_tokens": 9, "reasoning_tokens": 4},
            buckets(5, 0, 0, 4, 5),
        ),
        (
            {
                "prompt_tokens": 5,
                "completion_tokens": 9,
                "reasoning_tokens": 4,
                "completion_tokens_details": {"reasoning_tokens": 2},
            },
            buckets(5, 0, 0, 2, 7),
        ),
        # What else is inside a total stays inside: sound, pictures, text, predictions.
        (
            {
                "prompt_tokens": 90,
                "completion_tokens": 50,
                "prompt_tokens_details": {"audio_tokens": 40, "image_tokens": 9, "text_tokens": 41},
                "completion_tokens_details": {
                    "audio_tokens": 20,
                    "accepted_prediction_tokens": 7,
                    "rejected_prediction_tokens": 8,
                    "text_tokens": 30,
                },
            },
            buckets(90, 0, 0, 0, 50),
        ),
        ({"prompt_tokens": TOKENS_MAX}, buckets(TOKENS_MAX, 0, 0, 0, 0)),
        ({"prompt_tokens": TOKENS_MAX + 1}, None),
        ({"prompt_tokens": 1, "completion_tokens": 10**30}, None),
        ({"prompt_tokens": -1, "completion_tokens": 4}, None),
        ({"prompt_tokens": 1, "completion_tokens": -4}, None),
        ({"prompt_tokens": "12"}, None),
        ({"prompt_tokens": 1.5}, None),
        ({"prompt_tokens": True}, None),
        ({"completion_tokens": 4}, None),
        ({}, None),
        (None, None),
        ("a lot", None),
        ([1, 2], None),
    ],
)
def test_openai_usage(said: Any, found: Usage | None) -> None:
    assert usage_from(raw(said)) == found
    assert usage_of_answer(raw({"id": "c", "usage": said})) == found


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ({"prompt_n": 8, "predicted_n": 3, "cache_n": 4}, buckets(8, 4, 0, 0, 3)),
        ({"prompt_n": 8, "predicted_n": 3, "prompt_ms": 1.25}, buckets(8, 0, 0, 0, 3)),
        ({"prompt_n": -1, "predicted_n": 3}, None),
        ({"prompt_n": 8, "predicted_n": TOKENS_MAX + 1}, None),
        ({"prompt_n": 8, "predicted_n": 3, "cache_n": 10**25}, None),
        ({"prompt_n": 8}, None),
        (None, None),
    ],
)
def test_llamacpp_timings(said: Any, found: Usage | None) -> None:
    assert usage_from_timings(raw(said)) == found


@given(
    prompt=st.integers(0, 40),
    completion=st.integers(0, 40),
    cached=counts,
    written=counts,
    reasoning=counts,
)
def test_buckets_are_disjoint_and_add_up_to_what_the_engine_said(
    prompt: int, completion: int, cached: int | None, written: int | None, reasoning: int | None
) -> None:
    said = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": cached, "cache_write_tokens": written},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }
    found = usage_from(raw(said))
    assert found is not None
    known = [count for count in found.counts() if count is not None]
    assert len(known) == 5
    assert min(known) >= 0
    assert sum(known[:3]) == prompt
    assert sum(known[3:]) == completion


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ({"prompt_tokens": 8, "total_tokens": 8}, buckets(8, 0, 0, 0, 0)),
        ({"total_tokens": 8}, buckets(8, 0, 0, 0, 0)),
        ({"prompt_tokens": 0, "total_tokens": 0}, buckets(0, 0, 0, 0, 0)),
        # An embedding has no output, whatever an engine writes.
        ({"prompt_tokens": 8, "completion_tokens": 3, "total_tokens": 8}, buckets(8, 0, 0, 0, 0)),
        (
            {"prompt_tokens": 8, "prompt_tokens_details": {"cached_tokens": 6}},
            buckets(2, 6, 0, 0, 0),
        ),
        ({"prompt_tokens": -8}, None),
        ({"total_tokens": "8"}, None),
        ({"prompt_tokens": None, "total_tokens": None}, None),
        ({}, None),
        (None, None),
    ],
)
@pytest.mark.parametrize("name", ["embeddings", "rerank"])
def test_usage_of_what_generates_nothing(name: str, said: Any, found: Usage | None) -> None:
    assert usage_from_prompt_only(raw(said)) == found
    assert usage_of_answer(raw({"usage": said}), BY_NAME[name], "vllm") == found


def test_sglangs_ranking_is_a_list_whose_pairs_are_added_up() -> None:
    pairs = [{"score": 0.5, "meta_info": {"id": "r", "prompt_tokens": n}} for n in (4, 9)]
    assert usage_of_answer(raw(pairs), BY_NAME["rerank"], "sglang") == buckets(13, 0, 0, 0, 0)
    for engine, name in (("vllm", "rerank"), ("sglang", "embeddings")):
        assert usage_of_answer(raw(pairs), BY_NAME[name], engine) is None  # type: ignore[arg-type]
    for wrong in ([], [{"score": 1}], [{"meta_info": {"prompt_tokens": -1}}]):
        assert usage_of_answer(raw(wrong), BY_NAME["rerank"], "sglang") is None


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ({"input_tokens": 12, "output_tokens": 4, "total_tokens": 16}, buckets(12, 0, 0, 0, 4)),
        (
            {
                "input_tokens": 26,
                "output_tokens": 9,
                "input_tokens_details": {"cached_tokens": 21, "cache_write_tokens": 3},
                "output_tokens_details": {"reasoning_tokens": 5},
            },
            buckets(2, 21, 3, 5, 4),
        ),
        (
            {
                "type": "tokens",
                "input_tokens": 14,
                "input_token_details": {"text_tokens": 10, "audio_tokens": 4},
                "output_tokens": 101,
            },
            buckets(14, 0, 0, 0, 101),
        ),
        ({"type": "duration", "seconds": 41}, None),
        ({"input_tokens": 5, "input_tokens_details": None}, buckets(5, 0, 0, 0, 0)),
        ({"input_tokens": -5, "output_tokens": 1}, None),
        ({"output_tokens": 1}, None),
        (None, None),
    ],
)
@pytest.mark.parametrize("name", ["responses", "audio/transcriptions", "audio/speech"])
def test_usage_of_responses_and_of_sound(name: str, said: Any, found: Usage | None) -> None:
    assert usage_from_in_out(raw(said)) == found
    assert usage_of_answer(raw({"usage": said}), BY_NAME[name], "openai") == found


@pytest.mark.parametrize(
    ("said", "found"),
    [
        # What vLLM says is the whole prompt and nothing of a cache.
        ({"input_tokens": 26, "output_tokens": 4}, buckets(26, 0, 0, 0, 4)),
        # llama.cpp and SGLang keep to Anthropic's own way: the kinds of input are disjoint.
        (
            {"cache_read_input_tokens": 21, "input_tokens": 5, "output_tokens": 4},
            buckets(5, 21, 0, 0, 4),
        ),
        (
            {
                "input_tokens": 0,
                "cache_read_input_tokens": 21,
                "cache_creation_input_tokens": 7,
                "output_tokens": 0,
            },
            buckets(0, 21, 7, 0, 0),
        ),
        (
            {"input_tokens": 3, "cache_read_input_tokens": None, "output_tokens": 1},
            buckets(3, 0, 0, 0, 1),
        ),
        ({"input_tokens": -3, "output_tokens": 1}, None),
        ({"input_tokens": 3, "output_tokens": TOKENS_MAX + 1}, None),
        ({"input_tokens": 3}, None),
        ({"output_tokens": 3}, None),
        ({"input_tokens": 0, "output_tokens": 3}, None),
        (None, None),
    ],
)
def test_usage_of_messages(said: Any, found: Usage | None) -> None:
    assert usage_of_answer(raw({"usage": said}), BY_NAME["messages"], "llamacpp") == found


def test_a_half_usage_of_messages_leaves_the_other_half_as_it_was() -> None:
    begun = usage_from_messages(raw({"input_tokens": 5, "cache_read_input_tokens": 2}))
    assert begun == Usage(uncached_in=5, cached_in=2, cache_write_in=0)
    assert usage_from_messages(raw({"output_tokens": 9}), begun) == buckets(5, 2, 0, 0, 9)
    # Nobody's prompt is empty: SGLang and vLLM write a zero where they do not know yet.
    later = raw({"input_tokens": 0, "output_tokens": 9})
    assert usage_from_messages(later, begun) == buckets(5, 2, 0, 0, 9)
    whole = raw({"input_tokens": 7, "output_tokens": 9})
    assert usage_from_messages(whole, begun) == buckets(7, 0, 0, 0, 9)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp", "openai"])
@pytest.mark.parametrize("name", ["tokenize", "messages/count_tokens"])
def test_where_no_model_runs_every_bucket_is_zero(name: str, engine: Engine) -> None:
    assert usage_of_answer(b'{"count":12}', BY_NAME[name], engine) == NOTHING_USED
    assert buckets(0, 0, 0, 0, 0) == NOTHING_USED


def test_of_several_answers_llamacpp_tells_the_first_only_which_is_no_usage() -> None:
    usage = {"prompt_tokens": 12, "completion_tokens": 3}
    one, two = ({"choices": [{"index": i} for i in range(n)], "usage": usage} for n in (1, 2))
    for name in ("chat/completions", "completions"):
        assert usage_of_answer(raw(one), BY_NAME[name], "llamacpp") == buckets(12, 0, 0, 0, 3)
        assert usage_of_answer(raw(two), BY_NAME[name], "llamacpp") is None
        assert usage_of_answer(raw(two), BY_NAME[name], "vllm") == buckets(12, 0, 0, 0, 3)


@given(
    body=st.binary(max_size=80) | st.builds(lambda said: b'{"usage":' + said, st.binary()),
    endpoint=st.sampled_from(list(ENDPOINTS.values())),
    engine=st.sampled_from(("vllm", "sglang", "llamacpp", "openai")),
)
def test_any_bytes_give_a_usage_or_nothing(body: bytes, endpoint: Any, engine: Engine) -> None:
    for read in (usage_from, usage_from_timings, usage_from_in_out, usage_from_messages):
        assert read(body) is None or isinstance(read(body), Usage)
    found = usage_of_answer(body, endpoint, engine)
    assert found is None or None not in found.counts()


def test_an_answer_without_end_of_nesting_has_no_usage() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    assert usage_of_answer(b'{"x":' + deep + b"}") is None
    assert usage_from(b'{"x":' + deep + b"}") is None
    assert usage_from_timings(deep) is None


def test_an_answer_that_is_no_object_has_no_usage() -> None:
    for body in (b"", b"[]", b"null", b"<html>", b'{"usage":', b'{"choices":[]}'):
        assert usage_of_answer(body) is None


@pytest.mark.parametrize("choices", ["null", '"two"', "{}", "[[]]", "7"])
def test_choices_that_are_no_list_hide_no_usage(choices: str) -> None:
    body = f'{{"choices":{choices},"usage":{{"prompt_tokens":9,"completion_tokens":2}}}}'.encode()
    usage = usage_of_answer(body, engine="llamacpp")
    assert usage is not None
    assert (usage.uncached_in, usage.other_out) == (9, 2)
