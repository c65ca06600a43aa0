"""Request bodies: what is read of them, what is refused and where, and what goes on untouched."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import BadRequest
from gateway.wire.endpoints import BY_NAME, COMPLETIONS
from gateway.wire.requests import Engine, asked, forwarded
from ledger.events import payload_of
from ledger.events.envelope import COUNT_MAX
from streams.codec import decode
from tests.gateway.answers import ENGINES, WISHES
from tests.support import events

KEPT = (
    '"temperature": 0.70,  "seed":12345678901234567890123,"logit_bias":{"50256":-1e2}',
    '"messages":[{"role":"user","content":"\\u00e9 \\"stream_options\\" \\ud83d\\ude00 \\n"}]',
    '"nested":{"stream":true,"model":"x","deep":[[],[{}]]},"empty":"" ',
)

texts = st.text(st.characters(codec="utf-8"), max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
KNOWN = {"model", "stream", "stream_options", "timings_per_token"}


@pytest.mark.parametrize(
    ("body", "place"),
    [
        (b'{"model":"m",}', 13),
        (b'{"model":"m"', 12),
        (b'{"model":"m" "x":1}', 13),
        (b'{"model":"m\xff"}', 11),
        (b"\xff", 0),
        (b"", 0),
        (b'{"model":"m"}x', 14),
        (b'{"model":NaN}', 9),
        (b"\xef\xbb\xbf{}", 0),
        ('{"modél":"m",é}'.encode(), 14),
    ],
)
def test_bad_json_is_refused_with_its_place(body: bytes, place: int) -> None:
    with pytest.raises(BadRequest, match=rf"\(byte {place}\)") as refused:
        asked(body)
    assert refused.value.code == "invalid_json"
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{}", "model"),
        (b'{"model":7}', "model"),
        (b'{"model":null}', "model"),
        (b'{"model":""}', "model"),
        (b'{"model":"a\\u0000b"}', "model"),
        (b'{"model":"a\\nb"}', "model"),
        (b'{"model":"' + b"m" * 257 + b'"}', "model"),
        (b'{"model":"m","stream":"yes"}', "stream"),
        (b'{"model":"m","stream_options":[]}', "stream_options"),
        (b'{"model":"m","stream_options":{"include_usage":1}}', "stream_options.include_usage"),
        (b"[]", None),
        (b'"m"', None),
        (b"null", None),
    ],
)
def test_what_does_not_fit_is_refused_by_name(body: bytes, param: str | None) -> None:
    with pytest.raises(BadRequest) as refused:
        asked(body)
    assert refused.value.param == param


def test_nesting_without_end_is_refused() -> None:
    deep = b"[" * 100_000
    with pytest.raises(BadRequest, match="nested too deeply"):
        asked(b'{"model":"m","x":' + deep + b"]" * 100_000 + b"}")


@given(body=st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    for bytes_ in (body, b'{"model":"m",' + body + b"}", b'{"model":"m","stream_options":' + body):
        try:
            found = asked(bytes_)
        except BadRequest:
            continue
        for engine in ENGINES:
            forwarded(bytes_, found, engine)


@pytest.mark.parametrize(
    ("fields", "held"),
    [
        ({}, None),
        ({"max_tokens": 7}, 7),
        ({"max_completion_tokens": 9, "max_tokens": 7}, 9),
        ({"max_tokens": 7, "n": 3}, 21),
        ({"max_tokens": 7, "n": 0}, 7),
        ({"max_tokens": 7, "n": -2}, 7),
        ({"max_tokens": 7, "n": "3"}, 7),
        ({"max_tokens": 7, "n": None}, 7),
        ({"max_tokens": 7, "n": True}, 7),
        ({"max_tokens": True}, None),
        ({"max_tokens": 0}, None),
        ({"max_tokens": -1}, None),
        ({"max_tokens": 7.5}, None),
        ({"max_tokens": "7"}, None),
        ({"max_tokens": [7]}, None),
        ({"max_tokens": None, "max_completion_tokens": None}, None),
        ({"max_tokens": 10**30}, COUNT_MAX),
        ({"max_tokens": 2**52, "n": 10**30}, COUNT_MAX),
    ],
)
def test_any_limit_of_tokens_gives_an_estimate_that_an_event_can_hold(
    fields: dict[str, Any], held: int | None
) -> None:
    found = asked(json.dumps({"model": "m"} | fields).encode())
    assert found.held_out == held
    draft = events.accepted("r", held_out=found.held_out)
    stored = decode(events.Scribe().record(draft))
    assert payload_of(stored) == draft.payload


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("engine", ENGINES)
def test_unknown_fields_stay_byte_for_byte(engine: Engine, kept: str) -> None:
    plain = f'{{ "model":"m", {kept} }}'.encode()
    assert forwarded(plain, asked(plain), engine) is plain
    body = f' {{ "model":"m", "stream": true,{kept} }}\n'.encode()
    sent = forwarded(body, asked(body), engine)
    assert sent.endswith(body[body.index(b"{") + 1 :])
    assert json.loads(sent)["stream_options"]["include_usage"] is True


@pytest.mark.parametrize("wish", WISHES)
@pytest.mark.parametrize("engine", ENGINES)
def test_each_engine_is_asked_for_all_it_can_tell(engine: Engine, wish: dict[str, Any]) -> None:
    body = json.dumps({"model": "m", "stream": True} | wish).encode()
    sent = json.loads(forwarded(body, asked(body), engine))
    options = sent.pop("stream_options")
    assert options["include_usage"] is True
    if engine in ("vllm", "sglang"):
        assert options["continuous_usage_stats"] is True
    else:
        asked_for = wish.get("stream_options", {}).get("continuous_usage_stats")
        assert options.get("continuous_usage_stats") == asked_for
    if engine == "llamacpp":
        assert sent.pop("timings_per_token") is True
    else:
        assert sent.pop("timings_per_token", None) == wish.get("timings_per_token")
    assert sent == {"model": "m", "stream": True}


@pytest.mark.parametrize(
    "options",
    [
        '"stream_options":null',
        '"stream_options":{}',
        '"stream_options":{"include_usage":null}',
        '"stream_options":{"include_usage":false,"include_obfuscation":false}',
        # Escaped, so that the bytes do not show the name; the parser of the backend reads it.
        '"stream\\u005foptions":{"include_usage":false}',
        '"stream_options":{"include_usage":true},"stream_options":{"include_usage":false}',
    ],
)
def test_no_spelling_of_the_options_gets_around_the_count(options: str) -> None:
    body = f'{{"model":"m","stream":true,{options},"x":{{"a": 1.50}}}}'.encode()
    for engine in ENGINES:
        sent = forwarded(body, asked(body), engine)
        pairs: list[tuple[str, Any]] = json.loads(sent, object_pairs_hook=lambda found: found)
        names = [name for name, _ in pairs]
        assert len(names) == len(set(names))
        # The first and the last reading agree, whichever of two equal names a backend believes.
        assert json.loads(sent)["stream_options"]["include_usage"] is True
        assert b'{"a": 1.50}' in sent
    kept = json.loads(forwarded(body, asked(body), "openai"))["stream_options"]
    assert kept.get("include_obfuscation", False) is False


def test_options_without_a_stream_are_the_callers_own_affair() -> None:
    body = b'{"model":"m","stream_options":{"include_usage":false}}'
    assert forwarded(body, asked(body), "vllm") is body


@given(
    extra=st.dictionaries(texts.filter(lambda name: name not in KNOWN), values, max_size=4),
    wish=st.sampled_from(WISHES),
    engine=st.sampled_from(ENGINES),
)
def test_the_backend_gets_the_callers_fields_and_what_was_added(
    extra: dict[str, Any], wish: dict[str, Any], engine: Engine
) -> None:
    fields = extra | {"model": "m", "stream": True} | wish
    body = json.dumps(fields).encode()
    found = asked(body)
    assert (found.model, found.stream) == ("m", True)
    sent = json.loads(forwarded(body, found, engine))
    for name in ("stream_options", "timings_per_token"):
        sent.pop(name, None)
        fields.pop(name, None)
    assert sent == fields


JSON_NAMES = [
    "embeddings",
    "responses",
    "messages",
    "messages/count_tokens",
    "rerank",
    "audio/speech",
]


@pytest.mark.parametrize("name", JSON_NAMES)
def test_the_other_endpoints_pass_their_bodies_untouched(name: str) -> None:
    endpoint = BY_NAME[name]
    stream = b',"stream":true' if endpoint.dialect else b""
    body = b' {"model":"m", "input": [1,2.50],"stream_options":{"include_obfuscation":false}%s}'
    body = body % stream
    found = asked(body, endpoint)
    assert (found.model, found.stream) == ("m", bool(stream))
    for engine in ENGINES:
        assert forwarded(body, found, engine, endpoint) is body
    with pytest.raises(BadRequest) as refused:
        asked(b'{"input":"x"}', endpoint)
    assert refused.value.param == "model"


@pytest.mark.parametrize("name", ["embeddings", "rerank", "tokenize", "messages/count_tokens"])
def test_what_is_not_streamed_cannot_be_asked_for_as_a_stream(name: str) -> None:
    assert not asked(b'{"model":"m","stream":false}', BY_NAME[name]).stream
    with pytest.raises(BadRequest) as refused:
        asked(b'{"model":"m","stream":true}', BY_NAME[name])
    assert refused.value.param == "stream"


def test_a_tokenizer_may_be_asked_without_a_model() -> None:
    endpoint = BY_NAME["tokenize"]
    for body in (b'{"content":"x"}', b'{"model":null,"prompt":"x"}'):
        assert asked(body, endpoint).model == ""
    with pytest.raises(BadRequest):
        asked(b'{"model":"","content":"x"}', endpoint)


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("true", "cannot_be_metered"),
        # vLLM would read these as a yes, so they are not let through unread.
        ('"true"', "invalid_request"),
        ("1", "invalid_request"),
    ],
)
def test_an_answer_in_the_background_is_refused(said: str, code: str) -> None:
    body = f'{{"model":"m","input":"x","background":{said}}}'.encode()
    with pytest.raises(BadRequest) as refused:
        asked(body, BY_NAME["responses"])
    assert (refused.value.code, refused.value.param) == (code, "background")
    for fine in (b'{"model":"m","background":false}', b'{"model":"m","background":null}'):
        assert asked(fine, BY_NAME["responses"]).model == "m"


@pytest.mark.parametrize(
    ("name", "fields", "held"),
    [
        ("responses", {"max_output_tokens": 9}, 9),
        ("messages", {"max_tokens": 7}, 7),
        ("messages", {"max_tokens": "7"}, None),
        ("embeddings", {"max_tokens": 7}, 0),
        ("completions", {"max_tokens": 7, "n": 2, "prompt": ["a", "b", "c"]}, 42),
        ("completions", {"prompt": ["a", "b"]}, None),
    ],
)
def test_the_limit_of_tokens_of_other_endpoints(
    name: str, fields: dict[str, Any], held: int | None
) -> None:
    found = asked(json.dumps({"model": "m"} | fields).encode(), BY_NAME[name])
    assert found.held_out == held


def test_speech_is_a_stream_of_events_where_it_is_asked_for_as_one() -> None:
    endpoint = BY_NAME["audio/speech"]
    for body, stream in (
        (b'{"model":"m","stream_format":"sse"}', True),
        (b'{"model":"m","stream_format":"audio"}', False),
        (b'{"model":"m","stream":true}', True),
        (b'{"model":"m"}', False),
    ):
        assert asked(body, endpoint).stream is stream


@pytest.mark.parametrize(
    ("fields", "answers", "prompts"),
    [
        ({}, 1, 1),
        ({"n": 3}, 3, 1),
        ({"n": "3"}, 3, 1),
        ({"n": 3.0}, 3, 1),
        ({"n": 0}, 1, 1),
        ({"n": None}, 1, 1),
        ({"n": [3]}, 1, 1),
        ({"n_cmpl": 2}, 2, 1),
        ({"prompt": "x"}, 1, 1),
        ({"prompt": ["x", "y"]}, 1, 2),
        ({"prompt": ["x"], "n": 2}, 2, 1),
        ({"prompt": [1, 2, 3]}, 1, 1),
        ({"prompt": [[1, 2], [3]]}, 1, 2),
        ({"prompt": [1, "x", 2]}, 1, 1),
        ({"prompt": []}, 1, 1),
    ],
)
def test_how_many_answers_are_asked_for(fields: dict[str, Any], answers: int, prompts: int) -> None:
    found = asked(json.dumps({"model": "m"} | fields).encode(), COMPLETIONS)
    assert (found.answers, found.prompts) == (answers, prompts)
