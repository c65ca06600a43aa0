"""The meters of all dialects: whatever the engine, the style and the cuts, nothing of a stream is
lost or changed but what was added, and no count exceeds what was produced."""

import json
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire import named
from gateway.wire.endpoints import BY_NAME, ENDPOINTS, Dialect, Endpoint
from gateway.wire.metering import Meter
from gateway.wire.meters import make_meter
from gateway.wire.requests import Asked, Engine, asked, forwarded
from ledger.events import Basis, Usage
from tests.gateway.answers import ENGINES, Style, pieces, styles, written
from tests.support import shapes
from tests.support.fake.dialects import DIALECTS
from tests.support.script import parse

WISH = Asked("m", stream=True, usage=False, continuous=False, timings=False, held_out=None)
NAMED = [BY_NAME[name] for name in ("responses", "messages", "audio/speech")]
STREAMED = [endpoint for endpoint in ENDPOINTS.values() if endpoint.dialect is not None]

engines = st.sampled_from(ENGINES)
# Reasoning ends with a chunk: one that holds both kinds counts once or twice, which is still no
# more than its tokens.
scripts = st.builds(
    lambda n, t, c, r, u, tools: f"m-n{n}-t{t}-c{c}-r{r * t}-u{u}-l{tools}",
    st.integers(0, 4),
    st.integers(1, 3),
    st.integers(0, 12),
    st.integers(0, 3),
    st.sampled_from((0, 0, 0, 2)),
    st.sampled_from((0, 0, 1)),
)


class Told(msgspec.Struct, frozen=True):
    """One streamed answer of an engine: its events, and how many tokens each had made so far."""

    wish: Asked
    items: list[Any]
    made: list[int]
    call: shapes.Call


def told(endpoint: Endpoint, engine: Engine, script: str, n: int = 1) -> Told:
    """What `engine` says at `endpoint`, as the gateway asks it."""
    several = n if endpoint.dialect in ("chat", "text") else 1
    body: dict[str, Any] = {"model": "m", "stream": True, "n": several}
    if endpoint.form == "multipart":
        wish, sent = WISH, body | ({"stream_options": _BOTH} if engine == "vllm" else {})
    else:
        own = json.dumps(body).encode()
        wish = asked(own, endpoint)
        sent = json.loads(forwarded(own, wish, engine, endpoint))
    dialect = DIALECTS[endpoint.path]
    kind: shapes.Engine = "fake" if engine == "openai" else engine
    call = shapes.call_of(sent, kind, 1, dialect.chat, parse(script), named=dialect.named)
    assert dialect.opening
    assert dialect.token
    assert dialect.closing
    items = list(dialect.opening(call))
    made = [0] * len(items)
    for index in range(call.chunks):
        for choice in range(call.choices):
            new = dialect.token(call, index, choice)
            items += new
            before = call.until(index - 1) if index else 0
            still = call.choices - choice - 1
            made += [call.until(index) * (choice + 1) + before * still] * len(new)
    end = dialect.closing(call)
    items += end
    made += [call.produced] * len(end)
    return Told(wish, items, made, call)


_BOTH = {"include_usage": True, "continuous_usage_stats": True}


def stream_of(answer: Told, style: Style, until: int | None = None) -> bytes:
    """The first `until` events, written down."""
    marked = until is None and not answer.call.named
    style = msgspec.structs.replace(style, done=style.done and marked)
    return written(answer.items[:until], style)


def fed(meter: Meter, reads: list[bytes]) -> bytes:
    """Everything that the meter passed on."""
    return b"".join((*[meter.feed(read) for read in reads], meter.rest()))


def state(meter: Meter) -> tuple[Any, ...]:
    return meter.chunks, meter.counted(), meter.complete, meter.covered, meter.fault


def out_of(usage: Usage) -> int:
    return (usage.reasoning_out or 0) + (usage.other_out or 0)


