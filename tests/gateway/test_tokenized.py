"""What a backend's own tokenizer is asked of a request and its answer, and what comes of it."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire import prompts
from gateway.wire.endpoints import BY_NAME, ENDPOINTS, Endpoint
from gateway.wire.requests import Engine
from gateway.wire.tokens import Query, tokenized
from gateway.wire.usage import NOTHING_USED
from ledger.events import Usage
from tests.gateway.answers import ENGINES, Style, written
from tests.support.fake import plain
from tests.support.shapes import ENGINES as FAKES

Answers = Callable[[Query], tuple[int, Any]]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


class Asked:
    """A backend that answers as `answers` says, and what it was asked."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.queries: list[tuple[str, Any]] = []

    def count(
        self,
        name: str,
        body: Any,
        delivered: bytes | None = None,
        engine: Engine = "vllm",
        *,
        streamed: bool = True,
    ) -> Usage | None:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        kind = b"application/json"
        asking = tokenized(BY_NAME[name], raw, kind, delivered, engine, streamed=streamed)
        try:
            query = next(asking)
            while True:
                self.queries.append((query.path, json.loads(query.body)))
                status, answer = self.answers(query)
                query = asking.send((status, json.dumps(answer).encode()))
        except StopIteration as ended:
            found: Usage | None = ended.value
            return found

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.queries]


def of(engine: Engine) -> Asked:
    """The fake backend's tokenizer, in the shape of `engine`: a token is a word."""
    kind = next(fake for fake in FAKES if fake == ("fake" if engine == "openai" else engine))

    def answers(query: Query) -> tuple[int, Any]:
        body = json.loads(query.body)
        if query.path == "/v1/messages/count_tokens":
            return 200, {"input_tokens": plain.words(plain.templated(body))}
        if query.path == "/apply-template":
            assert kind == "llamacpp"
            return 200, {"prompt": plain.templated(body)}
        assert query.path == "/tokenize"
        found = plain.tokenized(kind, body)
        return (422, {}) if found is None else (200, found)

    return Asked(answers)


HELLO = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "say hello to me"}]
# Two marks of roles, the mark of the answer, and six words.
HELLO_TOKENS = 9
SAME: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": HELLO},
    "responses": {"input": "say hello to me", "instructions": "be brief"},
    "messages": {"system": "be brief", "messages": HELLO[1:]},
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", SAME)
def test_the_prompt_of_a_chat_is_counted_in_its_template(name: str, engine: Engine) -> None:
    found = of(engine).count(name, {"model": "m"} | SAME[name], None, engine)
    assert found == Usage(uncached_in=HELLO_TOKENS)
    found = of(engine).count(name, {"model": "m"} | SAME[name], b"", engine)
    assert found == Usage(uncached_in=HELLO_TOKENS, reasoning_out=0, other_out=0)


def test_each_engine_is_asked_in_its_own_way() -> None:
    chat = {"model": "m", "messages": HELLO, "stream": True, "temperature": 0.5}
    asked = of("vllm")
    asked.count("chat/completions", chat, engine="vllm")
    assert asked.queries == [("/tokenize", {"model": "m", "messages": HELLO})]
    asked = of("sglang")
    asked.count("chat/completions", chat, engine="sglang")
    told = {"model": "m", "messages": HELLO[1:], "system": "be brief"}
    assert asked.queries == [("/v1/messages/count_tokens", told)]
    asked = of("llamacpp")
    asked.count("chat/completions", chat, engine="llamacpp")
    template, tokenizer = asked.queries
    assert template == ("/apply-template", chat)
    # As its own chat does: with the token that begins a text, and marks read as marks.
    more = {"add_special": True, "parse_special": True}
    assert tokenizer[1] == {"content": plain.templated(chat)} | more


def test_what_changes_the_template_goes_to_vllm_under_its_names() -> None:
    body = {
        "model": "m",
        "messages": HELLO,
        "tools": [TOOL],
        "reasoning_effort": "low",
        "chat_template_kwargs": {"enable_thinking": False},
        "add_generation_prompt": False,
        "n": 2,
    }
    asked = of("vllm")
    asked.count("chat/completions", body)
    assert asked.queries[0][1] == {
        "model": "m",
        "messages": HELLO,
        "tools": [TOOL],
        "add_generation_prompt": False,
        "chat_template_kwargs": {"reasoning_effort": "low", "enable_thinking": False},
    }


