"""The official `openai` package, unmodified, sync and async, against a real gateway.

What it does with our answers is the test: that it finds its fields, its usage and its errors.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import openai
import pytest

from tests.gateway.doors import Key, ended
from tests.gateway.house import House
from tests.support.fake_backend import KEY

MESSAGES: Any = [{"role": "user", "content": "say it"}]
TEXT = " t0 t1 t2"
MODEL = "fake-n3-c5"


@contextmanager
def client(house: House, key: str | None = None) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{house.wide.url}/v1", api_key=key or house.key.secret, max_retries=0
    ) as opened:
        yield opened


@asynccontextmanager
async def async_client(house: House) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{house.wide.url}/v1", api_key=house.key.secret, max_retries=0
    ) as opened:
        yield opened


def strict(house: House, key: Key | None = None) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{house.strict.url}/v1", api_key=(key or house.key).secret, max_retries=0
    )


def test_chat(house: House) -> None:
    with client(house) as api:
        raw = api.chat.completions.with_raw_response.create(model=MODEL, messages=MESSAGES)
    answer = raw.parse()
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (12, 3)
    assert raw.headers["x-tollbook-backend"] in ("one", "two")
    end = ended(house.data, raw.headers["x-request-id"])
    assert (end.usage.uncached_in, end.usage.cached_in, end.usage.other_out) == (7, 5, 3)


def test_completions(house: House) -> None:
    with client(house) as api:
        answer = api.completions.create(model=MODEL, prompt="say it", max_tokens=2)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (" t0 t1", "length")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 2


@pytest.mark.parametrize("wanted", [False, True])
def test_streamed_chat(house: House, wanted: bool) -> None:
    more: Any = {"stream_options": {"include_usage": True}} if wanted else {}
    with client(house) as api:
        stream = api.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True, **more)
        chunks = list(stream)
    said = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(said) == TEXT
    used = [chunk.usage for chunk in chunks if chunk.usage]
    assert [usage.completion_tokens for usage in used] == ([3] if wanted else [])
    # Who did not ask for the usage never meets a chunk without choices.
    assert all(chunk.choices for chunk in chunks) is not wanted


@pytest.mark.parametrize("wanted", [False, True])
def test_streamed_completions(house: House, wanted: bool) -> None:
    more: Any = {"stream_options": {"include_usage": True}} if wanted else {}
    with client(house) as api:
        stream = api.completions.create(model=MODEL, prompt="say it", stream=True, **more)
        chunks = list(stream)
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == TEXT
    used = [chunk.usage for chunk in chunks if chunk.usage]
    assert [usage.completion_tokens for usage in used] == ([3] if wanted else [])


async def test_async_all_at_once(house: House) -> None:
    async with async_client(house) as api:

        async def chat() -> str:
            answer = await api.chat.completions.create(model=MODEL, messages=MESSAGES)
            return answer.choices[0].message.content or ""

        async def completions() -> str:
            return (await api.completions.create(model=MODEL, prompt="x")).choices[0].text

        async def streamed_chat() -> str:
            stream = await api.chat.completions.create(
                model=f"{MODEL}-i5000", messages=MESSAGES, stream=True
            )
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        async def streamed_completions() -> str:
            stream = await api.completions.create(model=f"{MODEL}-i5000", prompt="x", stream=True)
            return "".join([chunk.choices[0].text async for chunk in stream])

        kinds = (chat, completions, streamed_chat, streamed_completions)
        texts = await asyncio.gather(*(kind() for kind in kinds * 5))
    assert texts == [TEXT] * 20


async def test_async_close_in_the_middle_of_a_stream(house: House) -> None:
    async with async_client(house) as api:
        stream = await api.chat.completions.create(
            model="fake-n900-i5000", messages=MESSAGES, stream=True
        )
        request_id = stream.response.headers["x-request-id"]
        seen = 0
        async for chunk in stream:
            seen += bool(chunk.choices[0].delta.content)
            if seen == 5:
                break
        await stream.close()
    end = await asyncio.to_thread(ended, house.data, request_id)
    assert (end.outcome, end.basis) == ("client_gone", "tokenized")
    assert 5 <= end.usage.other_out < 900


def test_models(house: House) -> None:
    with client(house) as api:
        assert [model.id for model in api.models.list()] == ["fake", "other"]
    with client(house, house.few.secret) as api:
        assert [model.id for model in api.models.list().data] == ["fake"]


def test_tools_and_extra_fields_pass(house: House) -> None:
    tools: Any = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    with client(house) as api:
        api.chat.completions.create(
            model="fake-n1-p77",
            messages=MESSAGES,
            tools=tools,
            seed=7,
            extra_body={"guided_regex": "[a-z]+", "top_k": 5},
        )
    seen = [*house.one.stats()["last"], *house.two.stats()["last"]]
    body = next(one["body"] for one in seen if one["body"]["model"] == "fake-n1-p77")
    assert (body["tools"], body["seed"], body["top_k"]) == (tools, 7, 5)
    assert body["guided_regex"] == "[a-z]+"


@pytest.mark.parametrize(
    ("model", "stream", "error", "code"),
    [
        ("not-there", False, openai.NotFoundError, "model_not_found"),
        ("not-there", True, openai.NotFoundError, "model_not_found"),
        ("raw-401", False, openai.InternalServerError, "backend_key_refused"),
        ("raw-silence", False, openai.InternalServerError, "backend_unreachable"),
        ("raw-silence", True, openai.InternalServerError, "backend_unreachable"),
        ("x" * 300, False, openai.BadRequestError, "invalid_request"),
    ],
)
def test_our_errors_are_its_errors(
    house: House, model: str, stream: bool, error: type[openai.APIStatusError], code: str
) -> None:
    with strict(house) as api, pytest.raises(error) as raised:
        api.chat.completions.create(model=model, messages=MESSAGES, stream=stream)
    assert raised.value.code == code
    assert raised.value.request_id is not None
    assert raised.value.request_id.startswith("req_")
    assert raised.value.type in ("invalid_request_error", "server_error")


def test_who_may_not(house: House) -> None:
    with client(house, "sk-tb-wrong") as api, pytest.raises(openai.AuthenticationError) as raised:
        api.chat.completions.create(model="fake", messages=MESSAGES)
    assert raised.value.code == "invalid_api_key"
    with strict(house, house.few) as api, pytest.raises(openai.PermissionDeniedError) as denied:
        api.chat.completions.create(model="other", messages=MESSAGES)
    assert (denied.value.code, denied.value.param) == ("model_not_allowed", "model")
    with strict(house) as api, pytest.raises(openai.APIStatusError) as large:
        api.completions.create(model="fake", prompt="x" * 100_000)
    assert (large.value.status_code, large.value.code) == (413, "request_too_large")


@pytest.mark.parametrize(
    ("model", "error"),
    [
        ("fake-e400", openai.BadRequestError),
        ("fake-e422", openai.UnprocessableEntityError),
        ("fake-e429", openai.RateLimitError),
        ("fake-e500", openai.InternalServerError),
    ],
)
def test_errors_of_a_backend_pass(
    house: House, model: str, error: type[openai.APIStatusError]
) -> None:
    with client(house) as api, pytest.raises(error, match=f"scripted {model[-3:]}"):
        api.chat.completions.create(model=model, messages=MESSAGES)


@pytest.mark.parametrize("model", ["fake-n5-k2", "fake-n5-x2"])
def test_a_stream_that_fails_is_an_error_and_no_short_answer(house: House, model: str) -> None:
    with client(house) as api:
        stream = api.chat.completions.create(model=model, messages=MESSAGES, stream=True)
        said = []
        with pytest.raises(openai.APIError) as raised:
            said += [chunk.choices[0].delta.content or "" for chunk in stream]
            pytest.fail(f"it took {said} for the whole answer")
    assert KEY not in str(raised.value)
