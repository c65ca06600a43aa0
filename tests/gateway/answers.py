"""Streamed answers for tests of the wire: what an engine sends, in any style, cut anywhere.

The chunks are those of `tests.support.shapes`; how they are written down (spaces, line ends,
comments) is chosen here.
"""

import itertools
import json
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from hypothesis import strategies as st

from gateway.wire.requests import Asked, Engine, asked, forwarded
from gateway.wire.sse import StreamMeter
from ledger.events import Usage
from tests.support import shapes
from tests.support.script import parse

ENGINES: tuple[Engine, ...] = ("openai", "vllm", "sglang", "llamacpp")
WISHES: tuple[dict[str, Any], ...] = (
    {},
    {"stream_options": {"include_usage": True}},
    {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    {"stream_options": {"include_usage": False}, "timings_per_token": True},
)

WISH = Asked("m", stream=True, usage=False, continuous=False, timings=False, held_out=None)
WISH_USAGE = msgspec.structs.replace(WISH, usage=True)


class Style(msgspec.Struct, frozen=True, kw_only=True):
    """How a server writes its events down."""

    spaced: bool = False
    newline: str = "\n"
    prefix: str = "data: "
    comments: bool = False
    done: bool = True
    last_blank: bool = True


styles = st.builds(
    Style,
    spaced=st.booleans(),
    newline=st.sampled_from(("\n", "\r\n")),
    prefix=st.sampled_from(("data: ", "data:", "event: message\ndata: ")),
    comments=st.booleans(),
    done=st.booleans(),
    last_blank=st.booleans(),
)


def written(items: Iterable[Any], style: Style) -> bytes:
    """`items` (JSON values) as a stream of events, and `[DONE]` behind them."""
    end = style.newline
    marks = (", ", ": ") if style.spaced else (",", ":")
    texts = [json.dumps(item, separators=marks, ensure_ascii=False) for item in items]
    texts += ["[DONE]"] if style.done else []
    ping = f": still at work{end}{end}" if style.comments else ""
    prefix = style.prefix.replace("\n", end)
    stream = "".join(f"{ping}{prefix}{text}{end}{end}" for text in texts)
    return (stream if style.last_blank else stream.removesuffix(end * 2)).encode()


class Said(msgspec.Struct, frozen=True):
    """One answer of an engine: the chunks that it sends to the gateway, and to the caller alone."""

    wish: Asked
    sent: list[Any]
    direct: list[Any]


def said(engine: Engine, *, chat: bool, wish: dict[str, Any], script: str) -> Said:
    """What `engine` says to a body with `wish` in it, as it arrives and as the gateway asks."""
    body = {"model": "m", "stream": True} | wish
    own = json.dumps(body).encode()
    looked = asked(own)
    return Said(
        looked,
        _chunks(json.loads(forwarded(own, looked, engine)), engine, chat, script),
        _chunks(body, engine, chat, script),
    )


def _chunks(body: dict[str, Any], engine: Engine, chat: bool, script: str) -> list[Any]:
    kind: shapes.Engine = "fake" if engine == "openai" else engine
    call = shapes.call_of(body, kind, 1, chat, parse(script))
    tokens = [shapes.token(call, index) for index in range(call.chunks)]
    return [*shapes.opening(call), *tokens, *shapes.closing(call)]


def events(stream: bytes) -> list[Any]:
    """What a client reads out of `stream`: JSON values, and `[DONE]` as text."""
    found = []
    for line in stream.replace(b"\r\n", b"\n").split(b"\n"):
        if line.startswith(b"data:"):
            text = line[5:].strip()
            found.append("[DONE]" if text == b"[DONE]" else json.loads(text))
    return found


def metered(
    reads: Sequence[bytes], wish: Asked, engine: Engine, *, chat: bool = True
) -> tuple[StreamMeter, bytes]:
    """A meter that was fed `reads`, and everything that it passed on."""
    meter = StreamMeter(wish, engine, chat=chat)
    passed = [meter.feed(read) for read in reads]
    return meter, b"".join((*passed, meter.rest()))


def pieces(stream: bytes, cuts: Iterable[int]) -> list[bytes]:
    """`stream` cut at the places `cuts`."""
    places = [0, *sorted(cuts), len(stream)]
    return [stream[start:end] for start, end in itertools.pairwise(places)]


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c", "model": "m", "choices": [choice]} | more


def usage(prompt: int, completion: int, **more: Any) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "completion_tokens": completion} | more


def tokens(uncached: int, out: int, cached: int = 0, reasoning: int = 0) -> Usage:
    return Usage(
        uncached_in=uncached,
        cached_in=cached,
        cache_write_in=0,
        reasoning_out=reasoning,
        other_out=out,
    )