def test_messages_are_counted_by_their_own_counter_and_else_as_a_chat() -> None:
    blocks = [
        {"type": "thinking", "thinking": "hm"},
        {"type": "text", "text": "so"},
        {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}},
    ]
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "r"}]}
    body = {
        "model": "m",
        "max_tokens": 5,
        "system": [{"type": "text", "text": "be "}, {"type": "text", "text": "brief"}],
        "messages": [
            {"role": "assistant", "content": blocks},
            {"role": "user", "content": [result]},
        ],
        "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
    }
    asked = of("vllm")
    assert asked.count("messages", body) is not None
    counted = {name: body[name] for name in ("model", "messages", "system", "tools")}
    assert asked.queries == [("/v1/messages/count_tokens", counted)]
    older = Asked(lambda query: (404, {}) if "messages" in query.path else (200, {"count": 7}))
    assert older.count("messages", body) == Usage(uncached_in=7)
    function = {"name": "f", "description": "d", "parameters": {"type": "object"}}
    call = {"id": "t", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    assert older.queries[1] == (
        "/tokenize",
        {
            "model": "m",
            "messages": [
                {"role": "system", "content": "be brief"},
                {"role": "assistant", "content": "so", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "t", "content": "r"},
            ],
            "tools": [{"type": "function", "function": function}],
        },
    )


def test_a_response_is_counted_as_the_chat_that_it_becomes() -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "one"}]},
        {"type": "reasoning", "summary": []},
        {"type": "function_call", "call_id": "t", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "t", "output": "two"},
        {"type": "message", "role": "developer", "content": "three"},
    ]
    tools = [{"type": "function", "name": "f", "parameters": {}}, {"type": "web_search"}]
    asked = of("openai")
    asked.count("responses", {"model": "m", "input": items, "tools": tools}, engine="openai")
    call = {"id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert asked.queries[0][1] == {
        "model": "m",
        "messages": [
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "t", "content": "two"},
            {"role": "developer", "content": "three"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
    }


@pytest.mark.parametrize(
    ("name", "body", "found"),
    [
        ("completions", {"prompt": "one two three"}, 3),
        ("completions", {"prompt": ["one two", "three"], "n": 2}, 3),
        ("completions", {"prompt": [5, 6, 7, 8]}, 4),
        ("completions", {"prompt": [[5, 6], [7]]}, 3),
        ("completions", {"prompt": ""}, 0),
        ("embeddings", {"input": "one two"}, 2),
        ("embeddings", {"input": ["one two", "three", [1, 2]]}, 5),
        # The query is read with each document.
        ("rerank", {"query": "one two", "documents": ["three", {"text": "four five"}]}, 7),
    ],
)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_prompt_of_texts_and_of_tokens(
    name: str, body: dict[str, Any], found: int, engine: Engine
) -> None:
    usage = of(engine).count(name, {"model": "m"} | body, b"", engine)
    assert usage == Usage(uncached_in=found, reasoning_out=0, other_out=0)


PICTURE = {"type": "image_url", "image_url": {"url": "data:"}}


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("chat/completions", {"messages": [{"role": "user", "content": [PICTURE]}]}),
        ("chat/completions", {"messages": "x"}),
        ("chat/completions", b"\xff"),
        ("chat/completions", b"[]"),
        ("completions", {"prompt": "x", "suffix": "y"}),
        ("completions", {"prompt": [1, "x"]}),
        ("completions", {"prompt": ["x"] * (prompts.TEXTS_MAX + 1)}),
        ("completions", {}),
        ("responses", {"input": "x", "previous_response_id": "resp-1"}),
        ("responses", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
        ("responses", {"input": [{"type": "computer_call"}]}),
        ("messages", {"messages": [{"role": "user", "content": [{"type": "image"}]}]}),
        (
            "messages",
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "tool_result", "content": [{"type": "image"}]}],
                    }
                ]
            },
        ),
        ("audio/transcriptions", b"--xyz"),
        ("audio/speech", {"input": "x"}),
    ],
)
def test_a_prompt_that_no_tokenizer_can_tell_is_unknown_and_the_answer_is_not(
    name: str, body: Any
) -> None:
    asked = of("vllm")
    assert asked.count(name, body, None) is None
    assert asked.count(name, body, b"") == Usage(reasoning_out=0, other_out=0)
    assert asked.queries == []


