"""A stream of server-sent events on its way to the client: counted, and stripped of what was added.

Only whole events are passed on; an unfinished one waits for its rest, so that an event is never
stripped in half. Counting looks at bytes, not at parsed chunks: within JSON a quote inside a text
is escaped, so `"content":"` can only be the member of that name. An event is parsed only when it
carries usage that must be taken out with care. Pure: bytes in, bytes out.
"""

import re

import msgspec

from gateway.wire.faults import fault_of_line
from gateway.wire.requests import Asked, Engine
from gateway.wire.usage import UNREADABLE, usage_from, usage_from_timings, with_chunks
from ledger.events import Basis, Usage

_LF, _CRLF = b"\n\n", b"\r\n\r\n"
_SEPARATOR_BYTES_MAX = len(_CRLF)

EVENT_BYTES_MAX = 16 * 1024 * 1024
"""An event that grows beyond this is passed on unread, so that no backend can fill the memory."""

_NAMES = ("content", "text", "arguments", "reasoning_content", "reasoning")
_TEXTS = {name: f'"{name}":"'.encode() for name in _NAMES}
_EMPTY = {name: mark + b'"' for name, mark in _TEXTS.items()}
_SPACED = re.compile(rb'("(?:%s|usage)"):\s+' % "|".join(_NAMES).encode())
_SPACED_HEAD = re.compile(rb'data: ?\{\s*"[^"]*":\s')
_RUNNING = b',"usage":{'
_ERROR = b'"error"'
_ENVELOPE = frozenset(
    ("choices", "created", "id", "model", "object", "service_tier", "system_fingerprint", "usage")
)
"""Members that say nothing by themselves: a chunk of these and a usage is the usage alone."""
_NESTED = re.compile(rb"[^{}]*(?:\{[^{}]*\}[^{}]*)*\}")
# A line break inside a chunk's JSON is escaped, so these match an event and never a text. A regular
# expression for the same was measured at a quarter of the CPU of a fast stream.
_DONE = tuple(
    b"data:" + space + b"[DONE]" + end for space in (b" ", b"") for end in (b"\n", b"\r\n")
)
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


