"""A stream of server-sent events on its way to the client: counted, and stripped of what was added.

Only whole events are passed on; an unfinished one waits for its rest, so that an event is never
stripped in half. Counting looks at bytes, not at parsed chunks: within JSON a quote inside a text
is escaped, so `"content":"` can only be the member of that name. An event is parsed only when it
carries usage that must be taken out with care. Pure: bytes in, bytes out.
"""

import re

import msgspec

from gateway.wire.requests import Asked, Engine
from gateway.wire.usage import usage_from, usage_from_timings
from ledger.events import Basis, Usage

EVENT_BYTES_MAX = 16 * 1024 * 1024
"""An event that grows beyond this is passed on unread, so that no backend can fill the memory."""

_NAMES = ("content", "text", "arguments", "reasoning_content", "reasoning")
_TEXTS = {name: f'"{name}":"'.encode() for name in _NAMES}
_EMPTY = {name: mark + b'"' for name, mark in _TEXTS.items()}
_SPACED = re.compile(rb'("(?:%s|usage)"):\s+' % "|".join(_NAMES).encode())
_SPACED_HEAD = re.compile(rb'data: ?\{\s*"[^"]*":\s')
_RUNNING = re.compile(rb',"usage":\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}(?=\}\n\n)')
# A line break inside a chunk's JSON is escaped, so this matches an event and never a text.
_DONE = re.compile(rb"(?:^|\n)data: ?\[DONE\]\r?\n")
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


