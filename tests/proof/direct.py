"""What the client would have got without a gateway: the yardstick for every byte. Pure."""

import json
import re
from typing import Any

import msgspec

from tests.proof.plans import SPEECH, Plan
from tests.support import shapes
from tests.support.fake.dialects import DIALECTS
from tests.support.fake_backend import asked
from tests.support.shapes import Call, Json, sse

_PING = re.compile(rb": ping\r?\n\r?\n")
_EVENT_END = re.compile(rb"\r?\n\r?\n")


class Direct(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of the backend to the client's own body."""

    call: Call
    plan: Plan

    def steps(self) -> list[tuple[int, int]]:
        """(chunk, choice) of everything that carries tokens, in order."""
        call = self.call
        return [(i, choice) for i in range(call.chunks) for choice in range(call.choices)]

    def mark(self, steps: int) -> bytes:
        """The last bytes of what step `steps`, counted from 1, brought."""
        index, choice = self.steps()[steps - 1]
        last = self.call.until(index) - 1
        text = json.dumps(shapes.word(self.call, last, choice), ensure_ascii=False)
        return text[1:].encode() if self.call.script.accents else text[1:].encode("ascii")

    def sent(self) -> list[Any]:
        """The events that a fault leaves: all up to it, or to the end."""
        call, dialect = self.call, DIALECTS[self.plan.path]
        assert dialect.opening is not None
        assert dialect.token is not None
        assert dialect.closing is not None
        script, steps = call.script, self.steps()
        items = list(dialect.opening(call))
        stop = min(
            (place for place in (script.cut, script.stall, script.error) if place is not None),
            default=None,
        )
        for index, choice in steps[:stop]:
            items += dialect.token(call, index, choice)
        if stop is not None and stop <= len(steps):
            if script.error == stop:
                assert dialect.fault is not None
                items += dialect.fault(call, "scripted fault in the stream")
            return items
        items += dialect.closing(call)
        return [*items, "[DONE]"] if script.done and dialect.mark else items

    def stream(self) -> bytes:
        stream = b"".join(sse(self.call, item) for item in self.sent())
        return stream.rstrip(b"\r\n") if self.call.script.open_end else stream

    def plain(self) -> bytes:
        answer = DIALECTS[self.plan.path].whole(self.call)
        return answer if isinstance(answer, bytes) else json.dumps(answer).encode()


def direct(plan: Plan, number: int) -> Direct:
    """The answer to the call of `number` that the client of `plan` makes itself."""
    body, dialect = plan.body(""), DIALECTS[plan.path]
    script = msgspec.structs.replace(plan.script, prompt=plan.prompt_tokens())
    call = shapes.call_of(
        asked(plan.path, body), plan.engine, number, dialect.chat, script, named=dialect.named
    )
    return Direct(call=call, plan=plan)


def events(stream: bytes) -> list[Any]:
    """The events of a stream: JSON or text, without comments; the last one may be cut."""
    found = []
    for event in _EVENT_END.split(_PING.sub(b"", stream)):
        data = b"\n".join(
            line.removeprefix(b"data:").strip()
            for line in event.splitlines()
            if line.startswith(b"data:")
        )
        try:
            found += [json.loads(data)] if data not in (b"", b"[DONE]") else []
        except ValueError:
            found.append(data.decode(errors="replace"))
        if data == b"[DONE]":
            found.append("[DONE]")
    return found


def unasked(items: list[Any]) -> list[Any]:
    """`items` of a chat without any usage, and without events that hold nothing else: those may be
    there because the gateway asked for them, or have been taken out by it."""
    kept = []
    for item in items:
        if isinstance(item, dict) and "error" not in item and "type" not in item:
            if not item.get("choices"):
                continue
            kept.append(_stripped(item))
        else:
            kept.append(item)
    return kept


def _stripped(item: Json) -> Json:
    return {name: value for name, value in item.items() if name not in ("usage", "timings")}


def received(plan: Plan, body: bytes) -> tuple[int, int]:
    """(chunks with text or sound, words) that the client got, of lines that were whole."""
    body = body[: body.rfind(b"\n") + 1]
    if not plan.stream:
        return 0, 0
    if plan.path == SPEECH:
        return sounds(body), 0
    chunks = count = 0
    for event in events(body):
        if isinstance(event, dict):
            texts = list(_texts(event))
            chunks += bool(texts)
            count += len(" ".join(texts).split())
    return chunks, count


def sounds(body: bytes) -> int:
    """The pieces of sound in a stream of speech, those that are there to their end."""
    lines = body[: body.rfind(b"\n") + 1]
    kinds = [event.get("type") for event in events(lines) if isinstance(event, dict)]
    return kinds.count("speech.audio.delta")


def _texts(event: Json) -> list[str]:
    """The new texts that one event of a stream brings."""
    delta = event.get("delta")
    if isinstance(delta, str):
        return [delta]
    found: list[Any] = []
    if isinstance(delta, dict):
        found += [delta.get(name) for name in ("text", "thinking", "partial_json")]
    for choice in event.get("choices") or []:
        one = choice.get("delta") or {}
        found += [choice.get("text"), one.get("content"), one.get("reasoning_content")]
        calls = one.get("tool_calls") or []
        found += [call["function"]["arguments"] for call in calls]
    return [text for text in found if isinstance(text, str) and text]
