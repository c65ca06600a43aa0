"""Token counts as engines write them, to the ledger's five disjoint buckets. Pure.

In OpenAI's shapes cached and cache-write tokens are inside the prompt, reasoning tokens inside the
output. Anthropic's `input_tokens` leaves out what was read from the cache or written to it;
llama.cpp and SGLang keep to that, and vLLM says no more than the whole prompt, so one reading
serves all. (For a while SGLang wrote the cache hits beside the whole prompt. Nothing in its answer
tells one from the other; those hits count twice, which `tollbook reconcile` shows.) Audio, image,
text and prediction tokens are inside those totals and get no bucket of their own.
"""

import msgspec

from gateway.wire.endpoints import CHAT, Endpoint
from gateway.wire.requests import Engine
from ledger.events import Usage
from ledger.events.usage import TOKENS_MAX


class _InDetails(msgspec.Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _OutDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: _InDetails | None = None
    completion_tokens_details: _OutDetails | None = None
    reasoning_tokens: int | None = None  # where SGLang says it


class _PromptOnly(msgspec.Struct):
    """Of embeddings and rankings; some servers say only the total, which is the prompt."""

    prompt_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: _InDetails | None = None


class _InOut(msgspec.Struct):
    """Of `/v1/responses` and of sound. A `{"type":"duration"}` has no tokens and does not fit."""

    input_tokens: int
    output_tokens: int = 0
    input_tokens_details: _InDetails | None = None
    output_tokens_details: _OutDetails | None = None


class _Messages(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Timings(msgspec.Struct):
    prompt_n: int
    predicted_n: int
    cache_n: int = 0


class _Answer(msgspec.Struct):
    usage: msgspec.Raw = msgspec.Raw(b"null")


class _Answers(msgspec.Struct):
    choices: list[msgspec.Raw] = []


class _Ranked(msgspec.Struct):
    """SGLang's ranking is a bare list; each pair of query and document says its own tokens."""

    meta_info: _Usage


_usage = msgspec.json.Decoder(_Usage)
_prompt_only = msgspec.json.Decoder(_PromptOnly)
_in_out = msgspec.json.Decoder(_InOut)
_messages = msgspec.json.Decoder(_Messages)
_timings = msgspec.json.Decoder(_Timings)
_answer = msgspec.json.Decoder(_Answer)
_answers = msgspec.json.Decoder(_Answers)
_ranked = msgspec.json.Decoder(list[_Ranked])

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that a backend should not have sent; deep nesting is the last."""

NOTHING_USED = Usage(uncached_in=0, cached_in=0, cache_write_in=0, reasoning_out=0, other_out=0)
"""No model ran: every bucket is known, and zero."""


def usage_from(raw: bytes | msgspec.Raw) -> Usage | None:
    """The buckets of a chat or text `usage` object; null if it is none that can be believed.

    Details that contradict their total (more cached than prompt tokens) are cut down to it.
    """
    try:
        said = _usage.decode(raw)
    except UNREADABLE:
        return None
    outside = said.completion_tokens_details
    return _split(
        said.prompt_tokens,
        said.completion_tokens,
        said.prompt_tokens_details,
        said.reasoning_tokens if outside is None else outside.reasoning_tokens,
    )


def usage_from_prompt_only(raw: bytes | msgspec.Raw) -> Usage | None:
    """The buckets of a `usage` object of an endpoint that generates nothing."""
    try:
        said = _prompt_only.decode(raw)
    except UNREADABLE:
        return None
    prompt = said.total_tokens if said.prompt_tokens is None else said.prompt_tokens
    return None if prompt is None else _split(prompt, 0, said.prompt_tokens_details, None)


def usage_from_in_out(raw: bytes | msgspec.Raw) -> Usage | None:
    """The buckets of the `usage` object of `/v1/responses` and of sound, which differ in name."""
    try:
        said = _in_out.decode(raw)
    except UNREADABLE:
        return None
    return _split(
        said.input_tokens,
        said.output_tokens,
        said.input_tokens_details,
        said.output_tokens_details.reasoning_tokens if said.output_tokens_details else None,
    )


def usage_from_messages(raw: bytes | msgspec.Raw, before: Usage | None = None) -> Usage | None:
    """The buckets of Anthropic's `usage` object, whose kinds of input are disjoint already.

    A stream says the input at its start and the output at its end: `before` is what was said until
    now, and holds wherever this object is silent. Null if it cannot be believed; what neither of
    them says is null in the buckets. No prompt is empty, so an input of zero says nothing: vLLM and
    SGLang write it where they do not know yet.
    """
    try:
        said = _messages.decode(raw)
    except UNREADABLE:
        return None
    before = before or Usage()
    read, written = said.cache_read_input_tokens or 0, said.cache_creation_input_tokens or 0
    counts = (said.input_tokens or 0, read, written, said.output_tokens or 0)
    if min(counts) < 0 or max(counts) > TOKENS_MAX:
        return None
    told = (said.input_tokens or 0) + read + written > 0
    silent = said.output_tokens is None
    return Usage(
        uncached_in=said.input_tokens or 0 if told else before.uncached_in,
        cached_in=read if told else before.cached_in,
        cache_write_in=written if told else before.cache_write_in,
        reasoning_out=before.reasoning_out if silent else 0,
        other_out=before.other_out if silent else said.output_tokens,
    )


def with_chunks(usage: Usage, chunks: int) -> Usage:
    """`usage` with `chunks` more tokens of output, as far as a count can go."""
    out = min((usage.other_out or 0) + chunks, TOKENS_MAX)
    return msgspec.structs.replace(usage, other_out=out)


def usage_from_timings(raw: bytes | msgspec.Raw) -> Usage | None:
    """The buckets of llama.cpp's `timings`: prompt tokens processed, cached, predicted."""
    try:
        said = _timings.decode(raw)
    except UNREADABLE:
        return None
    counts = (said.prompt_n, said.cache_n, said.predicted_n)
    if min(counts) < 0 or max(counts) > TOKENS_MAX:
        return None
    return Usage(
        uncached_in=said.prompt_n,
        cached_in=said.cache_n,
        cache_write_in=0,
        reasoning_out=0,
        other_out=said.predicted_n,
    )


def usage_of_answer(
    body: bytes, endpoint: Endpoint = CHAT, engine: Engine = "openai"
) -> Usage | None:
    """The buckets of a whole, not streamed answer of `endpoint`; null if it carries no usage.

    Of several answers in one llama.cpp tells only what the first has, which is no usage of all.
    """
    if endpoint.found == "nothing_generated":
        return NOTHING_USED
    try:
        raw = _answer.decode(body).usage
    except UNREADABLE:
        return _of_list(body) if engine == "sglang" and endpoint.name == "rerank" else None
    if not endpoint.generates:
        return usage_from_prompt_only(raw)
    if endpoint.dialect == "messages":
        usage = usage_from_messages(raw)
        return None if usage is None or None in usage.counts() else usage
    if endpoint.dialect in ("responses", "transcription", "speech"):
        return usage_from_in_out(raw)
    if engine == "llamacpp" and _several(body):
        return None
    return usage_from(raw)


def _several(body: bytes) -> bool:
    """True if the answer holds more than one choice."""
    try:
        return len(_answers.decode(body).choices) > 1
    except UNREADABLE:
        return False


def _of_list(body: bytes) -> Usage | None:
    """The sum over SGLang's ranking, which is the one answer without a total."""
    try:
        pairs = _ranked.decode(body)
    except UNREADABLE:
        return None
    prompts = [pair.meta_info.prompt_tokens for pair in pairs]
    return _split(sum(prompts), 0, None, None) if prompts and min(prompts) >= 0 else None


def _split(
    prompt: int, completion: int, inside: _InDetails | None, thought: int | None
) -> Usage | None:
    """The buckets of two totals and of what is inside them: of the prompt, reasoning tokens."""
    if not (0 <= prompt <= TOKENS_MAX and 0 <= completion <= TOKENS_MAX):
        return None
    cached = written = 0
    if inside is not None:
        cached = _within(inside.cached_tokens or 0, prompt)
        written = _within(inside.cache_write_tokens or 0, prompt - cached)
    reasoning = _within(thought, completion) if thought else 0
    return Usage(
        uncached_in=prompt - cached - written,
        cached_in=cached,
        cache_write_in=written,
        reasoning_out=reasoning,
        other_out=completion - reasoning,
    )


def _within(count: int, total: int) -> int:
    return max(0, min(count, total))
