"""The one table of what is served: each path that can be metered, and how its usage is found. Pure.

A path that is not here is refused with 404, because what cannot be metered is not passed on.
"""

from typing import Final, Literal

import msgspec

Form = Literal["json", "multipart"]
"""How a request body is written."""

Dialect = Literal["chat", "text", "responses", "messages", "transcription", "speech"]
"""How a streamed answer is written, where there is one.

chat           chunks with `choices[].delta`, usage as asked for, `[DONE]` at the end
text           chunks with `choices[].text`, else as chat
responses      named events; usage in `response.completed`, `.incomplete` or `.failed`
messages       named events; input in `message_start`, output in `message_delta`
transcription  `transcript.text.delta` and `.done` of OpenAI, or chunks of vLLM
speech         `speech.audio.delta` and `.done`
"""

Found = Literal["usage", "nothing_generated"]
"""Where the usage of a plain answer is.

usage              in the member `usage`, in any of the shapes that `gateway.wire.usage` reads
nothing_generated  nowhere, and none is needed: the model does not run, so every bucket is zero
"""

Errors = Literal["openai", "anthropic"]
"""In whose shape a refusal is written."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One served path. `name` stands on events; `path` is the same at the gateway and a backend.

    `dialect` null: the answer is never streamed. `generates` false: there is no output to count,
    so output buckets are zero wherever the input is known. `model_needed` false: the engine does
    not ask for a model, so it may be left out where the key can call only one.
    """

    name: str
    path: str
    form: Form = "json"
    dialect: Dialect | None = None
    found: Found = "usage"
    errors: Errors = "openai"
    generates: bool = True
    model_needed: bool = True

    @property
    def may_fall_back(self) -> bool:
        """True if another model's answer is of use: text is, but vectors of two models cannot be
        compared, and counts of tokens would be of the wrong model."""
        return self.generates and self.form == "json"


_ALL: Final = (
    Endpoint(name="chat/completions", path="/v1/chat/completions", dialect="chat"),
    Endpoint(name="completions", path="/v1/completions", dialect="text"),
    Endpoint(name="embeddings", path="/v1/embeddings", generates=False),
    Endpoint(name="responses", path="/v1/responses", dialect="responses"),
    Endpoint(name="messages", path="/v1/messages", dialect="messages", errors="anthropic"),
    Endpoint(
        name="messages/count_tokens",
        path="/v1/messages/count_tokens",
        found="nothing_generated",
        errors="anthropic",
        generates=False,
    ),
    Endpoint(
        name="tokenize",
        path="/tokenize",
        found="nothing_generated",
        generates=False,
        model_needed=False,
    ),
    Endpoint(name="rerank", path="/v1/rerank", generates=False),
    Endpoint(
        name="audio/transcriptions",
        path="/v1/audio/transcriptions",
        form="multipart",
        dialect="transcription",
    ),
    Endpoint(
        name="audio/translations",
        path="/v1/audio/translations",
        form="multipart",
        dialect="transcription",
    ),
    Endpoint(name="audio/speech", path="/v1/audio/speech", dialect="speech"),
)

ENDPOINTS: Final[dict[str, Endpoint]] = {endpoint.path: endpoint for endpoint in _ALL}
"""Every served endpoint by its path. All of them take POST."""

BY_NAME: Final[dict[str, Endpoint]] = {endpoint.name: endpoint for endpoint in _ALL}
"""The same by the name that stands on events."""

CHAT: Final = BY_NAME["chat/completions"]
COMPLETIONS: Final = BY_NAME["completions"]
