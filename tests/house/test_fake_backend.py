"""The fake backend does what its scripts say: the suite's claims about misbehaviour rest on it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support import processes
from tests.support.fake_backend import KEY, FakeBackend, fake_backend
from tests.support.script import Script, parse
from tests.support.shapes import Engine

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def session(backend: FakeBackend, timeout: float = 10.0) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        backend.url,
        headers={"authorization": f"Bearer {KEY}"},
        # The fake llama.cpp closes behind a stream without a word, as the real one does.
        connector=aiohttp.TCPConnector(force_close=True),
        timeout=aiohttp.ClientTimeout(total=timeout),
    )


async def ask(
    client: aiohttp.ClientSession, model: str, path: str = CHAT, **more: Any
) -> tuple[int, bytes]:
    async with client.post(path, json={"model": model, "messages": [], **more}) as answer:
        return answer.status, await answer.read()


def items(stream: bytes) -> list[Any]:
    """The events of a stream as JSON, the closing mark as text."""
    lines = [line for line in stream.decode().splitlines() if line.startswith("data: ")]
    found = [line.removeprefix("data: ") for line in lines]
    return [text if text == "[DONE]" else json.loads(text) for text in found]


def text_of(chunks: list[Any]) -> str:
    choices = [choice for chunk in chunks if chunk != "[DONE]" for choice in chunk["choices"]]
    return "".join(c.get("text") or c.get("delta", {}).get("content") or "" for c in choices)


def test_a_model_name_spells_a_script() -> None:
    assert parse("gemma-3-it") == Script()
    assert parse("fake-d20-n200-i5000-k50-z1-h1") == Script(
        delay_ms=20, chunks=200, interval_us=5000, cut=50, done=False, hang=True
    )


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("engine", ["fake", "vllm", "sglang", "llamacpp"])
async def test_streamed_and_whole_say_the_same(engine: Engine, path: str) -> None:
    async with fake_backend(engine) as backend, session(backend) as client:
        _, whole = await ask(client, "fake-n3-c5", path)
        options = {"stream": True, "stream_options": {"include_usage": True}}
        _, stream = await ask(client, "fake-n3-c5", path, **options)
        answer, chunks = json.loads(whole), items(stream)
    choice = answer["choices"][0]
    assert (
        text_of(chunks)
        == " t0 t1 t2"
        == choice.get("text", choice.get("message", {}).get("content"))
    )
    assert chunks[-1] == "[DONE]" and chunks[-2]["usage"] == answer["usage"]
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 5}
    assert [(call.end, call.prompt, call.completion) for call in backend.calls] == [
        ("done", 12, 3)
    ] * 2
    on_finishing_chunk = bool(chunks[-2]["choices"])
    assert on_finishing_chunk == (engine == "llamacpp" and path == TEXT)


async def test_running_usage_only_where_the_engine_knows_it() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    for engine, expected in (("vllm", [0, 1, 2, 2, 2]), ("llamacpp", [2]), ("fake", [2])):
        async with fake_backend(engine) as backend, session(backend) as client:  # type: ignore[arg-type]
            _, stream = await ask(client, "fake-n2", stream=True, stream_options=options)
        usages = [chunk.get("usage") for chunk in items(stream)[:-1]]
        assert [usage["completion_tokens"] for usage in usages if usage] == expected


async def test_it_wants_its_key() -> None:
    async with fake_backend() as backend, aiohttp.ClientSession(backend.url) as client:
        status, _ = await ask(client, "fake")
    assert status == 401 and backend.stats()["unauthorized"] == 1 and not backend.calls


async def test_a_queue_of_scripts_goes_before_the_name() -> None:
    async with fake_backend() as backend, session(backend) as client:
        backend.next("e503", "n1")
        statuses = [(await ask(client, "fake-n2"))[0] for _ in range(3)]
    assert statuses == [503, 200, 200]
    assert [call.completion for call in backend.calls] == [0, 1, 2]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_cut_breaks_the_answer_off(stream: bool) -> None:
    async with fake_backend() as backend, session(backend) as client:
        with pytest.raises(aiohttp.ClientPayloadError):
            await ask(client, "fake-n9-k3", stream=stream)
    assert [(call.end, call.completion) for call in backend.calls] == [("cut", 3)]


@pytest.mark.parametrize(
    ("model", "end"),
    [
        ("fake-h1", "stalled"),
        ("fake-n9-g3", "stalled"),
        ("fake-d5000", "aborted"),
        ("fake-n500-i20000", "aborted"),
    ],
)
async def test_it_notices_a_hang_up(model: str, end: str) -> None:
    async with fake_backend() as backend:
        async with session(backend, timeout=0.2) as client:
            with pytest.raises(TimeoutError):
                await ask(client, model, stream=True)
        for _ in range(100):
            if backend.calls[0].end != "open":
                break
            await asyncio.sleep(0.01)
        assert backend.calls[0].end == end and backend.calls[0].completion < 20


async def test_an_error_inside_the_stream_and_a_missing_end() -> None:
    async with fake_backend() as backend, session(backend) as client:
        _, broken = await ask(client, "fake-n9-x2", stream=True)
        _, endless = await ask(client, "fake-n2-z1", stream=True)
    assert items(broken)[-1]["error"]["code"] == 500 and len(items(broken)) == 4
    assert "[DONE]" not in items(endless)


@pytest.mark.parametrize("flags", ["s5", "y1", "o1", "b4", "s3-y1-o1-b2"])
async def test_the_same_stream_in_other_clothes(flags: str) -> None:
    async with fake_backend() as backend, session(backend) as client:
        _, plain = await ask(client, "fake-n5", stream=True)
        _, dressed = await ask(client, f"fake-n5-{flags}", stream=True)
    assert text_of(items(dressed)) == text_of(items(plain))


@pytest.mark.parametrize("wrong", range(1, 6))
async def test_usage_can_lie(wrong: int) -> None:
    async with fake_backend() as backend, session(backend) as client:
        _, honest = await ask(client, "fake-n4")
        _, lie = await ask(client, f"fake-n4-w{wrong}")
    assert json.loads(lie)["usage"] != json.loads(honest)["usage"]
    assert [call.completion for call in backend.calls] == [4, 4], "its own books do not"


def test_it_runs_as_a_process_that_can_be_killed(tmp_path: Path) -> None:
    with processes.backend(tmp_path, "llamacpp") as backend:
        answer = processes.call(f"{backend.url}{CHAT}", {"model": "fake-c2", "user": "me"}, KEY)
        assert answer.json()["choices"][0]["message"]["content"] == " t0 t1 t2 t3"
        assert [call["tag"] for call in backend.calls()] == ["me"]
        metrics = processes.call(f"{backend.url}/metrics").body.decode()
        assert "llamacpp:prompt_tokens_total 10\n" in metrics
        backend.kill()
        assert not processes.lives(backend.pid)
