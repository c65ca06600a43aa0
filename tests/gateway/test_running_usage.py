"""Usage that runs through a stream, comes last or alone, or is told of each of several answers."""

from typing import Any

import msgspec
import pytest

from gateway.wire.endpoints import CHAT
from gateway.wire.meters import make_meter
from gateway.wire.requests import Asked, Engine
from ledger.events import Basis, Usage
from tests.gateway.answers import (
    ENGINES,
    WISH,
    WISH_USAGE,
    Style,
    chunk,
    events,
    metered,
    pieces,
    tokens,
    usage,
    written,
)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("choices", [{}, {"choices": None}, {"choices": []}])
def test_usage_alone_is_the_last_word_with_and_without_choices(
    engine: Engine, choices: dict[str, Any]
) -> None:
    running: dict[str, Any] = {} if engine in ("openai", "llamacpp") else {"usage": usage(9, 1)}
    items = [chunk({"content": "a"}, **running), chunk({}, "stop", **running)]
    alone = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"} | choices
    stream = written([*items, alone | {"usage": usage(9, 2)}], Style())
    for reads in ([stream], pieces(stream, range(0, len(stream), 9))):
        meter, passed = metered(reads, WISH, engine)
        assert meter.counted() == ("reported", tokens(9, 2))
        assert len(events(passed)) == 3
        assert b"usage" not in passed
        meter, passed = metered(reads, WISH_USAGE, engine)
        assert meter.counted() == ("reported", tokens(9, 2))
        assert events(passed)[-2] == alone | {"usage": usage(9, 2)}


def test_a_usage_beside_something_else_is_taken_out_of_it() -> None:
    item = {"object": "progress", "done": 7, "usage": usage(9, 2)}
    for engine in ENGINES:
        meter, passed = metered([written([item], Style())], WISH, engine)
        assert meter.counted() == ("reported", tokens(9, 2))
        assert events(passed)[0] == {"object": "progress", "done": 7}


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_many_last_words_in_one_read_do_not_nest(engine: Engine) -> None:
    alone = {"id": "c", "choices": [], "usage": usage(9, 2)}
    stream = written([chunk({"content": "a"}, usage=usage(9, 1)), *[alone] * 3000], Style())
    meter, passed = metered([stream], WISH, engine)
    assert meter.counted() == ("reported", tokens(9, 2))
    assert len(events(passed)) == 2


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("together", [True, False])
def test_text_behind_the_last_running_usage_is_counted_on_top(
    engine: Engine, together: bool
) -> None:
    """It is a lower bound from then on: an engine that stops telling makes more than its chunks."""
    items = [chunk({"content": "a"}, usage=usage(9, 4)), *[chunk({"content": "b"})] * 3]
    stream = written(items, Style(done=False))
    reads = [stream] if together else pieces(stream, range(0, len(stream), 50))
    meter, _ = metered(reads, WISH, engine)
    assert meter.counted() == ("counted", tokens(9, 7))
    assert not meter.covered
    more = written([chunk({}, "stop", usage=usage(9, 11))], Style(done=False))
    meter.feed(more)
    assert meter.counted() == ("running", tokens(9, 11))
    assert meter.covered


def test_several_chunks_of_one_token_of_llamacpp_are_one_token() -> None:
    """It splits what one token brings, and only the last chunk has the timings."""
    timings = {"cache_n": 0, "prompt_n": 9, "predicted_n": 4}
    items = [chunk({"content": "a"}, timings=timings)]
    items += [chunk({"tool_calls": [{"function": {"arguments": "{"}}]})] * 3
    meter, _ = metered([written(items, Style(done=False))], WISH, "llamacpp")
    assert meter.counted() == ("counted", tokens(9, 5))
    assert not meter.covered


def test_a_running_usage_that_cannot_be_believed_covers_nothing() -> None:
    items = [chunk({"content": "a"}, usage=usage(-9, 1)), chunk({"content": "b"}, usage="much")]
    for item in items:
        meter, _ = metered([written([item], Style(done=False))], WISH, "vllm")
        assert not meter.covered
        assert meter.counted() == ("counted", Usage(other_out=1))


def several(answers: int, prompts: int = 1) -> Asked:
    return msgspec.structs.replace(WISH, answers=answers, prompts=prompts)


def _of(index: int, text: str, **more: Any) -> dict[str, Any]:
    choice = {"index": index, "delta": {"content": text}, "finish_reason": None}
    return {"id": "c", "choices": [choice]} | more


def meter_of(items: list[Any], wish: Asked, engine: Engine) -> tuple[Basis, Usage]:
    stream = written(items, Style(done=False))
    found = set()
    for reads in ([stream], pieces(stream, range(0, len(stream), 40))):
        meter = make_meter(CHAT, wish, engine)
        for read in reads:
            meter.feed(read)
        found.add((meter.counted(), meter.covered))
    assert len(found) == 1
    return found.pop()[0]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_of_several_answers_each_has_its_own_running_usage(engine: Engine) -> None:
    items = [
        _of(0, "a", usage=usage(10, 3)),
        _of(1, "b", usage=usage(10, 1)),
        _of(0, "c", usage=usage(10, 5)),
    ]
    assert meter_of(items, several(2), engine) == ("running", tokens(10, 6))
    last = {"id": "c", "choices": [], "usage": usage(10, 9)}
    assert meter_of([*items, last], several(2), engine) == ("reported", tokens(10, 9))


def test_several_prompts_are_counted_each_once() -> None:
    """Their answers stand behind each other: 0 and 1 to the first, 2 and 3 to the second."""
    items = [
        _of(0, "a", usage=usage(10, 2)),
        _of(3, "b", usage=usage(20, 3)),
        _of(1, "c", usage=usage(10, 4)),
        _of(2, "d", usage=usage(20, 5)),
    ]
    assert meter_of(items, several(2, prompts=2), "vllm") == ("running", tokens(30, 14))


def test_of_several_answers_llamacpp_says_each_ones_usage_and_no_sum() -> None:
    def ends(index: int, out: int) -> list[dict[str, Any]]:
        choice = {"index": index, "delta": {}, "finish_reason": "stop"}
        said = usage(10, out, prompt_tokens_details={"cached_tokens": 4})
        return [{"id": "c", "choices": [choice]}, {"id": "c", "choices": [], "usage": said}]

    timings = {"cache_n": 4, "prompt_n": 6, "predicted_n": 1}
    begun = [_of(index, "a", timings=timings) for index in range(3)]
    wish = several(3)
    assert meter_of(begun, wish, "llamacpp") == ("running", tokens(6, 3, cached=4))
    one = [*begun, *ends(1, 7)]
    assert meter_of(one, wish, "llamacpp") == ("running", tokens(6, 9, cached=4))
    every = [*one, *ends(0, 2), *ends(2, 3)]
    assert meter_of(every, wish, "llamacpp") == ("reported", tokens(6, 12, cached=4))
    # Two that end in one step, their chunks of usage behind both.
    (end0, said0), (end2, said2) = ends(0, 2), ends(2, 3)
    crossed = [*one, end0, end2, said0, said2]
    assert meter_of(crossed, wish, "llamacpp") == ("reported", tokens(6, 12, cached=4))