def test_every_dialect_has_a_meter() -> None:
    dialects = {endpoint.dialect for endpoint in STREAMED}
    assert dialects == set(get_args(Dialect))
    for endpoint in STREAMED:
        for engine in ENGINES:
            meter = make_meter(endpoint, WISH, engine)
            assert (meter.chunks, meter.raw, meter.fault) == (0, None, None)
            assert (meter.complete, meter.covered) == (False, False)
            assert meter.counted() == ("none", Usage())


@given(
    endpoint=st.sampled_from(STREAMED),
    engine=engines,
    script=scripts,
    n=st.sampled_from((1, 1, 3)),
    style=styles,
    data=st.data(),
)
def test_any_split_gives_the_same(
    endpoint: Endpoint, engine: Engine, script: str, n: int, style: Style, data: st.DataObject
) -> None:
    answer = told(endpoint, engine, script, n)
    stream = stream_of(answer, style)
    whole, split = (make_meter(endpoint, answer.wish, engine) for _ in range(2))
    passed = fed(whole, [stream])
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12))
    assert fed(split, pieces(stream, cuts)) == passed
    assert state(split) == state(whole)
    if endpoint in NAMED:
        assert passed == stream


@given(
    endpoint=st.sampled_from(STREAMED),
    engine=engines,
    script=scripts,
    n=st.sampled_from((1, 1, 2, 3)),
    style=styles,
)
def test_a_whole_stream_is_reported_and_no_part_of_it_counts_too_much(
    endpoint: Endpoint, engine: Engine, script: str, n: int, style: Style
) -> None:
    answer = told(endpoint, engine, script, n)
    for until, made in enumerate([0, *answer.made]):
        meter = make_meter(endpoint, answer.wish, engine)
        fed(meter, [stream_of(answer, style, until)])
        basis, usage = meter.counted()
        assert out_of(usage) <= made
        if basis == "running":
            assert out_of(usage) == made
        assert meter.covered is (basis in ("running", "reported"))
    meter = make_meter(endpoint, answer.wish, engine)
    fed(meter, [stream_of(answer, style)])
    basis, usage = meter.counted()
    if answer.call.script.usage != 2 and _tells(endpoint, engine):
        assert basis == "reported"
        assert out_of(usage) == answer.call.produced
        assert sum(filter(None, usage.counts()[:3])) == answer.call.script.prompt
    else:
        # llama.cpp still tells its timings where it gives no usage.
        assert basis != "reported" or engine == "llamacpp"
        assert out_of(usage) <= answer.call.produced
    assert meter.fault is None


def _tells(endpoint: Endpoint, engine: Engine) -> bool:
    """SGLang and llama.cpp, as the fake has them, tell no usage of sound."""
    return endpoint.dialect != "transcription" or engine in ("vllm", "openai")


@given(
    stream=st.lists(
        st.one_of(
            st.binary(max_size=30),
            st.sampled_from(
                (
                    b"data: ",
                    b"\n\n",
                    b"\r\n",
                    b'{"type":"response.completed","response":{"usage":{"input_tokens":1}}}',
                    b'{"type":"response.completed","response":{"usage":7}}',
                    b'{"type":"message_start","message":{"usage":{"input_tokens":-1}}}',
                    b'{"type":"message_delta","usage":{"output_tokens":99999999999999999999}}',
                    b'{"type":"content_block_delta","delta":{"text":7}}',
                    b'{"type":"content_block_delta","delta":"x"}',
                    b'{"type":"transcript.text.done","usage":{}}',
                    b'{"choices":[{"delta":null}],"usage":[]}',
                    b'{"error":[]}',
                    b'{"error":{"message":{"a":1}}}',
                    b"error: {",
                    b"[DONE]",
                    b"[" * 3000,
                )
            ),
        ),
        max_size=12,
    ).map(b"".join),
    endpoint=st.sampled_from(STREAMED),
    engine=engines,
    data=st.data(),
)
def test_any_bytes_at_all_never_raise(
    stream: bytes, endpoint: Endpoint, engine: Engine, data: st.DataObject
) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=5))
    meter = make_meter(endpoint, WISH, engine)
    passed = fed(meter, pieces(stream, cuts))
    meter.counted()
    assert meter.fault is None or meter.fault
    if endpoint in NAMED:
        assert passed == stream


