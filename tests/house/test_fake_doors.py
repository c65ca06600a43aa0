"""The fake backend at every endpoint, in each engine's shapes, and its rarer scripts."""

import asyncio
import gzip
import json
import zlib
from typing import Any

import aiohttp
import pytest

from tests.house.test_fake_backend import ask, items, session, text_of
from tests.support.fake.plain import templated, words
from tests.support.fake_backend import KEY, fake_backend
from tests.support.script import Script, parse, spell
from tests.support.shapes import ENGINES, Engine

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
HELLO = [{"role": "user", "content": "Hi there"}]


def deltas(events: list[Any]) -> str:
    """What a reader of named events puts together."""
    found = []
    for event in events:
        delta = event.get("delta") if isinstance(event, dict) else None
        if isinstance(delta, dict):
            found.append(delta.get("text") or delta.get("thinking") or "")
        elif delta is not None:
            found.append(delta)
    return "".join(found)


@pytest.mark.parametrize(
    "script", [Script(), Script(chunks=9, done=False, tools=True, cut=3, open_end=True)]
)
def test_a_script_is_spelled_and_read_back(script: Script) -> None:
    assert parse(f"-{spell(script)}") == script


@pytest.mark.parametrize("engine", ENGINES)
async def test_responses_end_with_their_usage(engine: Engine) -> None:
    async with fake_backend(engine) as backend, session(backend) as client:
        _, whole = await ask(client, "fake-n5-c3-r2", RESPONSES)
        _, stream = await ask(client, "fake-n5-c3-r2", RESPONSES, stream=True)
    events = items(stream)
    assert deltas(events) == " t0 t1 t2 t3 t4"
    assert events[-1]["response"] == json.loads(whole) | {"id": "resp-2"}
    usage = events[-1]["response"]["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (12, 5)
    assert usage["input_tokens_details"]["cached_tokens"] == 3
    assert ("output_tokens_details" in usage) == (engine != "llamacpp")
    assert f"event: {events[-1]['type']}\n".encode() in stream
    assert [(call.completion, call.reasoning) for call in backend.calls] == [(5, 2)] * 2


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        ("fake", {"input_tokens": 8, "cache_read_input_tokens": 3}),
        ("vllm", {"input_tokens": 12}),
        ("sglang", {"input_tokens": 9, "cache_read_input_tokens": 3}),
        ("llamacpp", {"input_tokens": 9, "cache_read_input_tokens": 3}),
    ],
)
async def test_messages_tell_their_input_first(engine: Engine, told: dict[str, int]) -> None:
    script = "fake-n4-c3-r1" + ("-v1" if engine == "fake" else "")
    written = {"cache_creation_input_tokens": 1} if engine == "fake" else {}
    async with fake_backend(engine) as backend, session(backend) as client:
        _, whole = await ask(client, script, MESSAGES)
        _, stream = await ask(client, script, MESSAGES, stream=True)
        _, short = await ask(client, f"{script}-z1-u2", MESSAGES, stream=True)
    events = items(stream)
    assert deltas(events) == " t0 t1 t2 t3"
    assert json.loads(whole)["usage"] == {**told, **written, "output_tokens": 4}
    assert events[0]["message"]["usage"] == {**told, **written, "output_tokens": 0}
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
    assert events[-2]["usage"]["output_tokens"] == 4
    assert len(events[-2]["usage"]) == (
        1 if engine == "llamacpp" else 2 + len({**told, **written}) - 1
    )
    assert items(short)[-1]["type"] == "message_delta" and b"usage" not in short
    assert [(call.completion, call.cached) for call in backend.calls] == [(4, 3)] * 3


async def transcribed(client: aiohttp.ClientSession, **fields: str) -> bytes:
    form = aiohttp.FormData({"model": "fake-n3", **fields}, default_to_multipart=True)
    form.add_field("file", b"RIFF" * 9, filename="a.wav", content_type="audio/wav")
    async with client.post("/v1/audio/transcriptions", data=form) as answer:
        return await answer.read()


