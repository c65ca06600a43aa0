"""Which endpoint answers how: a table from path to the functions that write the answer. Pure."""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from tests.support import shapes
from tests.support.fake import audio, messages, plain, responses
from tests.support.shapes import Call, Json

Items = list[Any]
"""Events of a stream: JSON objects, or a text such as `[DONE]` as it is."""


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """How one endpoint answers. Without `opening` it never streams.

    `mark`: a stream ends with `[DONE]`. `generates`: it has completion tokens.
    """

    whole: Callable[[Call], Any]
    opening: Callable[[Call], Items] | None = None
    token: Callable[[Call, int, int], Items] | None = None
    closing: Callable[[Call], Items] | None = None
    fault: Callable[[Call, str], Items] | None = None
    chat: bool = True
    named: bool = False
    mark: bool = False
    generates: bool = True


def _fault(call: Call, message: str) -> Items:
    """vLLM ends a stream with a fault in it as any other."""
    error: Json = shapes.error_of(500, message)
    return [error, "[DONE]"] if call.engine == "vllm" and call.script.done else [error]


def _chat(*, chat: bool) -> Dialect:
    return Dialect(
        whole=shapes.whole,
        opening=shapes.opening,
        token=lambda call, index, choice: [shapes.token(call, index, choice)],
        closing=shapes.closing,
        fault=_fault,
        chat=chat,
        mark=True,
    )


def _transcription(whole: Callable[[Call], Any]) -> Dialect:
    return Dialect(
        whole=whole,
        opening=audio.spoken_opening,
        token=audio.spoken,
        closing=audio.spoken_closing,
        fault=_fault,
        mark=True,
    )


DIALECTS: Final[dict[str, Dialect]] = {
    "/v1/chat/completions": _chat(chat=True),
    "/v1/completions": _chat(chat=False),
    "/v1/responses": Dialect(
        whole=responses.whole,
        opening=responses.opening,
        token=responses.token,
        closing=responses.closing,
        fault=responses.fault,
        named=True,
    ),
    "/v1/messages": Dialect(
        whole=messages.whole,
        opening=messages.opening,
        token=messages.token,
        closing=messages.closing,
        fault=messages.fault,
        named=True,
    ),
    "/v1/embeddings": Dialect(whole=plain.embeddings, generates=False),
    "/v1/rerank": Dialect(whole=plain.rerank, generates=False),
    "/v1/audio/transcriptions": _transcription(audio.transcript),
    "/v1/audio/translations": _transcription(audio.translation),
    "/v1/audio/speech": Dialect(
        whole=audio.sound,
        opening=audio.spoken_opening,
        token=audio.speech,
        closing=audio.speech_closing,
        fault=_fault,
    ),
}
"""By path. `/tokenize` and its kin generate nothing and are not here."""
