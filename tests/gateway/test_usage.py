"""Token counts of engines as the ledger's buckets: disjoint, never negative, adding up."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.usage import usage_from, usage_from_timings, usage_of_answer
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


@given(body=st.binary(max_size=80))
def test_any_bytes_give_a_usage_or_nothing(body: bytes) -> None:
    for read in (usage_from, usage_from_timings, usage_of_answer):
        assert read(body) is None or isinstance(read(body), Usage)


def test_an_answer_without_end_of_nesting_has_no_usage() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    assert usage_of_answer(b'{"x":' + deep + b"}") is None
    assert usage_from(b'{"x":' + deep + b"}") is None
    assert usage_from_timings(deep) is None


def test_an_answer_that_is_no_object_has_no_usage() -> None:
    for body in (b"", b"[]", b"null", b"<html>", b'{"usage":', b'{"choices":[]}'):
        assert usage_of_answer(body) is None
