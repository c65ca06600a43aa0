"""Streams under the meter: whatever the engine, the style and the cuts, what a client gets and what
is counted stay the same."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.wire import sse
from gateway.wire.requests import Asked, Engine
from gateway.wire.sse import StreamMeter
from ledger.events import Usage
from tests.gateway.answers import (
    ENGINES,
    WISH,
    WISH_USAGE,
    WISHES,
    Said,
    Style,
    chunk,
    events,
    metered,
    pieces,
    said,
    styles,
    tokens,
    usage,
    written,
)

NASTY = (
    "[DONE]",
    '"usage":{"prompt_tokens":9}',
    'data: [DONE]\n\ndata: {"usage":null}',
    '"content":"',
    'x","usage":{"prompt_tokens":1,"completion_tokens":2},"y":"',
    "}\n\n",
    "日本語 ✓ \u2028",
    "\\",
    '"choices":[]',
    "",
    '{"timings":{"prompt_n":3}}',
)

engines = st.sampled_from(ENGINES)
wishes = st.sampled_from(WISHES)
scripts = st.builds(
    lambda chunks, cached, reasoning, usage, wrong: (
        f"m-n{chunks}-c{cached}-r{reasoning}-u{usage}-w{wrong}"
    ),
    st.integers(0, 5),
    st.integers(0, 12),
    st.integers(0, 3),
    st.sampled_from((0, 0, 0, 1, 2, 3)),
    st.sampled_from((0, 0, 0, 1, 2, 3, 4, 5)),
)


def own_view(answer: Said, engine: Engine) -> list[Any]:
    """What the caller would have got without a gateway, less the usage that it did not ask for."""
    view = []
    for item in answer.direct:
        kept = dict(item)
        if engine in ("vllm", "sglang") and not answer.wish.continuous and kept["choices"]:
            # A finishing chunk with usage of its own looks like one with the running usage.
            kept.pop("usage", None)
        if not answer.wish.usage and "usage" in kept:
            if kept["choices"] == [] and kept["usage"] is not None:
                continue
            del kept["usage"]
        view.append(kept)
    return view


def state(meter: StreamMeter) -> object:
    return meter.chunks, meter.counted(), meter.complete


@given(
    engine=engines,
    chat=st.booleans(),
    wish=wishes,
    script=scripts,
    style=styles,
    nasty=st.sampled_from(NASTY),
    data=st.data(),
)
def test_any_split_gives_the_same(
    engine: Engine,
    chat: bool,
    wish: dict[str, Any],
    script: str,
    style: Style,
    nasty: str,
    data: st.DataObject,
) -> None:
    answer = said(engine, chat=chat, wish=wish, script=script)
    items = [*answer.sent[:1], _texted(nasty, chat=chat), *answer.sent[1:]]
    stream = written(items, style)
    whole, passed = metered([stream], answer.wish, engine, chat=chat)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12))
    split, same = metered(pieces(stream, cuts), answer.wish, engine, chat=chat)
    assert same == passed
    assert state(split) == state(whole)


def _texted(text: str, *, chat: bool) -> dict[str, Any]:
    if chat:
        return chunk({"content": text})
    return {"id": "c", "choices": [{"index": 0, "text": text, "finish_reason": None}]}


@given(
    engine=engines,
    chat=st.booleans(),
    wish=wishes,
    script=scripts,
    style=styles,
    step=st.booleans(),
)
def test_the_client_sees_what_it_asked_for_and_nothing_else(
    engine: Engine, chat: bool, wish: dict[str, Any], script: str, style: Style, step: bool
) -> None:
    answer = said(engine, chat=chat, wish=wish, script=script)
    stream = written(answer.sent, style)
    reads = [stream[i : i + 1] for i in range(len(stream))] if step else [stream]
    _, passed = metered(reads, answer.wish, engine, chat=chat)
    got, wanted = events(passed), own_view(answer, engine)
    if engine == "llamacpp" and chat and not answer.sent[-1]["choices"] and not answer.wish.usage:
        # llama.cpp moves its timings from the finishing chunk to that of the usage, which the
        # gateway has asked for and the caller has not: they go with it.
        wanted[-1].pop("timings", None)
    assert got == wanted + (["[DONE]"] if style.done else [])


@given(engine=engines, chat=st.booleans(), wish=wishes, script=scripts, style=styles)
def test_the_count_is_what_the_engine_said(
    engine: Engine, chat: bool, wish: dict[str, Any], script: str, style: Style
) -> None:
    answer = said(engine, chat=chat, wish=wish, script=script)
    meter, _ = metered([written(answer.sent, style)], answer.wish, engine, chat=chat)
    basis, found = meter.counted()
    last = next((i["usage"] for i in reversed(answer.sent) if i.get("usage")), None)
    if isinstance(last, dict) and _believable(last):
        # vLLM and SGLang put running usage on their finishing chunk; it is not their last word.
        whole = engine not in ("vllm", "sglang") or not answer.sent[-1]["choices"]
        assert basis == ("reported" if whole else "running")
        assert found.other_out is not None
        assert found.reasoning_out is not None
        assert found.other_out + found.reasoning_out == last["completion_tokens"]
        assert sum(filter(None, found.counts()[:3])) == last["prompt_tokens"]
    elif engine != "llamacpp":
        assert basis in ("counted", "none")
        assert found == (Usage(other_out=meter.chunks) if meter.chunks else Usage())
    assert meter.complete is style.done


def _believable(said: dict[str, Any]) -> bool:
    counts = (said["prompt_tokens"], said["completion_tokens"])
    return all(type(count) is int and count >= 0 for count in counts)


@given(
    stream=st.lists(
        st.one_of(
            st.binary(max_size=40),
            st.sampled_from(
                (
                    b"data: ",
                    b"\n\n",
                    b"\r\n\r\n",
                    b"\n",
                    b"\r",
                    b'{"usage":',
                    b',"usage":{',
                    b'"choices":[]',
                    b'"timings":',
                    b'{"prompt_tokens":10000000000000,"completion_tokens":1}',
                    b'{"prompt_n":1,"predicted_n":99999999999999999999999}',
                    b"}",
                    b"[DONE]",
                    b"[" * 3000,
                    b'"content":"x"',
                )
            ),
        ),
        max_size=14,
    ).map(b"".join),
    engine=engines,
    chat=st.booleans(),
    wish=st.sampled_from((WISH, WISH_USAGE)),
    data=st.data(),
)
@example(b'data: {"choices":[],"usage":' + b"[" * 100_000 + b"\n\n", "openai", True, WISH, None)
@example(
    b'data: {"choices":[],"usage":{"prompt_tokens":1000000000001}}\n\n', "vllm", True, WISH, None
)
def test_any_bytes_at_all_never_raise(
    stream: bytes, engine: Engine, chat: bool, wish: Asked, data: st.DataObject | None
) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=5)) if data else []
    meter, passed = metered(pieces(stream, cuts), wish, engine, chat=chat)
    assert meter.chunks >= 0
    meter.counted()
    if b'"usage"' not in stream and b'"timings"' not in stream:
        assert passed == stream


@given(
    blanks=st.lists(st.integers(0, 3), min_size=3, max_size=3),
    cuts=st.lists(st.integers(0, 400), max_size=6),
)
def test_more_blank_lines_than_needed_pass_as_they_are(blanks: list[int], cuts: list[int]) -> None:
    items = [chunk({"content": "a"}), chunk({}, "stop", usage=None), chunk({"content": "b"})]
    stream = b"".join(
        written([item], Style(done=False)) + b"\n" * blank
        for item, blank in zip(items, blanks, strict=True)
    )
    whole, passed = metered([stream], WISH, "openai")
    split, same = metered(pieces(stream, [min(c, len(stream)) for c in cuts]), WISH, "openai")
    assert same == passed
    assert passed == stream.replace(b',"usage":null', b"").replace(b'"usage":null,', b"")
    assert state(split) == state(whole)


def test_vllm_with_running_usage_cut_after_any_chunk_is_billed_by_the_last_total() -> None:
    answer = said("vllm", chat=True, wish={}, script="m-n6-c4")
    opening, *rest = answer.sent
    for seen in range(1, 7):
        stream = written([opening, *rest[:seen]], Style(done=False))
        meter, passed = metered([stream], answer.wish, "vllm")
        assert meter.counted() == ("running", tokens(12, seen))
        assert b"usage" not in passed


def test_running_usage_of_several_events_in_one_read_is_not_added_up() -> None:
    items = [chunk({"content": "x"}, usage=usage(7, n)) for n in (1, 2, 3)]
    meter, _ = metered([written(items, Style(done=False))], WISH, "sglang")
    assert meter.counted() == ("running", tokens(7, 3))
    assert meter.chunks == 3


def test_llamacpp_timings_are_its_running_usage() -> None:
    answer = said("llamacpp", chat=True, wish={}, script="m-n5-c4")
    stream = written(answer.sent[:4], Style(done=False))
    meter, passed = metered([stream], answer.wish, "llamacpp")
    assert meter.counted() == ("running", tokens(8, 3, cached=4))
    assert b"timings" not in passed


def test_llamacpp_completions_put_the_usage_on_the_finishing_chunk() -> None:
    answer = said("llamacpp", chat=False, wish={}, script="m-n3-c5")
    finishing = answer.sent[-1]
    assert finishing["choices"]
    assert finishing["usage"]
    meter, passed = metered([written(answer.sent, Style())], answer.wish, "llamacpp", chat=False)
    assert meter.counted() == ("reported", tokens(7, 3, cached=5))
    last = events(passed)[-2]
    assert last == {name: value for name, value in finishing.items() if name != "usage"}


def test_a_caller_who_asked_for_timings_gets_them() -> None:
    answer = said("llamacpp", chat=True, wish={"timings_per_token": True}, script="m-n3")
    _, passed = metered([written(answer.sent, Style())], answer.wish, "llamacpp")
    assert sum("timings" in item for item in events(passed)[:-1]) == 3


def test_usage_null_on_every_chunk_goes_only_if_it_was_not_asked_for() -> None:
    items = [chunk({"content": "a"}, usage=None), chunk({}, "stop", usage=None)]
    items.append({"id": "c", "choices": [], "usage": usage(3, 1)})
    stream = written(items, Style())
    meter, passed = metered([stream], WISH, "openai")
    assert [set(item) for item in events(passed)[:-1]] == [{"id", "model", "choices"}] * 2
    assert meter.counted() == ("reported", tokens(3, 1))
    meter, passed = metered([stream], WISH_USAGE, "openai")
    assert passed == stream
    assert meter.counted() == ("reported", tokens(3, 1))


def test_a_chunk_without_choices_and_without_usage_stays() -> None:
    items = [{"id": "c", "choices": [], "prompt_filter_results": [1], "usage": None}]
    _, passed = metered([written(items, Style())], WISH, "openai")
    assert events(passed)[0] == {"id": "c", "choices": [], "prompt_filter_results": [1]}


def test_usage_that_is_said_twice_counts_once_and_the_last_time() -> None:
    items = [
        chunk({"content": "a"}),
        chunk({}, "stop", usage=usage(10, 4)),
        {
            "id": "c",
            "choices": [],
            "usage": usage(10, 5, prompt_tokens_details={"cached_tokens": 6}),
        },
    ]
    meter, _ = metered([written(items, Style())], WISH, "openai")
    assert meter.counted() == ("reported", tokens(4, 5, cached=6))


def test_a_last_usage_that_is_nonsense_does_not_hide_what_was_known() -> None:
    items = [
        chunk({"content": "a"}, usage=usage(10, 1)),
        {"id": "c", "choices": [], "usage": {"prompt_tokens": "ten"}},
    ]
    meter, passed = metered([written(items, Style())], WISH, "vllm")
    assert meter.counted() == ("running", tokens(10, 1))
    assert b"usage" not in passed


def test_several_answers_are_counted_to_the_last_of_them() -> None:
    """Of `n` answers each has its own finishing chunk, and vLLM puts running usage on it."""
    items = [
        chunk({"content": "a"}, usage=usage(10, 1)),
        chunk({}, "stop", usage=usage(10, 1)),
        chunk({"content": "b"}, usage=usage(10, 2)) | {"choices": [_second("b")]},
    ]
    for wish in (WISH, msgspec.structs.replace(WISH, continuous=True)):
        meter, _ = metered([written([item], Style(done=False)) for item in items], wish, "vllm")
        assert meter.counted() == ("running", tokens(10, 2))
        assert meter.chunks == 2


def _second(text: str) -> dict[str, Any]:
    return {"index": 1, "delta": {"content": text}, "finish_reason": None}


def test_tool_calls_and_reasoning_are_counted() -> None:
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "content": ""},
        {"content": None, "reasoning_content": "hm"},
        {"reasoning_content": "hm", "reasoning": "hm"},
        {"tool_calls": [{"index": 0, "id": "t", "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"content":"x"'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]},
        {"content": "so"},
    ]
    for style in (Style(), Style(spaced=True), Style(newline="\r\n", comments=True)):
        stream = written([chunk(delta) for delta in deltas], style)
        for reads in ([stream], pieces(stream, range(0, len(stream), 7))):
            meter, passed = metered(reads, WISH, "vllm")
            assert passed == stream
            assert meter.chunks == 5
            assert meter.counted() == ("counted", Usage(other_out=5))


def test_a_stream_that_begins_with_a_comment_is_read_in_its_own_style() -> None:
    stream = written([chunk({"content": "a"})] * 3, Style(spaced=True, comments=True))
    for cut in range(len(stream)):
        meter, passed = metered(pieces(stream, [cut]), WISH, "openai")
        assert (meter.chunks, passed) == (3, stream)


@pytest.mark.parametrize("text", ["[DONE]", "data: [DONE]", "\ndata: [DONE]\n\n", "\n[DONE]\n"])
def test_done_inside_a_text_does_not_end_the_stream(text: str) -> None:
    stream = written([chunk({"content": text})], Style(done=False))
    meter, passed = metered([stream], WISH, "openai")
    assert passed == stream
    assert not meter.complete


def test_what_comes_after_done_does_not_open_the_stream_again() -> None:
    late = written([chunk({"content": "[DONE]"})], Style(done=False))
    stream = written([chunk({"content": "a"})], Style()) + late
    for reads in ([stream], pieces(stream, [len(stream) - len(late)])):
        assert metered(reads, WISH, "openai")[0].complete


@pytest.mark.parametrize(
    "stream", [b"data: [DONE]", b"data:[DONE]\n", b"data: [DONE]\r\n\r\n", b"data: [DONE]\n\n"]
)
def test_done_is_seen_however_it_ends(stream: bytes) -> None:
    meter, passed = metered([stream], WISH, "openai")
    assert passed == stream
    assert meter.complete


def test_an_event_of_a_megabyte_passes_and_is_counted() -> None:
    text = "x" * (1 << 20)
    items = [chunk({"content": text}), {"id": "c", "choices": [], "usage": usage(1, 9)}]
    stream = written(items, Style())
    meter, passed = metered(pieces(stream, range(0, len(stream), 65_536)), WISH, "openai")
    assert events(passed)[0]["choices"][0]["delta"]["content"] == text
    assert meter.counted() == ("reported", tokens(1, 9))
    assert meter.chunks == 1


def test_an_endless_event_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "EVENT_BYTES_MAX", 1000)
    meter = StreamMeter(WISH, "openai", chat=True)
    first = meter.feed(b"data: {" + b"x" * 900)
    assert first == b""
    assert len(meter.feed(b"y" * 200)) == 1107
    assert meter.feed(b"z") == b"z"
    assert meter.rest() == b""
    assert not meter.complete


def test_a_server_that_mixes_line_ends_is_not_held_back() -> None:
    """sse_starlette ends its pings in CRLF; a stream must not stall behind them."""
    meter = StreamMeter(WISH, "openai", chat=True)
    one = written([chunk({"content": "a"})], Style(done=False))
    last = written([{"id": "c", "choices": [], "usage": usage(1, 2)}], Style())
    assert meter.feed(b": ping\r\n\r\n") == b": ping\r\n\r\n"
    assert meter.feed(one) == one
    assert meter.feed(b": ping\r\n\r\n" + one) == b": ping\r\n\r\n" + one
    assert meter.feed(b": ping\r\n\r\n") == b": ping\r\n\r\n"
    assert meter.feed(last) == b"data: [DONE]\n\n"
    assert meter.counted() == ("reported", tokens(1, 2))


def test_an_event_with_other_lines_keeps_them() -> None:
    item = json.dumps(chunk({"content": "a"}, usage=None), separators=(",", ":"))
    stream = f"id: 7\nevent: message\ndata: {item}\nretry: 5\n\n".encode()
    _, passed = metered([stream], WISH, "openai")
    assert passed == stream.replace(b',"usage":null', b"")


def test_an_error_inside_the_stream_passes_as_it_is() -> None:
    stream = b'data: {"error": {"message": "the \\"usage\\" is over", "code": 500}}\n\n'
    meter, passed = metered([stream], WISH, "vllm")
    assert passed == stream
    assert meter.counted() == ("none", Usage())