class StreamMeter:
    """Meters one streamed answer. Feed it what the backend sends, in order, and pass on the rest.

    `chunks` counts those that carried text, so it never exceeds the tokens that were produced.
    """

    __slots__ = (
        "_added_running",
        "_added_timings",
        "_complete",
        "_final",
        "_main_text",
        "_newline",
        "_raw",
        "_separator",
        "_spaced",
        "_tail",
        "_timings",
        "_timings_said",
        "_unread",
        "_wanted",
        "chunks",
    )

    def __init__(self, wish: Asked, engine: Engine, *, chat: bool) -> None:
        self._main_text = "content" if chat else "text"
        self._wanted = wish.usage
        self._added_running = engine in ("vllm", "sglang") and not wish.continuous
        self._added_timings = engine == "llamacpp" and not wish.timings
        self._timings = engine == "llamacpp"
        self._tail = b""
        self._newline = b""
        self._spaced = False
        self._separator = b"\n\n"
        self._raw: bytes | None = None
        self._timings_said = False
        self._final = False
        self._complete = False
        self._unread = False
        self.chunks = 0

    @property
    def complete(self) -> bool:
        """True once `[DONE]` was seen: what `feed` just gave holds the stream's last bytes."""
        return self._complete

    def usage(self) -> Usage | None:
        """The usage as the engine last said it; null if it said none that can be believed."""
        if self._raw is None:
            return None
        return (usage_from_timings if self._timings_said else usage_from)(self._raw)

    def counted(self) -> tuple[Basis, Usage]:
        """The best count so far and how it was obtained."""
        usage = self.usage()
        if usage is not None:
            return ("reported" if self._final else "running"), usage
        if self.chunks:
            return "counted", Usage(other_out=self.chunks)
        return "none", Usage()

    def feed(self, data: bytes) -> bytes:
        """The bytes to pass on to the client now, after one more read from the backend."""
        if self._unread:
            return data
        if self._tail:
            data = self._tail + data
            self._tail = b""
        if not self._newline:
            self._find_newline(data)
        separator = self._separator
        end = data.rfind(separator) + len(separator)
        if end < len(separator):
            return self._wait(data)
        if end != len(data):
            self._tail = data[end:]
            data = data[:end]
        return self._events(data)

    def rest(self) -> bytes:
        """What is left when the backend has closed the stream: an event without its blank line."""
        tail, self._tail = self._tail, b""
        if not tail or self._unread:
            return tail
        whole = self._events(tail + self._separator)
        return whole.removesuffix(self._separator)

    def _find_newline(self, data: bytes) -> None:
        place = data.find(b"\n")
        if place >= 0:
            # A backend writes all its chunks in one style: with or without spaces after colons.
            first = data.find(b"data:")
            self._spaced = first >= 0 and _SPACED_HEAD.match(data, first) is not None
            self._newline = b"\r\n" if data[place - 1 : place] == b"\r" else b"\n"
            self._separator = self._newline * 2

    def _wait(self, data: bytes) -> bytes:
        if len(data) <= EVENT_BYTES_MAX:
            self._tail = data
            return b""
        self._unread = True
        return data

    def _events(self, block: bytes) -> bytes:
        """Count and strip a run of whole events."""
        seen = _SPACED.sub(rb"\1:", block) if self._spaced else block
        self._count(seen)
        # Searching from the end is several times faster, and what ends a stream is at the end.
        done = block.rfind(b"[DONE]")
        if done >= 0:
            self._complete = _DONE.search(block, max(0, done - len(b"\ndata: "))) is not None
        if self._timings and b'"timings":' in block:
            return self._one_by_one(block)
        place = seen.rfind(b'"usage":')
        if place < 0:
            return block
        if (
            not self._added_running
            or self._separator != b"\n\n"
            or seen.rfind(b'"choices":[]') >= 0
        ):
            return self._one_by_one(block)
        return self._without_running(block, seen, place)


    def _count(self, seen: bytes) -> None:
        """Count the chunks with text. A look at the last event decides which kinds to look for.

        Kinds that only earlier events of the same read carry may be missed: it is a lower bound.
        """
        main = self._main_text
        self.chunks += seen.count(_TEXTS[main]) - seen.count(_EMPTY[main])
        last = seen.rfind(self._separator, 0, -len(self._separator))
        if seen.find(_TEXTS[main], max(last, 0)) >= 0:
            return
        if main == "content" and seen.find(b'"reasoning', max(last, 0)) >= 0:
            # vLLM may write the same reasoning under both names: that is one token, not two.
            self.chunks += max(
                seen.count(_TEXTS[name]) - seen.count(_EMPTY[name])
                for name in ("reasoning_content", "reasoning")
            )
        elif main == "content" and seen.find(_TEXTS["arguments"], max(last, 0)) >= 0:
            self.chunks += seen.count(_TEXTS["arguments"]) - seen.count(_EMPTY["arguments"])

    def _without_running(self, block: bytes, seen: bytes, place: int) -> bytes:
        """The fast way for vLLM and SGLang: running usage is the last member of every chunk."""
        end = seen.find(b"}\n\n", place)
        raw = seen[place + 8 : end]
        stripped = _RUNNING.sub(b"", block)
        if stripped.rfind(b'"usage":') >= 0 or not raw.startswith(b"{"):
            return self._one_by_one(block)
        self._raw = raw
        return stripped

    def _one_by_one(self, block: bytes) -> bytes:
        """Look into every event from the first one on that may carry usage."""
        separator = self._separator
        places = (block.find(b'"usage"'), block.find(b'"timings"') if self._timings else -1)
        first = min((place for place in places if place >= 0), default=0)
        start = block.rfind(separator, 0, first)
        start = 0 if start < 0 else start + len(separator)
        kept = [self._event(event) for event in block[start:].split(separator)[:-1]]
        return block[:start] + b"".join(event + separator for event in kept if event is not None)

    def _event(self, event: bytes) -> bytes | None:
        """One event without its blank line, stripped; null if nothing of it is for the client."""
        if b'"usage"' not in event and b'"timings"' not in event:
            return event
        start = 0 if event.startswith(b"data:") else event.find(self._newline + b"data:")
        if start < 0:
            return event
        start = event.index(b"data:", start) + 5
        end = event.find(self._newline, start) if self._newline else -1
        end = len(event) if end < 0 else end
        try:
            fields = _fields.decode(event[start:end])
        except (msgspec.DecodeError, UnicodeDecodeError):
            return event
        drop, strip = self._judge(fields)
        if drop:
            return None
        if not strip:
            return event
        kept = {name: raw for name, raw in fields.items() if name not in strip}
        return b"".join((event[:start], b" ", msgspec.json.encode(kept), event[end:]))

    def _judge(self, fields: dict[str, msgspec.Raw]) -> tuple[bool, set[str]]:
        """Take the usage out of a parsed chunk. Returns (drop it whole, members to strip)."""
        choices = bytes(fields.get("choices", b"[]"))
        bare = "choices" in fields and not choices.strip(b"[] \t")
        finishing = bare or (b'"finish_reason":"' in choices.replace(b" ", b""))
        strip: set[str] = set()
        raw = fields.get("usage")
        if raw is not None:
            said = bytes(raw) != b"null"
            if said:
                self._take(bytes(raw), final=finishing)
            if not self._wanted:
                if bare and said:
                    return True, strip
                strip.add("usage")
            elif self._added_running and not bare:
                strip.add("usage")
        timings = fields.get("timings")
        if timings is not None and self._timings:
            if raw is None:
                self._take(bytes(timings), final=finishing, timings=True)
            if self._added_timings and not finishing:
                strip.add("timings")
        return False, strip

    def _take(self, raw: bytes, *, final: bool, timings: bool = False) -> None:
        """The last usage counts, never the sum: engines may say it twice."""
        if self._final and not final:
            return
        self._raw = raw
        self._timings_said = timings
        self._final = final