def test_sglang_is_not_asked_for_what_it_has_no_words_for() -> None:
    for body in (
        {"messages": HELLO, "tools": [TOOL]},
        {"messages": [{"role": "tool", "content": "x"}]},
        {"messages": [{"role": "assistant", "content": "x", "tool_calls": []}]},
    ):
        asked = of("sglang")
        assert asked.count("chat/completions", body, None, "sglang") is None
        assert asked.queries == []


DELIVERED: list[tuple[str, list[Any], tuple[int, int]]] = [
    (
        "chat/completions",
        [
            {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
            {"choices": [{"index": 0, "delta": {"reasoning_content": "a b", "reasoning": "a b"}}]},
            {"choices": [{"index": 0, "delta": {"content": "c "}}]},
            {"choices": [{"index": 0, "delta": {"content": "d"}}, {"index": 1}]},
            {"choices": [{"index": 1, "delta": {"content": "e", "refusal": "f "}}]},
            {"choices": [], "usage": None},
        ],
        (2, 4),
    ),
    (
        "chat/completions",
        [
            {"choices": [{"delta": {"tool_calls": [{"function": {"name": "look "}}]}}]},
            {"choices": [{"delta": {"tool_calls": [{"function": {"arguments": "a b"}}]}}]},
        ],
        (0, 3),
    ),
    ("completions", [{"choices": [{"text": "a b"}]}, {"choices": [{"text": " c"}]}], (0, 3)),
    (
        "responses",
        [
            {"type": "response.created", "response": {"output": []}},
            {"type": "response.reasoning_text.delta", "delta": "a b"},
            {"type": "response.output_text.delta", "delta": " c"},
            {"type": "response.output_item.added", "item": {"type": "function_call", "name": " d"}},
            {"type": "response.function_call_arguments.delta", "delta": " e"},
            {"type": "response.output_text.done", "text": "c"},
        ],
        (2, 3),
    ),
    (
        "messages",
        [
            {"type": "message_start", "message": {"content": []}},
            {"type": "content_block_start", "content_block": {"type": "thinking", "thinking": ""}},
            {"type": "content_block_delta", "delta": {"thinking": "a b"}},
            {"type": "content_block_delta", "delta": {"text": "c"}},
            {
                "type": "content_block_start",
                "content_block": {"type": "tool_use", "name": " look", "input": {}},
            },
            {"type": "content_block_delta", "delta": {"partial_json": ' {"x": 1}'}},
        ],
        (2, 4),
    ),
    (
        "audio/transcriptions",
        [
            {"type": "transcript.text.delta", "delta": "a b"},
            {"type": "transcript.text.done", "text": "a b"},
        ],
        (0, 2),
    ),
    ("audio/transcriptions", [{"choices": [{"delta": {"content": "a b"}}]}], (0, 2)),
]


@pytest.mark.parametrize(("name", "items", "found"), DELIVERED)
@pytest.mark.parametrize("engine", ENGINES)
def test_the_text_of_a_cut_stream_is_counted_reasoning_apart(
    name: str, items: list[Any], found: tuple[int, int], engine: Engine
) -> None:
    broken = b'data: {"choices":[{"delta":{"content":"not de'
    for style in (Style(done=False), Style(spaced=True, newline="\r\n", comments=True)):
        usage = of(engine).count(name, b"\xff", written(items, style) + broken, engine)
        assert usage == Usage(reasoning_out=found[0], other_out=found[1])


@pytest.mark.parametrize(
    ("name", "answer", "found"),
    [
        (
            "chat/completions",
            {
                "choices": [
                    {"index": 0, "message": {"content": "a b", "reasoning": "c"}},
                    {"index": 1, "message": {"content": [{"type": "text", "text": "d"}]}},
                ]
            },
            (1, 3),
        ),
        ("completions", {"choices": [{"index": 0, "text": "a b"}]}, (0, 2)),
        (
            "responses",
            {
                "output": [
                    {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "a"}]},
                    {"type": "message", "content": [{"type": "output_text", "text": "b c"}]},
                    {"type": "function_call", "name": " f ", "arguments": "d"},
                ]
            },
            (1, 4),
        ),
        (
            "messages",
            {
                "content": [
                    {"type": "thinking", "thinking": "a"},
                    {"type": "text", "text": "b c"},
                    {"type": "tool_use", "name": " f", "input": {"x": 1}},
                ]
            },
            (1, 4),
        ),
        ("audio/transcriptions", {"text": "a b"}, (0, 2)),
        ("embeddings", {"data": []}, (0, 0)),
    ],
)
def test_the_text_of_a_whole_answer_is_counted(
    name: str, answer: Any, found: tuple[int, int]
) -> None:
    body = {"input": "x"} if name == "embeddings" else b"\xff"
    raw = json.dumps(answer).encode()
    usage = of("llamacpp").count(name, body, raw, "llamacpp", streamed=False)
    assert usage is not None
    assert (usage.reasoning_out, usage.other_out) == found


