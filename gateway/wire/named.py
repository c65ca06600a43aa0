"""Meters for streams whose events have names: `/v1/responses`, `/v1/messages` and sound.

Nothing was added to these requests, so every byte passes as it is, line by line: servers write an
event's JSON in one. Half a line waits for its rest, so that an error which the gateway has to tell
stands on a line of its own and can be read. Pure: bytes in, bytes out.
"""

from abc import ABC, abstractmethod
from typing import Final

import msgspec

from gateway.wire.endpoints import Dialect
from gateway.wire.faults import fault_of, fault_of_line
from gateway.wire.usage import (
    UNREADABLE,
    usage_from,
    usage_from_in_out,
    usage_from_messages,
    usage_from_timings,
    with_chunks,
)
from ledger.events import Basis, Usage

LINE_BYTES_MAX: Final = 16 * 1024 * 1024
"""A line that grows beyond this is not read, so that no backend can fill the memory."""


class _Delta(msgspec.Struct):
    """What an event adds. `content` is that of chunks, which vLLM and SGLang send of sound."""

    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    content: str | None = None
    stop_reason: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None


_NULL: Final = msgspec.Raw(b"null")


class _Whole(msgspec.Struct):
    """A response or a message inside an event."""

    usage: msgspec.Raw = _NULL


class _Event(msgspec.Struct):
    type: str = ""
    delta: str | _Delta | None = None
    response: _Whole | None = None
    message: _Whole | str | None = None
    usage: msgspec.Raw = _NULL
    timings: msgspec.Raw = _NULL
    choices: list[_Choice] | None = None


_event = msgspec.json.Decoder(_Event)

_RESPONSE_TEXTS: Final = frozenset(
    f"response.{name}.delta"
    for name in (
        "audio.transcript",
        "code_interpreter_call_code",
        "custom_tool_call_input",
        "function_call_arguments",
        "mcp_call_arguments",
        "output_text",
        "reasoning_text",
        "refusal",
    )
)
_RESPONSE_SUMMARY: Final = "response.reasoning_summary_text.delta"
_RESPONSE_ENDS: Final = frozenset(
    f"response.{name}" for name in ("cancelled", "completed", "failed", "incomplete")
)


class NamedMeter(ABC):
    """What the meters of all dialects share: lines, bounds, errors and the count."""

    __slots__ = (
        "_chunks_said",
        "_complete",
        "_final",
        "_held",
        "_held_bytes",
        "_skipping",
        "_usage",
        "chunks",
        "fault",
        "raw",
    )

    def __init__(self) -> None:
        self.chunks = 0
        self.raw: bytes | None = None
        self.fault: str | None = None
        self._usage: Usage | None = None
        self._chunks_said = 0  # the chunks that the usage takes in
        self._final = False
        self._complete = False
        self._held: list[bytes] = []  # the pieces of a line that has not ended
        self._held_bytes = 0
        self._skipping = False

    @property
    def complete(self) -> bool:
        """True once the last event was seen: what `feed` just gave holds its last bytes."""
        return self._complete

    @property
    def covered(self) -> bool:
        """True if the usage said so far takes in all that was seen."""
        return self._usage is not None and self._chunks_said == self.chunks

    def counted(self) -> tuple[Basis, Usage]:
        """The best count so far and how it was obtained."""
        usage = self._usage
        if usage is not None and (self._final or self.covered):
            return ("reported" if self._final else "running"), usage
        if usage is not None:
            return "counted", with_chunks(usage, self.chunks - self._chunks_said)
        return ("counted", Usage(other_out=self.chunks)) if self.chunks else ("none", Usage())

    def feed(self, data: bytes) -> bytes:
        """The bytes to pass on to the client now: all lines that have ended."""
        end = data.rfind(b"\n") + 1
        if not end:
            return self._hold(data)
        block = data[:end]
        if self._held:
            block = b"".join((*self._held, block))
            self._held, self._held_bytes = [], 0
        if self._skipping:
            self._skipping = False
            self._lines(block[block.index(b"\n") + 1 :])
        else:
            self._lines(block)
        return block + self._hold(data[end:])

    def _hold(self, data: bytes) -> bytes:
        """Keep a line until it has ended. What is passed on are lines that grow too long."""
        if self._skipping or not data:
            return data
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes <= LINE_BYTES_MAX:
            return b""
        passed = b"".join(self._held)
        self._held, self._held_bytes, self._skipping = [], 0, True
        return passed

    def rest(self) -> bytes:
        """What is left when the backend has closed the stream: a line without its end."""
        held, self._held, self._held_bytes = b"".join(self._held), [], 0
        self._lines(held)
        return held

    def _lines(self, block: bytes) -> None:
        for line in block.split(b"\n"):
            if line.startswith(b"data:"):
                self._data(line[5:].strip())
            elif line.startswith(b"error:"):
                self.fault = fault_of_line(line) or self.fault

    def _data(self, data: bytes) -> None:
        if data == b"[DONE]":
            self._complete = True
            return
        if b'"error"' in data:
            self.fault = fault_of(data) or self.fault
        try:
            event = _event.decode(data)
        except UNREADABLE:
            return
        self._seen(event)

    @abstractmethod
    def _seen(self, event: _Event) -> None:
        """Count one event."""

    def _say(self, raw: msgspec.Raw, usage: Usage | None, *, final: bool) -> None:
        """Take over a usage, if it can be believed: the last one counts, never the sum."""
        if usage is not None:
            self.raw, self._usage, self._final = bytes(raw), usage, final
            self._chunks_said = self.chunks


