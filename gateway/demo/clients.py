"""The demo's clients: the official `openai` client, unmodified, and plain calls at the doors."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal

import msgspec
import openai

from gateway.demo.errors import DemoFailed

CALL_SECONDS_MAX: Final = 120.0
"""For one call. The model makes 40 tokens a second on two cores, and none asks for 100."""

Endpoint = Literal["chat", "completions"]


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One request to make. `hang_up_after` is the number of chunks after which the client goes."""

    who: str
    endpoint: Endpoint
    stream: bool
    prompt: str
    tokens_max: int = 24
    hang_up_after: int | None = None


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """What the client got: the gateway's id of the request, and the text."""

    request_id: str
    text: str


STORY: Final = "Tell a story about the keeper of a toll gate and her dog, who counts the carts."
GREETING: Final = "Say hello to a traveller at a toll gate, in one sentence."

CALLS: Final = (
    Call(who="ada", endpoint="chat", stream=False, prompt=GREETING),
    Call(who="ada", endpoint="chat", stream=True, prompt=STORY),
    Call(who="ada", endpoint="completions", stream=False, prompt="The toll for a cart is"),
    Call(who="ada", endpoint="completions", stream=True, prompt="A toll book says who"),
    # The same prompt by somebody else: the engine has it in its cache, and the bill shows that.
    Call(who="ben", endpoint="chat", stream=False, prompt=GREETING),
    Call(who="ben", endpoint="chat", stream=True, prompt=GREETING),
    Call(who="ben", endpoint="completions", stream=False, prompt="The gate opens when"),
    Call(who="ben", endpoint="completions", stream=True, prompt="At night the keeper"),
    Call(
        who="ben", endpoint="chat", stream=True, prompt=STORY, tokens_max=400, hang_up_after=12
    ),
)  # fmt: skip
"""Both keys, both endpoints, streamed and not, and a client that hangs up mid-stream."""


def make(base_url: str, key: str, model: str, call: Call) -> Heard:
    """Make one `call` through the official client. Raises `DemoFailed` if it is refused."""
    try:
        with _client(base_url, key) as client:
            if call.endpoint == "chat":
                return _chat(client, model, call)
            return _completions(client, model, call)
    except openai.APIError as wrong:
        raise DemoFailed(f"the gateway did not answer {call.who}: {wrong}") from wrong


def status(url: str, key: str | None, model: str) -> tuple[int, str]:
    """The status that a chat request gets at `url` with `key` (null: without one), and the
    request's id if it has one. Plain HTTP, because a wrong key is the point."""
    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    return fetch(f"{url}/v1/chat/completions", key, body)[:2]


def fetch(url: str, key: str | None, body: object = None) -> tuple[int, str, str]:
    """Status, request id and text of one HTTP call. Raises `OSError` if nobody answers."""
    headers = {"content-type": "application/json"}
    if key is not None:
        headers["authorization"] = f"Bearer {key}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers)
    # A proxy of the environment has no business between this machine and itself.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=CALL_SECONDS_MAX) as answer:
            return answer.status, answer.headers.get("x-request-id", ""), answer.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, "", refused.read().decode()


@contextmanager
def _client(base_url: str, key: str) -> Iterator[openai.OpenAI]:
    with (
        openai.DefaultHttpxClient(trust_env=False, timeout=CALL_SECONDS_MAX) as http,
        # No second try: what is billed is what was asked for, once.
        openai.OpenAI(base_url=base_url, api_key=key, http_client=http, max_retries=0) as client,
    ):
        yield client


def _chat(client: openai.OpenAI, model: str, call: Call) -> Heard:
    if not call.stream:
        raw = client.chat.completions.with_raw_response.create(
            model=model,
            messages=[{"role": "user", "content": call.prompt}],
            max_tokens=call.tokens_max,
        )
        message = raw.parse().choices[0].message
        return Heard(request_id=raw.headers["x-request-id"], text=message.content or "")
    with client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": call.prompt}],
        max_tokens=call.tokens_max,
        stream=True,
    ) as stream:
        parts = (c.choices[0].delta.content for c in stream if c.choices)
        text = _listen((part for part in parts if part), call)
        return Heard(request_id=stream.response.headers["x-request-id"], text=text)


def _completions(client: openai.OpenAI, model: str, call: Call) -> Heard:
    if not call.stream:
        raw = client.completions.with_raw_response.create(
            model=model, prompt=call.prompt, max_tokens=call.tokens_max
        )
        return Heard(request_id=raw.headers["x-request-id"], text=raw.parse().choices[0].text)
    with client.completions.create(
        model=model, prompt=call.prompt, max_tokens=call.tokens_max, stream=True
    ) as stream:
        parts = (c.choices[0].text for c in stream if c.choices)
        text = _listen((part for part in parts if part), call)
        return Heard(request_id=stream.response.headers["x-request-id"], text=text)


def _listen(parts: Iterator[str], call: Call) -> str:
    """All of a stream's text, or what came before the client hung up."""
    heard: list[str] = []
    for part in parts:
        heard.append(part)
        if call.hang_up_after is not None and len(heard) >= call.hang_up_after:
            break
    return "".join(heard)
