"""The meter of a chat or text stream that holds several answers: `n`, or several prompts. Pure.

Running usage is then of one answer only, in vLLM and SGLang that of the chunk's `index`; a chunk of
usage alone sums them up. llama.cpp never sums: each answer ends with its own usage.
"""

import msgspec

from gateway.wire.requests import Asked, Engine
from gateway.wire.sse import StreamMeter
from gateway.wire.usage import UNREADABLE, usage_from, usage_from_timings
from ledger.events import Basis, Usage
from ledger.events.usage import BUCKETS, TOKENS_MAX


class _Choice(msgspec.Struct):
    index: int = 0
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None


_chunk = msgspec.json.Decoder(_Chunk)
_choices = msgspec.json.Decoder(list[_Choice])


class ChoicesMeter(StreamMeter):
    """As `StreamMeter`, event by event, with one count for each answer."""

    __slots__ = (
        "_answers",
        "_each",
        "_ended",
        "_expected",
        "_index",
        "_stopped",
        "_sums",
        "_whole",
    )

    def __init__(self, wish: Asked, engine: Engine, *, chat: bool) -> None:
        super().__init__(wish, engine, chat=chat)
        self._answers = wish.answers
        self._expected = wish.answers * wish.prompts
        self._sums = engine != "llamacpp"
        self._index = 0  # the answer that the chunk is of
        self._stopped: list[int] = []  # answers that ended and whose usage is still to come
        self._each: dict[int, Usage] = {}
        self._ended: set[int] = set()
        self._whole: Usage | None = None

    def usage(self) -> Usage | None:
        """The usage of all answers together, as far as the engine has said it."""
        if self._whole is not None or not self._each:
            return self._whole
        # The answers to one prompt follow each other, and each tells the whole of it; what the
        # first says of the cache is what the engine did.
        order = sorted(self._each, reverse=True)
        prompts = {index // self._answers: self._each[index] for index in order}
        inputs = [msgspec.structs.asdict(usage) for usage in prompts.values()]
        outputs = [msgspec.structs.asdict(usage) for usage in self._each.values()]
        total = {name: sum(one[name] for one in inputs) for name in BUCKETS[:3]}
        total |= {name: sum(one[name] for one in outputs) for name in BUCKETS[3:]}
        return Usage(**{name: min(count, TOKENS_MAX) for name, count in total.items()})

    def counted(self) -> tuple[Basis, Usage]:
        """The best count so far and how it was obtained."""
        if not self._sums:
            ended = len(self._ended)
            self._final = ended >= self._expected or (
                self._complete and 0 < ended == len(self._each)
            )
        return super().counted()

    def _without_running(self, block: bytes, *, once: bool = False) -> bytes:
        return block if block.rfind(b'"usage":') < 0 else self._one_by_one(block)

    def _events(self, block: bytes) -> bytes:
        if not self._sums:
            # llama.cpp's chunk of usage alone names no answer; they come in the order of the ends.
            for line in block.split(b"\n"):
                if b'"finish_reason"' in line:
                    self._stopped += _stopped(line)
        return super()._events(block)

    def _judge(self, fields: dict[str, msgspec.Raw]) -> tuple[bool, set[str]]:
        try:
            choices = _choices.decode(fields.get("choices", b"[]"))
        except UNREADABLE:
            choices = []
        if choices:
            self._index = choices[-1].index
        elif self._stopped and "usage" in fields:
            self._index = self._stopped[0]
        return super()._judge(fields)

    def _take(self, raw: bytes, *, final: bool, timings: bool = False) -> None:
        usage = (usage_from_timings if timings else usage_from)(raw)
        if usage is None:
            return
        super()._take(raw, final=final, timings=timings)
        if final and self._sums:
            self._whole = usage
            return
        self._each[self._index] = usage
        if final:
            self._ended.add(self._index)
            self._stopped = [index for index in self._stopped if index != self._index]


def _stopped(line: bytes) -> list[int]:
    """The answers that end with the event of `line`."""
    try:
        choices = _chunk.decode(line.removeprefix(b"data:")).choices
    except UNREADABLE:
        return []
    return [one.index for one in choices or () if one.finish_reason is not None]