def sse(*items: Any) -> bytes:
    return written(items, Style(done=False))


def counted(endpoint: str, *items: Any, engine: Engine = "openai") -> tuple[Basis, Usage]:
    meter = make_meter(BY_NAME[endpoint], WISH, engine)
    fed(meter, [sse(*items)])
    return meter.counted()


START = {"type": "message_start", "message": {"usage": {"input_tokens": 9, "output_tokens": 1}}}
TEXT = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}}
INPUT = {"uncached_in": 9, "cached_in": 0, "cache_write_in": 0}


def test_a_cut_message_has_the_input_that_was_said_and_the_chunks_that_came() -> None:
    """What `message_start` says of the output is not a count of it: there is none yet."""
    assert counted("messages", START) == ("counted", Usage(**INPUT, other_out=0))
    assert counted("messages", START, TEXT, TEXT) == ("counted", Usage(**INPUT, other_out=2))
    assert counted("messages", TEXT, TEXT) == ("counted", Usage(other_out=2))


def test_a_message_is_reported_once_both_halves_were_said() -> None:
    ends = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}
    more = {"type": "message_delta", "delta": {"stop_reason": None}, "usage": {"output_tokens": 2}}
    last = ends | {"usage": {"output_tokens": 3}}
    known = {**INPUT, "reasoning_out": 0}
    assert counted("messages", START, TEXT, more) == ("running", Usage(**known, other_out=2))
    assert counted("messages", START, TEXT, more, TEXT) == ("counted", Usage(**known, other_out=3))
    assert counted("messages", START, TEXT, more, TEXT, last) == (
        "reported",
        Usage(**known, other_out=3),
    )
    stop = {"type": "message_stop"}
    assert counted("messages", START, TEXT, more, stop) == ("reported", Usage(**known, other_out=2))
    # SGLang says a zero at the start; its message_delta has the whole.
    zero = {"type": "message_start", "message": {"usage": {"input_tokens": 0, "output_tokens": 0}}}
    whole = ends | {"usage": {"input_tokens": 9, "output_tokens": 3}}
    assert counted("messages", zero, TEXT) == ("counted", Usage(other_out=1))
    assert counted("messages", zero, TEXT, whole) == ("reported", Usage(**known, other_out=3))
    # Half a usage is no report.
    assert counted("messages", zero, TEXT, last)[0] == "counted"
    assert counted("messages", START, TEXT, ends | {"usage": {}}, stop)[0] == "counted"


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("response.completed", "completed"),
        ("response.incomplete", "incomplete"),
        ("response.failed", "failed"),
    ],
)
def test_a_response_is_reported_however_it_ends(kind: str, status: str) -> None:
    response = {"status": status, "usage": {"input_tokens": 4, "output_tokens": 2}}
    meter = make_meter(BY_NAME["responses"], WISH, "vllm")
    fed(meter, [sse({"type": kind, "response": response})])
    assert meter.counted()[0] == "reported"
    assert meter.complete


def test_thoughts_are_not_counted_again_as_their_summary() -> None:
    thought = {"type": "response.reasoning_text.delta", "delta": "hm"}
    summary = {"type": "response.reasoning_summary_text.delta", "delta": "hm"}
    args = {"type": "response.function_call_arguments.delta", "delta": "{"}
    none = {"type": "response.output_text.delta", "delta": ""}
    assert counted("responses", summary, summary, args)[1] == Usage(other_out=3)
    assert counted("responses", thought, summary, args, none)[1] == Usage(other_out=2)


def test_llamacpps_timings_of_a_response_are_its_running_usage() -> None:
    timings = {"cache_n": 4, "prompt_n": 8, "predicted_n": 2}
    delta = {"type": "response.output_text.delta", "delta": "a"}
    said = counted("responses", delta, delta | {"timings": timings}, engine="llamacpp")
    assert said[0] == "running"
    assert out_of(said[1]) == 2


