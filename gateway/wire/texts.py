"""The text of an answer as far as it was delivered, reasoning apart from the rest. Pure.

It is read where an engine gave no count, so that its tokenizer can. What an engine writes around
the text (end of turn, marks of tools and of reasoning) is not in it: those few tokens are missed.
"""

from collections.abc import Iterator

import msgspec

from gateway.wire.endpoints import Endpoint
from gateway.wire.usage import UNREADABLE


class Delivered(msgspec.Struct):
    """The texts of one of the answers that were asked for."""

    reasoning: str = ""
    other: str = ""


class _Part(msgspec.Struct):
    """A piece of content, or a block of a message."""

    text: str | None = None
    refusal: str | None = None
    thinking: str | None = None
    input: msgspec.Raw = msgspec.Raw(b"{}")
    partial_json: str | None = None
    name: str | None = None


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _Tool(msgspec.Struct):
    function: _Function | None = None


class _Said(msgspec.Struct):
    content: str | list[_Part] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_Tool] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _Said | None = None
    message: _Said | None = None
    text: str | None = None


class _Chat(msgspec.Struct):
    choices: list[_Choice] | None = None


class _Item(msgspec.Struct):
    """One of what a response puts out."""

    type: str = "message"
    content: list[_Part] | None = None
    summary: list[_Part] | None = None
    name: str | None = None
    arguments: str | None = None


class _Response(msgspec.Struct):
    type: str = ""
    delta: str | None = None
    item: _Item | None = None
    output: list[_Item] | None = None


class _Messages(msgspec.Struct):
    type: str = ""
    delta: _Part | None = None
    content_block: _Part | None = None
    content: list[_Part] | None = None


class _Sound(msgspec.Struct):
    type: str = ""
    delta: str | None = None
    text: str | None = None
    choices: list[_Choice] | None = None


_chat = msgspec.json.Decoder(_Chat)
_response = msgspec.json.Decoder(_Response)
_messages = msgspec.json.Decoder(_Messages)
_sound = msgspec.json.Decoder(_Sound)


def delivered_texts(endpoint: Endpoint, answer: bytes, *, streamed: bool) -> list[Delivered] | None:
    """The texts in `answer`: the raw bytes of a stream, or a whole body. Null if it is no text.

    An event without its end is left out: nobody could read it.
    """
    if endpoint.dialect == "speech":
        return None if answer else []
    found: dict[int, tuple[list[str], list[str]]] = {}
    read = {"responses": _of_response, "messages": _of_messages, "transcription": _of_sound}.get(
        endpoint.dialect or "", _of_chat
    )
    for data in _events(answer) if streamed else (answer,):
        try:
            for index, reasoning, other in read(data):
                if index not in found:
                    found[index] = [], []
                thoughts, texts = found[index]
                thoughts.append(reasoning or "")
                texts.append(other or "")
        except UNREADABLE:
            if not streamed and data:
                return _of_plain_text(endpoint, data)
    return [
        Delivered("".join(found[index][0]), "".join(found[index][1])) for index in sorted(found)
    ]


def _of_plain_text(endpoint: Endpoint, answer: bytes) -> list[Delivered] | None:
    """What was spoken, where it was asked for as a text; subtitles hold more than was spoken."""
    if endpoint.dialect != "transcription" or b"-->" in answer:
        return None
    try:
        return [Delivered(other=answer.decode())]
    except UnicodeDecodeError:
        return None


_Text = tuple[int, str | None, str | None]
"""Which answer; its reasoning; its other text."""


def _events(stream: bytes) -> Iterator[bytes]:
    for line in stream.split(b"\n"):
        if line.startswith(b"data:"):
            yield line[5:].strip()


def _of_chat(data: bytes) -> Iterator[_Text]:
    for choice in _chat.decode(data).choices or ():
        yield from _of_choice(choice)


def _of_choice(choice: _Choice) -> Iterator[_Text]:
    said = choice.delta or choice.message
    yield choice.index, None, choice.text
    if said is None:
        return
    # The same thought may stand under both names.
    yield choice.index, said.reasoning_content or said.reasoning, said.refusal
    if isinstance(said.content, str):
        yield choice.index, None, said.content
    else:
        for part in said.content or ():
            yield choice.index, part.thinking, part.text
    for tool in said.tool_calls or ():
        if tool.function is not None:
            yield choice.index, None, (tool.function.name or "") + (tool.function.arguments or "")


_RESPONSE_TEXTS = frozenset(
    f"response.{name}.delta"
    for name in (
        "code_interpreter_call_code",
        "custom_tool_call_input",
        "function_call_arguments",
        "mcp_call_arguments",
        "output_text",
        "refusal",
    )
)


def _of_response(data: bytes) -> Iterator[_Text]:
    event = _response.decode(data)
    if event.type in _RESPONSE_TEXTS:
        yield 0, None, event.delta
    elif event.type == "response.reasoning_text.delta":
        yield 0, event.delta, None
    elif event.type == "response.output_item.added" and event.item is not None:
        yield 0, None, event.item.name
    elif not event.type:
        for item in event.output or ():
            yield 0, None, (item.name or "") + (item.arguments or "")
            for part in item.content or ():
                text = part.text or part.refusal
                yield (0, text, None) if item.type == "reasoning" else (0, None, text)


def _of_messages(data: bytes) -> Iterator[_Text]:
    event = _messages.decode(data)
    for part in (event.delta, event.content_block, *(event.content or ())):
        if part is None:
            continue
        # A stream begins a call with an empty input, and sends what it is in pieces.
        whole = bytes(part.input).decode()
        yield 0, part.thinking, part.text
        yield 0, None, (part.name or "") + (part.partial_json or whole.removeprefix("{}"))


def _of_sound(data: bytes) -> Iterator[_Text]:
    event = _sound.decode(data)
    if event.type == "transcript.text.delta":
        yield 0, None, event.delta
    elif not event.type:
        yield 0, None, event.text
        for choice in event.choices or ():
            yield from _of_choice(choice)
