"""Token counts as engines write them, to the ledger's five disjoint buckets. Pure.

OpenAI's cached and cache-write tokens are inside `prompt_tokens`, reasoning tokens are inside
`completion_tokens`; the buckets are disjoint and add up to what the engine said.
"""

import msgspec

from ledger.events import Usage
from ledger.events.usage import TOKENS_MAX


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _CompletionDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None


class _Timings(msgspec.Struct):
    prompt_n: int
    predicted_n: int
    cache_n: int = 0


class _Answer(msgspec.Struct):
    usage: msgspec.Raw = msgspec.Raw(b"null")


_usage = msgspec.json.Decoder(_Usage)
_timings = msgspec.json.Decoder(_Timings)
_answer = msgspec.json.Decoder(_Answer)

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that a backend should not have sent; deep nesting is the last."""


def usage_from(raw: bytes | msgspec.Raw) -> Usage | None:
    """The buckets of an OpenAI `usage` object; null if it is none that can be believed.

    Details that contradict their total (more cached than prompt tokens) are cut down to it.
    """
    try:
        said = _usage.decode(raw)
    except UNREADABLE:
        return None
    if not (0 <= said.prompt_tokens <= TOKENS_MAX and 0 <= said.completion_tokens <= TOKENS_MAX):
        return None
    prompt, completion = said.prompt_tokens_details, said.completion_tokens_details
    cached = _within((prompt.cached_tokens if prompt else 0) or 0, said.prompt_tokens)
    written = _within(
        (prompt.cache_write_tokens if prompt else 0) or 0, said.prompt_tokens - cached
    )
    reasoning = _within(
        (completion.reasoning_tokens if completion else 0) or 0, said.completion_tokens
    )
    return Usage(
        uncached_in=said.prompt_tokens - cached - written,
        cached_in=cached,
        cache_write_in=written,
        reasoning_out=reasoning,
        other_out=said.completion_tokens - reasoning,
    )


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


def usage_of_answer(body: bytes) -> Usage | None:
    """The buckets of a whole, not streamed answer; null if it carries no usage."""
    try:
        return usage_from(_answer.decode(body).usage)
    except UNREADABLE:
        return None


def _within(count: int, total: int) -> int:
    return max(0, min(count, total))
