"""What an engine's own metrics page says: its token counters, and how busy it is. Pure.

Prometheus's text form, read by name. Of a page of a thousand lines some twenty are wanted, so the
page is searched for names instead of being parsed; a page that is none is no reading. llama.cpp
says on its page `/slots` what its metrics lack.
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
    1970, null where the engine does not say it. `running` and `waiting` are requests. `kv_usage` is
    the share of the engine's KV cache that is in use, 0 to 1, over all of its caches.
    `prefix_queries` are prompt tokens that were looked up in the cache of prefixes since the engine
    started, `prefix_hits` those that were found there. What a page does not say is null, never 0.
    """

    engine: Engine | None = None
    counters: dict[str, int] = {}
    process_started: float | None = None
    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    prefix_hits: int | None = None
    prefix_queries: int | None = None


class _Names(msgspec.Struct, frozen=True):
    """Names of one engine; of several for one thing, the first that is on the page counts.

    `queries` are added up: an engine without a counter of look-ups counts hits and misses.
    """

    counters: tuple[str, ...]
    running: str
    waiting: str
    kv_usage: tuple[str, ...]
    hits: tuple[str, ...]
    queries: tuple[tuple[str, ...], ...]


def _both(*names: str) -> tuple[str, ...]:
    """`names` with `_total` at their end and without: exporters in between may take it off."""
    return tuple(name + end for name in names for end in ("_total", ""))


NAMES: Final[dict[Engine, _Names]] = {
    "vllm": _Names(
        _both("vllm:prompt_tokens", "vllm:prompt_tokens_cached", "vllm:generation_tokens"),
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        # The name changed in 0.9, and versions in between show both. "perc" or not, 1 is full.
        ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        _both("vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits"),
        (_both("vllm:prefix_cache_queries", "vllm:gpu_prefix_cache_queries"),),
    ),
    "sglang": _Names(
        _both("sglang:prompt_tokens", "sglang:cached_tokens", "sglang:generation_tokens"),
        "sglang:num_running_reqs",
        "sglang:num_queue_reqs",
        # The fullest of its pools, where a model has several kinds of layers.
        ("sglang:token_usage",),
        _both("sglang:cached_tokens"),
        (_both("sglang:prompt_tokens"),),
    ),
    "llamacpp": _Names(
        _both(
            "llamacpp:prompt_tokens", "llamacpp:prompt_tokens_cached", "llamacpp:tokens_predicted"
        ),
        "llamacpp:requests_processing",
        "llamacpp:requests_deferred",
        # Gone since May 2025 (its pull request 13660); `/slots` stands in for it.
        ("llamacpp:kv_cache_usage_ratio",),
        _both("llamacpp:prompt_tokens_cached"),
        (_both("llamacpp:prompt_tokens_cached"), _both("llamacpp:prompt_tokens")),
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

_TOLD_TWICE: Final = re.compile(rb'\b(?:tp_rank|pp_rank)="(?!0")|\bpriority="(?!")')
"""Ranks of one tensor-parallel group, and stages of one pipeline, work on the same requests, and
each may tell of them. SGLang with priorities tells of all requests with an empty one, and then of
the same again by priority."""

_USAGE_MAX: Final = 1.01
"""A share beyond 1 by more than rounding is in a unit that is not known here."""


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
                _usage(text, names.kv_usage),
                *_prefixes(text, names),
            )
    return Page()


def _usage(text: bytes, names: tuple[str, ...]) -> float | None:
    """The mean over all caches: ranks and engines behind one door have caches of one size."""
    for name in names:
        values = _values(text, name.encode())
        if values:
            mean = sum(values) / len(values)
            return min(mean, 1.0) if min(values) >= 0 and max(values) <= _USAGE_MAX else None
    return None


def _prefixes(text: bytes, names: _Names) -> tuple[int | None, int | None]:
    """Hits and queries: both or none, because only their relation says something."""
    hits = _first(text, names.hits)
    parts = [_first(text, part) for part in names.queries]
    known = [part for part in parts if part is not None]
    if hits is None or len(known) < len(parts) or sum(known) > COUNT_MAX:
        return None, None
    return hits, sum(known)


def _first(text: bytes, names: tuple[str, ...]) -> int | None:
    for name in names:
        count = _count(_values(text, name.encode()))
        if count is not None:
            return count
    return None


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
            if sample["labels"] is None or _TOLD_TWICE.search(sample["labels"]) is None:
                values.append(value)
        at = text.find(mark, behind)
    return values


def _number(text: bytes) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) else None
