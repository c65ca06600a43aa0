"""What an engine's own metrics page says: its token counters, and how busy it is. Pure.

Prometheus's text form, read by name. Of a page of a thousand lines some twenty are wanted, so the
page is searched for names instead of being parsed; a page that is none is no reading.
"""

import re
from math import isfinite
from typing import Final

import msgspec

from gateway.wire.requests import Engine
from ledger.events.envelope import COUNT_MAX


class Page(msgspec.Struct, frozen=True):
    """One reading. `counters` are by the engine's own names, each summed over its label sets.

    `engine` is whose names they are, null if there are none. `process_started` is in seconds since
    1970, null where the engine does not say it. `running` and `waiting` are requests.
    """

    engine: Engine | None = None
    counters: dict[str, int] = {}
    process_started: float | None = None
    running: int | None = None
    waiting: int | None = None


class _Names(msgspec.Struct, frozen=True):
    counters: tuple[str, ...]
    running: str
    waiting: str


def _both(*names: str) -> tuple[str, ...]:
    """`names` with `_total` at their end and without: exporters in between may take it off."""
    return tuple(name + end for name in names for end in ("_total", ""))


NAMES: Final[dict[Engine, _Names]] = {
    "vllm": _Names(
        _both("vllm:prompt_tokens", "vllm:prompt_tokens_cached", "vllm:generation_tokens"),
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
    ),
    "sglang": _Names(
        _both("sglang:prompt_tokens", "sglang:cached_tokens", "sglang:generation_tokens"),
        "sglang:num_running_reqs",
        "sglang:num_queue_reqs",
    ),
    "llamacpp": _Names(
        _both(
            "llamacpp:prompt_tokens", "llamacpp:prompt_tokens_cached", "llamacpp:tokens_predicted"
        ),
        "llamacpp:requests_processing",
        "llamacpp:requests_deferred",
    ),
}
"""What is read of each engine's page. Which of our buckets a counter holds is said in
`ledger.folds.counters`."""

_STARTED: Final = b"process_start_time_seconds"

_SAMPLE: Final = re.compile(
    rb"""(?:[ \t]*(?P<labels>\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\}))?[ \t]+(?P<value>[^ \t\r]+)"""
)
"""What stands behind a name: labels, whose values may hold anything in quotes, and the value."""

SAMPLE_BYTES_MAX: Final = 16 * 1024
"""Labels and value of one sample; a longer one is damaged, and to search it would take seconds."""

_OTHER_RANK: Final = re.compile(rb'\btp_rank="(?!0")')
"""Ranks of one tensor-parallel group work on the same tokens, and each may tell of them."""


def read_page(page: bytes, engine: Engine = "openai") -> Page:
    """What `page` says in the names of `engine`, or in those of whichever engine it is.

    It never raises: what cannot be read is not there. A counter of which one line is damaged is
    left out, because a sum without it would be wrong.
    """
    text = b"\n" + page
    kinds = [engine] if engine in NAMES and b"\n%b:" % engine.encode() in text else list(NAMES)
    for kind in kinds:
        if b"\n%b:" % kind.encode() not in text:
            continue
        names = NAMES[kind]
        found = {name: _count(_values(text, name.encode())) for name in names.counters}
        counters = {name: count for name, count in found.items() if count is not None}
        if counters:
            return Page(
                kind,
                counters,
                max(_values(text, _STARTED) or (), default=None),
                _count(_values(text, names.running.encode())),
                _count(_values(text, names.waiting.encode())),
            )
    return Page()


def _count(values: list[float] | None) -> int | None:
    """The sum of `values`, if it is one that a count can be."""
    if not values:
        return None
    total = sum(values)
    return round(total) if 0 <= total <= COUNT_MAX else None


def _values(text: bytes, name: bytes) -> list[float] | None:
    """The samples called `name` in `text`, one for each label set; null if one is damaged."""
    values: list[float] = []
    mark = b"\n" + name
    at = text.find(mark)
    while at >= 0:
        behind = at + len(mark)
        if text[behind : behind + 1] in (b"{", b" ", b"\t"):
            end = text.find(b"\n", behind)
            end = min(len(text) if end < 0 else end, behind + SAMPLE_BYTES_MAX)
            sample = _SAMPLE.match(text, behind, end)
            value = None if sample is None else _number(sample["value"])
            if sample is None or value is None:
                return None
            if sample["labels"] is None or _OTHER_RANK.search(sample["labels"]) is None:
                values.append(value)
        at = text.find(mark, behind)
    return values


def _number(text: bytes) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) else None