class ResponsesMeter(NamedMeter):
    """Of `/v1/responses`: the usage stands in the event that ends the response."""

    __slots__ = ("_thought",)

    def __init__(self) -> None:
        super().__init__()
        self._thought = False

    def _seen(self, event: _Event) -> None:
        kind = event.type
        if kind in _RESPONSE_TEXTS:
            self.chunks += bool(event.delta)
            self._thought = self._thought or kind == "response.reasoning_text.delta"
        elif kind == _RESPONSE_SUMMARY:
            # Where the thoughts themselves are told, the summary repeats them.
            self.chunks += bool(event.delta) and not self._thought
        elif kind in _RESPONSE_ENDS:
            if event.response is not None:
                raw = event.response.usage
                self._say(raw, usage_from_in_out(raw), final=True)
            self._complete = True
            return
        if event.timings is not _NULL:
            # llama.cpp's, for who asked for them: the only running count of this kind of stream.
            self._say(event.timings, usage_from_timings(event.timings), final=False)


class MessagesMeter(NamedMeter):
    """Of `/v1/messages`: the input stands in the first event, the output in the last but one."""

    __slots__ = ()

    @property
    def covered(self) -> bool:
        """True if input and output are known and nothing came after them."""
        usage = self._usage
        known = usage is not None and None not in (usage.uncached_in, usage.other_out)
        return known and super().covered

    def counted(self) -> tuple[Basis, Usage]:
        """As of all meters, but that one half of a usage is no report yet."""
        basis, usage = super().counted()
        if basis in ("reported", "running") and not self.covered:
            return "counted", with_chunks(usage, self.chunks - self._chunks_said)
        return basis, usage

    def _seen(self, event: _Event) -> None:
        kind, delta = event.type, event.delta
        if kind == "content_block_delta" and isinstance(delta, _Delta):
            self.chunks += bool(delta.text or delta.thinking or delta.partial_json)
        elif kind == "message_start" and isinstance(event.message, _Whole):
            raw = event.message.usage
            usage = usage_from_messages(raw)
            if usage is not None:
                # What it says of the output is said before there is any.
                usage = msgspec.structs.replace(usage, reasoning_out=None, other_out=None)
            self._say(raw, usage, final=False)
        elif kind == "message_delta":
            ends = isinstance(delta, _Delta) and delta.stop_reason is not None
            self._say(event.usage, usage_from_messages(event.usage, self._usage), final=ends)
        elif kind == "message_stop":
            self._complete = True
            self._final = self._final or self.covered


class TranscriptionMeter(NamedMeter):
    """Of sound to text: OpenAI's events, or chunks as of a chat."""

    __slots__ = ()

    def _seen(self, event: _Event) -> None:
        if event.type == "transcript.text.delta":
            self.chunks += bool(event.delta)
        elif event.type == "transcript.text.done":
            self._say(event.usage, usage_from_in_out(event.usage), final=True)
            self._complete = True
        elif event.choices is not None:
            for choice in event.choices:
                self.chunks += bool(choice.delta and choice.delta.content)
            self._say(event.usage, usage_from(event.usage), final=not event.choices)


class SpeechMeter(NamedMeter):
    """Of text to sound. A piece of sound may be less than a token, so pieces are no count."""

    __slots__ = ()

    def counted(self) -> tuple[Basis, Usage]:
        """What was reported, or nothing."""
        return ("reported", self._usage) if self._usage is not None else ("none", Usage())

    def _seen(self, event: _Event) -> None:
        if event.type == "speech.audio.delta":
            self.chunks += 1
        elif event.type == "speech.audio.done":
            self._say(event.usage, usage_from_in_out(event.usage), final=True)
            self._complete = True


METERS: Final[dict[Dialect, type[NamedMeter]]] = {
    "responses": ResponsesMeter,
    "messages": MessagesMeter,
    "transcription": TranscriptionMeter,
    "speech": SpeechMeter,
}