def test_pieces_of_sound_are_no_tokens() -> None:
    piece = {"type": "speech.audio.delta", "audio": "AAAA"}
    done = {"type": "speech.audio.done", "usage": {"input_tokens": 14, "output_tokens": 101}}
    assert counted("audio/speech", piece, piece) == ("none", Usage())
    assert counted("audio/speech", piece, piece, done)[0] == "reported"


FAULTS: list[tuple[str, dict[str, Any]]] = [
    ("chat/completions", {"error": {"message": "broke", "type": "x", "code": 500}}),
    ("chat/completions", {"object": "error", "message": "broke", "code": 500}),
    ("chat/completions", {"error": "broke"}),
    ("completions", {"error": {"message": None, "type": "broke"}}),
    ("responses", {"type": "error", "code": "x", "message": "broke"}),
    ("responses", {"type": "response.failed", "response": {"error": {"message": "broke"}}}),
    ("messages", {"type": "error", "error": {"type": "overloaded_error", "message": "broke"}}),
    ("audio/transcriptions", {"error": {"message": "broke"}}),
    ("audio/speech", {"error": {"message": "broke"}}),
]


@pytest.mark.parametrize(("name", "event"), FAULTS)
@pytest.mark.parametrize("engine", ENGINES)
def test_an_error_inside_a_stream_is_seen_and_passes_as_it_is(
    name: str, event: dict[str, Any], engine: Engine
) -> None:
    endpoint = BY_NAME[name]
    answer = told(endpoint, engine, "m-n3")
    for spaced in (False, True):
        for newline in ("\n", "\r\n"):
            style = Style(spaced=spaced, newline=newline, done=False)
            before = stream_of(answer, style, 3)
            for end in (b"", b"data: [DONE]\n\n"):
                stream = before + written([event], style) + end
                for reads in ([stream], [before, stream[len(before) :]]):
                    meter = make_meter(endpoint, answer.wish, engine)
                    passed = fed(meter, reads)
                    assert meter.fault == "broke"
                    assert written([event], style) in passed


def test_a_text_about_errors_is_no_error() -> None:
    text = '{"error": {"message": "no"}}\nerror: x\n\ndata: {"error":"no"}'
    for name, item in (
        ("chat/completions", {"choices": [{"index": 0, "delta": {"content": text}}]}),
        ("chat/completions", {"choices": [{"index": 0, "delta": {"content": ""}}], "error": None}),
        ("messages", TEXT | {"delta": {"type": "text_delta", "text": text}}),
        ("responses", {"type": "response.output_text.delta", "delta": text}),
    ):
        meter = make_meter(BY_NAME[name], WISH, "openai")
        fed(meter, [sse(item)])
        assert meter.fault is None


def test_the_error_line_that_llamacpp_once_wrote_is_seen() -> None:
    for name in ("chat/completions", "responses"):
        meter = make_meter(BY_NAME[name], WISH, "llamacpp")
        fed(meter, [sse(), b'error: {"code":500,"message":"broke"}\n\n'])
        assert meter.fault == "broke"


def test_an_event_of_a_megabyte_is_read_whatever_pieces_it_comes_in() -> None:
    end = {"type": "response.completed", "response": {"usage": {"input_tokens": 1}}}
    big = {"type": "response.output_text.delta", "delta": "x" * (1 << 20)}
    stream = sse(big, end | {"text": "y" * (1 << 20)})
    meter = make_meter(BY_NAME["responses"], WISH, "vllm")
    assert fed(meter, pieces(stream, range(0, len(stream), 4096))) == stream
    assert (meter.chunks, meter.complete) == (1, True)


def test_an_endless_line_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named, "LINE_BYTES_MAX", 1000)
    meter = named.ResponsesMeter()
    passed = b""
    for _ in range(50):
        passed += meter.feed(b"z" * 100)
        assert sum(map(len, meter._held)) <= 1000
    assert passed == b"z" * 5000
    end = {"type": "response.completed", "response": {"usage": {"input_tokens": 1}}}
    meter.feed(b"zzz\n" + sse(end))
    assert meter.complete