async def test_transcriptions_differ_by_engine() -> None:
    asked = {"stream": "true", "stream_include_usage": "true"}
    async with fake_backend("vllm") as backend, session(backend) as client:
        whole = json.loads(await transcribed(client))
        unasked = items(await transcribed(client, stream="true"))
        chunks = items(await transcribed(client, stream_continuous_usage_stats="true", **asked))
    assert whole == {"text": " t0 t1 t2", "usage": {"type": "duration", "seconds": 3}}
    assert unasked[-1] == "[DONE]" and text_of(chunks) == " t0 t1 t2"
    assert not any("usage" in chunk for chunk in unasked[:-1])
    assert [c["usage"]["completion_tokens"] for c in chunks[:-1] if "usage" in c] == [1, 2, 3, 3]
    assert [call.stream for call in backend.calls] == [False, True, True]
    async with fake_backend() as backend, session(backend) as client:
        whole = json.loads(await transcribed(client))
        events = items(await transcribed(client, stream="true"))
    assert whole["usage"] | {"type": "tokens"} == whole["usage"] == events[-2]["usage"]
    assert deltas(events) == events[-2]["text"] == " t0 t1 t2"
    async with fake_backend("llamacpp") as backend, session(backend) as client:
        assert (await ask(client, "fake", "/v1/audio/speech"))[0] == 501


async def test_speech_is_sound_or_events() -> None:
    async with fake_backend() as backend, session(backend) as client:
        _, sound = await ask(client, "fake-n2", "/v1/audio/speech", input="x")
        _, stream = await ask(client, "fake-n2", "/v1/audio/speech", stream_format="sse")
    assert sound.startswith(b"\xff\xfb") and items(stream)[-1]["usage"]["output_tokens"] == 2
    assert [call.completion for call in backend.calls] == [2, 2]


@pytest.mark.parametrize("engine", ENGINES)
async def test_embeddings_and_ranks_cost_their_input(engine: Engine) -> None:
    async with fake_backend(engine) as backend, session(backend) as client:
        _, embedded = await ask(client, "fake-p7", "/v1/embeddings", input="a")
        _, ranked = await ask(client, "fake-p7", "/v1/rerank", query="a", documents=["b"])
    assert json.loads(embedded)["usage"]["prompt_tokens"] == 7
    ranks = json.loads(ranked)
    parts = [one["meta_info"]["prompt_tokens"] for one in ranks] if engine == "sglang" else []
    assert (sum(parts) if parts else ranks["usage"]["total_tokens"]) == 7
    assert [(call.prompt, call.completion, call.end) for call in backend.calls] == [
        (7, 0, "done")
    ] * 2


@pytest.mark.parametrize("engine", ENGINES)
async def test_its_tokenizer_knows_prompts_and_answers(engine: Engine) -> None:
    body: dict[str, Any] = {"messages": HELLO}
    async with fake_backend(engine) as backend, session(backend) as client:

        async def post(path: str, said: Any) -> Any:
            async with client.post(path, json=said) as answer:
                return (answer.status, await answer.json())

        counted = (await post("/v1/messages/count_tokens", body))[1]["input_tokens"]
        if engine == "llamacpp":
            prompt = (await post("/apply-template", body))[1]["prompt"]
            tokens = (await post("/tokenize", {"content": prompt}))[1]["tokens"]
        elif engine == "sglang":
            assert (await post("/tokenize", body))[0] == 422
            tokens = (await post("/tokenize", {"prompt": templated(body)}))[1]["tokens"]
        else:
            tokens = (await post("/tokenize", body))[1]["tokens"]
        _, whole = await ask(client, "fake-n6")
    assert len(tokens) == counted == words(templated(body)) == 4
    assert words(json.loads(whole)["choices"][0]["message"]["content"]) == 6
    assert not backend.calls[:-1], "no model was run for it"


@pytest.mark.parametrize(
    ("engine", "final", "running"),
    [("vllm", [6], [1, 1, 2, 2, 3, 3]), ("llamacpp", [3, 3], []), ("fake", [6], [])],
)
async def test_of_several_choices_each_engine_tells_its_own_way(
    engine: Engine, final: list[int], running: list[int]
) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with fake_backend(engine) as backend, session(backend) as client:
        _, stream = await ask(client, "fake-n3", n=2, stream=True, stream_options=options)
        _, whole = await ask(client, "fake-n3", n=2)
    chunks = items(stream)[:-1]
    said = [c["usage"]["completion_tokens"] for c in chunks if not c["choices"]]
    texts = [c for c in chunks if c["choices"] and c["choices"][0]["delta"].get("content")]
    assert said == final
    assert [c["usage"]["completion_tokens"] for c in texts if c.get("usage")] == running
    assert json.loads(whole)["usage"]["completion_tokens"] == (3 if engine == "llamacpp" else 6)
    assert [call.completion for call in backend.calls] == [6, 6]