@pytest.mark.parametrize(
    ("name", "answer", "found"),
    [
        ("audio/transcriptions", b"a b c\n", Usage(reasoning_out=0, other_out=3)),
        ("audio/transcriptions", b"1\n00:00 --> 00:01\na\n", None),
        ("audio/transcriptions", b"\xff\xfe", None),
        ("audio/speech", b"\xff\xfb", None),
        ("chat/completions", b"a b c", None),
        ("chat/completions", b'{"choices":[{"message":{"content":"a b', None),
    ],
)
def test_a_whole_answer_that_is_no_json(name: str, answer: bytes, found: Usage | None) -> None:
    assert of("vllm").count(name, b"\xff", answer, streamed=False) == found
    known = of("vllm").count("completions", {"prompt": "x"}, b"a b", streamed=False)
    assert known == Usage(uncached_in=1)


def test_output_is_tokenized_without_what_stands_around_a_prompt() -> None:
    stream = written([{"choices": [{"text": "a"}]}], Style())
    asked = of("llamacpp")
    asked.count("completions", {"prompt": "x"}, stream, "llamacpp")
    assert [body["add_special"] for _, body in asked.queries] == [True, False]
    asked = of("vllm")
    asked.count("completions", {"model": "m", "prompt": "x"}, stream)
    assert [body["add_special_tokens"] for _, body in asked.queries] == [True, False]
    assert [body["model"] for _, body in asked.queries] == ["m", "m"]


def test_an_answer_that_repeats_its_prompt_is_no_measure() -> None:
    stream = written([{"choices": [{"text": "x a"}]}], Style())
    found = of("vllm").count("completions", {"prompt": "x", "echo": True}, stream)
    assert found == Usage(uncached_in=1)
    found = of("vllm").count("completions", {"prompt": "x", "echo": False}, stream)
    assert found == Usage(uncached_in=1, reasoning_out=0, other_out=2)


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (404, {}),
        (500, {"count": 3}),
        (200, {}),
        (200, []),
        (200, {"count": "3"}),
        (200, {"count": -3}),
        (200, {"count": 10**13}),
        (200, {"count": [3]}),
        (200, {"prompt": 3}),
    ],
)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_tokenizer_that_does_not_tell_gives_no_count(
    status: int, answer: Any, engine: Engine
) -> None:
    stream = written([{"choices": [{"delta": {"content": "a"}, "text": "a"}]}], Style())
    for name, body in (
        ("chat/completions", {"messages": HELLO}),
        ("completions", {"prompt": "x"}),
        ("completions", b"\xff"),
    ):
        assert Asked(lambda query: (status, answer)).count(name, body, stream, engine) is None


@pytest.mark.parametrize("name", ["tokenize", "messages/count_tokens"])
def test_where_no_model_runs_nothing_is_asked(name: str) -> None:
    asked = of("vllm")
    assert asked.count(name, {"prompt": "x"}, None) == NOTHING_USED
    assert asked.queries == []


@given(
    body=st.binary(max_size=40)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ("messages", "input", "prompt", "content", "role", "type", "text", "tools")
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    ).map(lambda value: json.dumps(value).encode()),
    delivered=st.none() | st.binary(max_size=60),
    answer=st.sampled_from(
        ({"count": 1}, {"tokens": [1]}, {"prompt": "x"}, {"input_tokens": 2}, 7)
    ),
    endpoint=st.sampled_from(list(ENDPOINTS.values())),
    engine=st.sampled_from(ENGINES),
    streamed=st.booleans(),
)
def test_any_body_and_any_answer_give_a_count_or_none(
    body: bytes,
    delivered: bytes | None,
    answer: Any,
    endpoint: Endpoint,
    engine: Engine,
    streamed: bool,
) -> None:
    asked = Asked(lambda query: (200, answer))
    found = asked.count(endpoint.name, body, delivered, engine, streamed=streamed)
    assert found is None or found.known