class StreamMeter:
    """Meters one streamed answer. Feed it what the backend sends, in order, and pass on the rest.

    `chunks` counts those that carried text, so it never exceeds the tokens that were produced.
    `raw` is the usage as it was last said, unparsed: a change of it is news to tell.
    """

    __slots__ = (
        "_added_running",
        "_added_timings",
        "_believed",
        "_chunks_said",
        "_complete",
        "_fault",
        "_final",
        "_finishes",
        "_latest",
        "_main_text",
        "_separator",
        "_spaced",
        "_tail",
        "_timings",
        "_timings_said",
        "_took",
        "_unread",
        "_wanted",
        "chunks",
        "raw",
    )

    def __init__(self, wish: Asked, engine: Engine, *, chat: bool) -> None:
        self._main_text = "content" if chat else "text"
        self._wanted = wish.usage
        self._added_running = engine in ("vllm", "sglang") and not wish.continuous
        self._added_timings = engine == "llamacpp" and not wish.timings
        self._timings = engine == "llamacpp"
        # vLLM and SGLang put running usage on the finishing chunk too, and of `n` answers each has
        # one; only a chunk without choices is their last word.
        self._finishes = engine not in ("vllm", "sglang")
        self._tail = b""
        self._spaced: bool | None = None
        self._separator = b""
        self.raw: bytes | None = None
        self._timings_said = False
        self._final = False
        self._complete = False
        self._unread = False
        self.chunks = 0
        self._chunks_said = 0  # the chunks that the usage takes in
        self._believed = False
        self._took = False  # true while an event with usage was just read
        self._fault: str | None = None
        self._latest = b""  # with text, and not yet looked through for an error

    @property
    def complete(self) -> bool:
        """True once `[DONE]` was seen: what `feed` just gave holds the stream's last bytes."""
        return self._complete

    @property
    def covered(self) -> bool:
        """True if the usage said so far takes in all that was seen."""
        return self._believed and self._chunks_said == self.chunks

    @property
    def fault(self) -> str | None:
        """What the backend said of an error inside the stream."""
        self._look_for_fault(b"")
        return self._fault

    def _look_for_fault(self, block: bytes) -> None:
        """An error ends a stream, but for `[DONE]`: so it is in the last events with text, or in
        some without, and looking for it costs the stream nothing."""
        for one in (self._latest, block):
            if one.find(_ERROR) >= 0 or one.startswith(b"error:"):
                for line in one.split(b"\n"):
                    self._fault = fault_of_line(line) or self._fault
        self._latest = b""

    def usage(self) -> Usage | None:
        """The usage as the engine last said it; null if it said none that can be believed."""
        if self.raw is None:
            return None
        return (usage_from_timings if self._timings_said else usage_from)(self.raw)

    def counted(self) -> tuple[Basis, Usage]:
        """The best count so far and how it was obtained.

        Text that came after the last running usage is counted by its chunks on top of it.
        """
        usage = self.usage()
        if usage is None:
            if self.chunks:
                return "counted", Usage(other_out=self.chunks)
            return "none", Usage()
        if self._final:
            return "reported", usage
        later = self.chunks - self._chunks_said
        if later == 0:
            return "running", usage
        if self._timings_said:
            # llama.cpp may make several chunks of one token and says the timings on the last.
            later = 1
        return "counted", with_chunks(usage, later)

    def feed(self, data: bytes) -> bytes:
        """The bytes to pass on to the client now, after one more read from the backend."""
        if self._unread:
            return data
        seen = 0
        if self._tail:
            # No separator is in the tail, but one may have begun there.
            seen = max(0, len(self._tail) - _SEPARATOR_BYTES_MAX)
            data = self._tail + data
            self._tail = b""
        if not self._separator:
            place = data.find(b"\n")
            if place >= 0:
                self._separator = _CRLF if data[:place].endswith(b"\r") else _LF
        separator = self._separator
        found = data.rfind(separator, seen) if separator else -1
        if found < 0:
            return self._wait(data, seen)
        end = found + len(separator)
        if end != len(data):
            return self._events(data[:end]) + self._wait(data[end:])
        return self._events(data)

    def rest(self) -> bytes:
        """What is left when the backend has closed the stream: an event without its blank line."""
        tail, self._tail = self._tail, b""
        if not tail or self._unread:
            return tail
        self._separator = self._separator or _LF
        whole = self._events(tail + self._separator)
        return whole.removesuffix(self._separator)

    def _wait(self, data: bytes, seen: int = 0) -> bytes:
        """Keep an event until it is whole, unless the other kind of line end shows that it is; none
        begins before `seen`.

        A server whose comments end in CRLF and its data in LF must not be held back.
        """
        other = _LF if self._separator == _CRLF else _CRLF
        found = data.rfind(other, seen)
        if found >= 0:
            self._separator = other
            end = found + len(other)
            self._tail = data[end:]
            return self._events(data[:end])
        if len(data) <= EVENT_BYTES_MAX:
            self._tail = data
            return b""
        self._unread = True
        return data

    def _events(self, block: bytes) -> bytes:
        """Count and strip a run of whole events."""
        if self._spaced is None:
            # A backend writes all its chunks in one style: with or without spaces after colons.
            first = block.find(b"data:")
            if first >= 0:
                self._spaced = _SPACED_HEAD.match(block, first) is not None
        seen = _SPACED.sub(rb"\1:", block) if self._spaced else block
        if texts := self._texts(seen):
            self.chunks += texts
            self._latest = block
        else:
            self._look_for_fault(block)
        # Searching from the end is several times faster, and what ends a stream is at the end.
        if block.rfind(b"[DONE]") >= 0 and not self._complete:
            self._complete = block.startswith(_DONE) or any(
                block.rfind(b"\n" + line) >= 0 for line in _DONE
            )
        if self._timings and b'"timings":' in block:
            return self._one_by_one(block)
        if self._added_running and self._separator == _LF and not self._spaced:
            return self._without_running(block)
        return block if seen.rfind(b'"usage":') < 0 else self._one_by_one(block)

    def _texts(self, seen: bytes) -> int:
        """The chunks with text; only where some have none, look for the other kinds too.

        So a read gives the same count as its events one by one (unless one event holds the texts
        of several choices), and plain text costs no more than it must.
        """
        main = self._main_text
        texts = _texts(seen, main)
        if main == "content" and texts < (events := seen.count(b'"delta"')):
            # vLLM may write the same reasoning under both names: that is one token, not two.
            texts += _texts(seen, "reasoning_content") or _texts(seen, "reasoning")
            if texts < events:
                texts += _texts(seen, "arguments")
        return texts

    def _without_running(self, block: bytes, *, once: bool = False) -> bytes:
        """The fast way for vLLM and SGLang: running usage is the last member of every chunk."""
        first, *rest = block.split(_RUNNING)
        kept = [first]
        usage = b""
        for part in rest:
            end = part.find(b"}\n\n")
            usage = part[:end]
            # One brace, right before the chunk's own: the object is flat and nothing follows it.
            if end < 1 or (part.find(b"}") != end - 1 and _NESTED.fullmatch(usage) is None):
                return self._one_by_one(block)
            kept.append(part[end:])
        if not rest:
            return block if block.rfind(b'"usage":') < 0 else self._one_by_one(block)
        if not kept[-2].endswith(b"}]"):
            # Before running usage come choices. Without any it is the last word.
            return self._one_by_one(block) if once else self._last_word(block)
        stripped = b"".join(kept)
        if stripped.rfind(b'"usage":') >= 0:
            return self._one_by_one(block)
        self.raw, self._final = b"{" + usage, False
        if not self._believed:
            # Who says it right once is believed to go on so; `counted` looks at every one.
            self._believed = usage_from(self.raw) is not None
        # Nearly always nothing comes after the last chunk with usage.
        later = 0 if end + 3 == len(part) else self._texts(part[end + 3 :])
        self._chunks_said = self.chunks - later
        return stripped

    def _last_word(self, block: bytes) -> bytes:
        """A chunk of usage alone ends a stream; what comes before it still goes the fast way."""
        place = block.rfind(_LF, 0, block.rfind(_RUNNING))
        head = b"" if place < 0 else block[: place + len(_LF)]
        return self._without_running(head, once=True) + self._one_by_one(block[len(head) :])

    def _one_by_one(self, block: bytes) -> bytes:
        """Look into every event from the first one on that may carry usage."""
        separator = self._separator
        places = (block.find(b'"usage"'), block.find(b'"timings"') if self._timings else -1)
        first = min((place for place in places if place >= 0), default=0)
        start = block.rfind(separator, 0, first)
        start = 0 if start < 0 else start + len(separator)
        *events, last = block[start:].split(separator)
        kept, behind = [], None
        for place, event in enumerate(events, 1):
            kept.append(self._event(event))
            if self._took:
                self._took, behind = False, place
        if behind is not None:
            later = separator.join(events[behind:])
            if later and self._spaced:
                later = _SPACED.sub(rb"\1:", later)
            self._chunks_said = self.chunks - (self._texts(later) if later else 0)
        return b"".join((block[:start], *kept, last))

    def _event(self, event: bytes) -> bytes:
        """One event and its blank line, stripped; empty if nothing of it is for the client."""
        separator = self._separator
        if b'"usage"' not in event and b'"timings"' not in event:
            return event + separator
        start = 0 if event.startswith(b"data:") else event.find(b"\ndata:") + 1
        if not event.startswith(b"data:", start):
            return event + separator
        start += len(b"data: ") if event.startswith(b"data: ", start) else len(b"data:")
        end = event.find(b"\n", start)
        end = len(event) if end < 0 else end
        data = event[start:end].rstrip(b"\r")
        try:
            fields = _fields.decode(data)
        except UNREADABLE:
            return event + separator
        drop, strip = self._judge(fields)
        if drop:
            # Blank lines before it may belong to the event before, which has gone out already.
            return event[: len(event) - len(event.lstrip(b"\r\n"))]
        if not strip:
            return event + separator
        kept = msgspec.json.encode({name: raw for name, raw in fields.items() if name not in strip})
        return b"".join((event[:start], kept, event[start + len(data) :], separator))

    def _judge(self, fields: dict[str, msgspec.Raw]) -> tuple[bool, set[str]]:
        """Take the usage out of a parsed chunk. Returns (drop it whole, members to strip)."""
        choices = bytes(fields.get("choices", b"[]"))
        bare = choices == b"null" or not choices.strip(b"[] \t")
        finishing = bare or (self._finishes and b'"finish_reason":"' in choices.replace(b" ", b""))
        strip: set[str] = set()
        raw = fields.get("usage")
        if raw is not None:
            said = bytes(raw) != b"null"
            if said:
                self._take(bytes(raw), final=finishing)
            if not self._wanted:
                if bare and said and _ENVELOPE.issuperset(fields.keys() - {"timings"}):
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
        """The last usage that can be believed counts, never the sum: engines may say it twice."""
        if (usage_from_timings if timings else usage_from)(raw) is None:
            return
        self.raw = raw
        self._believed = True
        self._timings_said = timings
        self._final = final
        self._took = True


def _texts(seen: bytes, name: str) -> int:
    """How often the member `name` stands in `seen` with a text that is not empty."""
    found = seen.count(_TEXTS[name])
    return found - seen.count(_EMPTY[name]) if found else 0