async def test_tool_calls_logprobs_and_several_tokens_in_a_chunk() -> None:
    async with fake_backend("vllm") as backend, session(backend) as client:
        _, tools = await ask(client, "fake-n3-l1", stream=True)
        _, likely = await ask(client, "fake-n3", stream=True, logprobs=True)
        _, dense = await ask(client, "fake-n3-t4", stream=True, max_tokens=10)
        _, big = await ask(client, "fake-n2-m1024-a1", stream=True)
    calls = [c["choices"][0]["delta"].get("tool_calls") for c in items(tools)[:-1]]
    arguments = [call[0]["function"]["arguments"] for call in calls if call]
    assert "".join(arguments) == " t0 t1 t2" and not text_of(items(tools))
    assert text_of(items(likely)) == " t0 t1 t2" and likely.count(b'"logprobs"') == 3
    assert words(text_of(items(dense))) == 10 and len(items(dense)) == 1 + 3 + 2
    assert len(big) > 1 << 20 and "é\U0001f600".encode() in big
    assert [(call.completion, call.chunks) for call in backend.calls] == [
        (3, 3),
        (3, 3),
        (10, 3),
        (2, 2),
    ]


@pytest.mark.parametrize(("flag", "unpacked"), [("j1", gzip.decompress), ("j2", zlib.decompress)])
@pytest.mark.parametrize("stream", [True, False])
async def test_answers_can_be_compressed_unasked(flag: str, unpacked: Any, stream: bool) -> None:
    async with (
        fake_backend() as backend,
        aiohttp.ClientSession(backend.url, auto_decompress=False) as client,
    ):
        client.headers["authorization"] = f"Bearer {KEY}"
        _, plain = await ask(client, "fake-n5", stream=stream)
        _, packed = await ask(client, f"fake-n5-{flag}", stream=stream)
    assert unpacked(packed).replace(f"-{flag}".encode(), b"").replace(b"l-2", b"l-1") == plain


@pytest.mark.parametrize("flag", ["k3", "g3", "x3"])
@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
async def test_it_can_end_behind_the_last_token(path: str, flag: str) -> None:
    async with fake_backend() as backend, session(backend, timeout=0.5) as client:
        options = {"stream": True, "stream_options": {"include_usage": True}}
        got = b""
        try:
            async with client.post(path, json={"model": f"fake-n3-{flag}", **options}) as answer:
                async for part in answer.content.iter_any():
                    got += part
        except (aiohttp.ClientPayloadError, TimeoutError):
            pass
        for _ in range(100):
            if backend.calls[0].end != "open":
                break
            await asyncio.sleep(0.01)
    assert b" t2" in got and b'"output_tokens":3' not in got and b'"completion_tokens"' not in got
    ends = {"k3": "cut", "g3": "stalled", "x3": "error"}
    assert [(call.end, call.completion) for call in backend.calls] == [(ends[flag], 3)]


@pytest.mark.parametrize(("flag", "end"), [("k9999", "cut"), ("g9999", "stalled")])
async def test_it_can_leave_an_answer_without_its_end(flag: str, end: str) -> None:
    async with fake_backend() as backend, session(backend, timeout=0.5) as client:
        got = b""
        async with client.post(CHAT, json={"model": f"fake-n3-{flag}", "stream": True}) as answer:
            with pytest.raises((aiohttp.ClientPayloadError, TimeoutError)):
                async for part in answer.content.iter_any():
                    got += part
        await asyncio.sleep(0.05)
    assert items(got)[-1] == "[DONE]"
    assert [(call.end, call.completion) for call in backend.calls] == [(end, 3)]


async def test_usage_in_an_event_of_its_own_and_details_beyond_the_buckets() -> None:
    async with fake_backend() as backend, session(backend) as client:
        _, trailing = await ask(client, "fake-n2-u4-v2-f1", stream=True)
    last = items(trailing)[-2]
    assert "choices" not in last and last["usage"]["prompt_tokens_details"]["audio_tokens"] == 3
    assert last["usage"]["prompt_tokens_details"]["cache_write_tokens"] == 2
    assert last["usage"]["completion_tokens_details"]["rejected_prediction_tokens"] == 1


NAMES = {"fake": "vllm:", "vllm": "vllm:", "sglang": "sglang:", "llamacpp": "llamacpp:"}


@pytest.mark.parametrize("engine", ENGINES)
async def test_its_counters_outlive_its_books_but_no_restart(engine: Engine) -> None:
    async with fake_backend(engine) as backend, session(backend) as client:

        async def counted() -> float:
            async with client.get("/metrics") as answer:
                lines = (await answer.text()).splitlines()
            name = NAMES[engine] + "prompt_tokens_total"
            return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

        await ask(client, "fake-p7-c2")
        backend.reset()
        before = await counted()
        async with client.get("/_restart_counters") as answer:
            assert answer.status == 200
        after = await counted()
        await ask(client, "fake-p1")
        assert (before, after, await counted()) == (5.0 if engine == "llamacpp" else 7.0, 0, 1)
