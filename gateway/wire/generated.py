"""Whether an answer to a probe shows that a model generates. Pure.

The first token of a reasoning model is one of thought, so a probe of one token has an empty text,
and a model may end at once. Both are answers. None is what shows no text, counts no token and,
where it does not count, has no end.
"""

from typing import Literal

import msgspec

from gateway.wire.usage import UNREADABLE

Verdict = Literal["made", "refused", "failed"]
"""made: a token came. refused: it does not do this for this model, which says nothing of others.
failed: it is not able to, or does not let us in."""


class _Message(msgspec.Struct):
    content: object = None
    reasoning: object = None
    reasoning_content: object = None
    tool_calls: object = None


class _Choice(msgspec.Struct):
    message: _Message | None = None
    text: object = None
    finish_reason: object = None


class _Usage(msgspec.Struct):
    completion_tokens: int | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None


_answer = msgspec.json.Decoder(_Answer)


def verdict_of(status: int, body: bytes) -> tuple[Verdict, str]:
    """What a whole answer to a request for one token of a chat shows, and that in words."""
    if status != 200:
        if 400 <= status < 500 and status not in (401, 403, 408, 429):
            return "refused", f"it answered {status}: it may be no model for chats"
        hint = ": it refuses the server key" if status in (401, 403) else ""
        return "failed", f"it answered {status}{hint}"
    try:
        said = _answer.decode(body)
    except UNREADABLE:
        return "failed", "it answered 200 with what is no answer of a model"
    choices = said.choices or []
    count = None if said.usage is None else said.usage.completion_tokens
    if any(_shows(choice) for choice in choices):
        return "made", "a token came"
    if count or (count is None and any(one.finish_reason is not None for one in choices)):
        return "made", "a token came, of no text: a model that reasons, or that ended at once"
    return "failed", "it answered 200 and made no token"


def _shows(choice: _Choice) -> bool:
    said = choice.message
    parts = (
        (choice.text,)
        if said is None
        else (said.content, said.reasoning, said.reasoning_content, said.tool_calls)
    )
    return any(parts)
