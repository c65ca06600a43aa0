"""Tokens by a backend's own tokenizer: what to ask it, and what its answers come to. Pure.

vLLM's `/tokenize` takes a prompt or a chat. llama.cpp's takes a text only: a chat is put into its
template first. SGLang's takes a prompt only; of a chat its `count_tokens` tells. Anthropic's
`count_tokens`, where an engine has it, is asked first of its own messages.
"""

from collections.abc import Generator
from typing import Any, Final

import msgspec

from gateway.wire.endpoints import Endpoint
from gateway.wire.prompts import Json, Prompt, prompt_of
from gateway.wire.requests import Engine
from gateway.wire.texts import Delivered, delivered_texts
from gateway.wire.usage import NOTHING_USED, UNREADABLE
from ledger.events import Usage
from ledger.events.usage import TOKENS_MAX


class Query(msgspec.Struct, frozen=True):
    """JSON that is to be POSTed to the backend at `path`."""

    path: str
    body: bytes


Asking = Generator[Query, tuple[int, bytes], int | None]
"""Yields what to ask, is sent (status, answer), returns tokens; null if they cannot be had."""


class _Asked(msgspec.Struct):
    model: str | None = None
    echo: object = None


class _Counted(msgspec.Struct):
    count: int | None = None
    input_tokens: int | None = None
    tokens: list[msgspec.Raw] | None = None


class _Templated(msgspec.Struct):
    prompt: str


_counted = msgspec.json.Decoder(_Counted)
_templated = msgspec.json.Decoder(_Templated)
_look = msgspec.json.Decoder(_Asked)

_COUNT_TOKENS: Final = "/v1/messages/count_tokens"


def tokenized(
    endpoint: Endpoint,
    body: bytes,
    content_type: bytes,
    delivered: bytes | None,
    engine: Engine,
    *,
    streamed: bool,
) -> Generator[Query, tuple[int, bytes], Usage | None]:
    """What a request and its answer so far came to. Null if the tokenizer does not tell.

    `delivered` is the answer: the raw bytes of a stream or a JSON body; null if it is not known,
    empty if there was none. The buckets of what no tokenizer can tell are null: a prompt with
    pictures or sound, and where in it a cache was hit.
    """
    if endpoint.found == "nothing_generated":
        return NOTHING_USED
    prompt = None if endpoint.form == "multipart" else prompt_of(endpoint, body)
    tokens: int | None = None
    if prompt is not None:
        tokens = yield from _prompt(prompt, body, endpoint, engine)
        if tokens is None:
            return None
    reasoning, other = (None, None) if endpoint.generates else (0, 0)
    asked = _asked(body, endpoint)
    texts: list[Delivered] | None = None
    # An answer that repeats its prompt is no measure of what was generated.
    if endpoint.generates and delivered is not None and not asked.echo:
        texts = delivered_texts(endpoint, delivered, streamed=streamed)
    if texts is not None:
        counted = yield from _answer(texts, engine, asked.model or "")
        if counted is None:
            return None
        reasoning, other = counted
    usage = Usage(uncached_in=tokens, reasoning_out=reasoning, other_out=other)
    return usage if tokens is not None or other is not None else None


def _asked(body: bytes, endpoint: Endpoint) -> _Asked:
    """What else the body says; of a form nothing, because its server has one tokenizer only."""
    try:
        return _Asked() if endpoint.form == "multipart" else _look.decode(body)
    except UNREADABLE:
        return _Asked()


def _prompt(prompt: Prompt, body: bytes, endpoint: Endpoint, engine: Engine) -> Asking:
    if prompt.messages is not None:
        tokens = yield from _ask(_query(_COUNT_TOKENS, prompt.messages, prompt.model))
        if tokens is not None:
            return tokens
    if prompt.chat is not None:
        return (yield from _chat(prompt.chat, body, prompt.model, endpoint, engine))
    total = prompt.ids
    for text, times in prompt.texts:
        tokens = yield from _text(text, engine, prompt.model, special=prompt.special)
        if tokens is None:
            return None
        total += tokens * times
    return total if total <= TOKENS_MAX else None


def _chat(chat: Json, body: bytes, model: str, endpoint: Endpoint, engine: Engine) -> Asking:
    if engine == "sglang":
        messages = _as_messages(chat)
        if messages is None:
            return None
        return (yield from _ask(_query(_COUNT_TOKENS, messages, model)))
    if engine != "llamacpp":
        return (yield from _ask(_query("/tokenize", chat, model)))
    # It reads of the whole body what changes the template, and the rest does no harm.
    whole = body if endpoint.dialect == "chat" else msgspec.json.encode(chat)
    status, answer = yield Query("/apply-template", whole)
    try:
        text = _templated.decode(answer).prompt if status == 200 else None
    except UNREADABLE:
        text = None
    return None if text is None else (yield from _text(text, engine, model, special=True))


def _as_messages(chat: Json) -> Json | None:
    """A chat in Anthropic's shape; null if it has more than plain turns in it."""
    system: list[str] = []
    turns: list[Json] = []
    for message in chat["messages"]:
        if not isinstance(message, dict) or not isinstance(message.get("content"), str):
            return None
        if message.get("role") in ("system", "developer"):
            system.append(message["content"])
        elif message.get("role") in ("user", "assistant") and "tool_calls" not in message:
            turns.append({"role": message["role"], "content": message["content"]})
        else:
            return None
    if chat.get("tools") or not turns:
        return None
    return {"messages": turns} | ({"system": "\n".join(system)} if system else {})


def _answer(
    texts: list[Delivered], engine: Engine, model: str
) -> Generator[Query, tuple[int, bytes], tuple[int, int] | None]:
    """(reasoning, other) tokens of what was delivered."""
    reasoning = other = 0
    for one in texts:
        thought = yield from _text(one.reasoning, engine, model, special=False)
        said = yield from _text(one.other, engine, model, special=False)
        if thought is None or said is None:
            return None
        reasoning, other = reasoning + thought, other + said
    return reasoning, other


def _text(text: str, engine: Engine, model: str, *, special: bool) -> Asking:
    """The tokens of one text; `special`: with those that the model wants around a prompt."""
    if not text and not special:
        return 0
    if engine == "llamacpp":
        asked: Json = {"content": text, "add_special": special, "parse_special": True}
        return (yield from _ask(_query("/tokenize", asked, "")))
    asked = {"prompt": text, "add_special_tokens": special}
    return (yield from _ask(_query("/tokenize", asked, model)))


def _query(path: str, asked: dict[str, Any], model: str) -> Query:
    return Query(path, msgspec.json.encode(({"model": model} if model else {}) | asked))


def _ask(query: Query) -> Asking:
    status, answer = yield query
    if status != 200:
        return None
    try:
        said = _counted.decode(answer)
    except UNREADABLE:
        return None
    count = said.count if said.input_tokens is None else said.input_tokens
    if count is None and said.tokens is not None:
        count = len(said.tokens)
    return count if count is not None and 0 <= count <= TOKENS_MAX else None
