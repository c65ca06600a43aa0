"""What engines count, and which of our buckets each of their counters holds. Pure.

`COUNTINGS` was read from the engines' sources and tried on llama.cpp; docs/reconcile.md shows it. A
counter only grows until its engine restarts, so what it moved by between two readings is what the
engine did, however many readings between them were missed.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import groupby, pairwise
from typing import Final, Literal

import msgspec

Moves = Literal["during_prompt", "at_first_token", "as_made", "at_end"]
"""When a counter takes a request in.

during_prompt   while the prompt is processed, batch by batch
at_first_token  the whole prompt, when the first token is there
as_made         each token when it is made
at_end          all of it when the request ends or is stopped
"""

Prompts = Literal["once", "each", "each_and_once"]
"""once           as the usage has it
each           once for each answer
each_and_once  the same, and once more to fill the cache"""

HOUR: Final = timedelta(hours=1)

NEAR: Final = timedelta(minutes=5)
"""An hour begins at the reading nearest to it, if that is not farther away."""

SAME_START: Final = timedelta(seconds=2)
"""Two starts of a process so near are the same: engines write it as a float of seconds."""

HOLE: Final = timedelta(minutes=5)
"""Where one gateway read nothing for twice so long, what another one read is taken in."""

APART: Final = timedelta(seconds=10)
"""By less than this the clocks of two gateways differ, where one follows on the other."""

ASTRAY: Final = timedelta(minutes=2)
"""By no more than this they can differ: a gateway whose clock is a minute from Kafka's says that it
is not ready. What one read so near to what another one read, and falls behind it, was read at
another time than it says, and is left out; an engine that restarted shows it behind that, too."""


READS_ONLY: Final = frozenset({"embeddings", "rerank"})
"""Endpoints at which an engine reads and generates nothing."""

COUNTS_ONLY: Final = frozenset({"tokenize", "messages/count_tokens"})
"""Endpoints at which no model is run."""


class Measure(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison: what `counters` together moved by, and what `buckets` of the ledger hold.

    `cut_counts`: a request that was stopped is counted as far as it got; else perhaps not at all.
    `prompts`: how often a prompt counts that was asked for several answers.
    `binds`: a difference beyond the bound is a finding; else it is only shown. `but` says what this
    counter does that has no place in the ledger, in words.
    """

    side: str
    counters: tuple[str, ...]
    buckets: tuple[str, ...]
    moves: Moves
    cut_counts: bool = True
    prompts: Prompts = "once"
    binds: bool = True
    but: str | None = None


class Counting(msgspec.Struct, frozen=True, kw_only=True):
    """What one engine counts, in versions that have all these counters on their page.

    `notice` is how long it may work on after the caller of a stream has hung up, `plain_notice`
    after that of a plain answer. `digits`: its page shows counters rounded to so many digits; null:
    exactly.
    """

    engine: str
    versions: str
    measures: tuple[Measure, ...]
    notice: timedelta = timedelta(seconds=2)
    plain_notice: timedelta = timedelta(seconds=2)
    digits: int | None = None


INPUT: Final = ("uncached_in", "cached_in", "cache_write_in")
OUTPUT: Final = ("reasoning_out", "other_out")

LINGERS: Final = timedelta(minutes=30)
"""SGLang looks for a hang-up late, and some versions never do (its pull request 34894 tells of
1,803 tokens made for nobody); llama.cpp does not while it makes a plain answer (its issue 24496;
300 of 300 tokens were made here). So long may a cut request be at work there."""

_NOT_SAID: Final = "the engine only tells of cached tokens in its usage if it is started so"

_VLLM_IN: Final = Measure(
    side="in",
    counters=("vllm:prompt_tokens_total",),
    buckets=INPUT,
    moves="at_first_token",
    prompts="each",
)
_VLLM_OUT: Final = Measure(
    side="out", counters=("vllm:generation_tokens_total",), buckets=OUTPUT, moves="as_made"
)
_SGLANG_IN: Final = Measure(
    side="in",
    counters=("sglang:prompt_tokens_total",),
    buckets=INPUT,
    moves="at_end",
    cut_counts=False,
    prompts="each_and_once",
)
_SGLANG_OUT: Final = Measure(
    side="out",
    counters=("sglang:generation_tokens_total",),
    buckets=OUTPUT,
    moves="at_end",
    cut_counts=False,
)

COUNTINGS: Final = (
    Counting(
        engine="llamacpp",
        versions="since August 2026",
        plain_notice=LINGERS,
        digits=6,
        measures=(
            Measure(
                side="uncached_in",
                counters=("llamacpp:prompt_tokens_total",),
                buckets=("uncached_in", "cache_write_in"),
                moves="during_prompt",
            ),
            Measure(
                side="cached_in",
                counters=("llamacpp:prompt_tokens_cached_total",),
                buckets=("cached_in",),
                moves="during_prompt",
            ),
            Measure(
                side="out",
                counters=("llamacpp:tokens_predicted_total",),
                buckets=OUTPUT,
                moves="at_end",
            ),
        ),
    ),
    Counting(
        engine="llamacpp",
        versions="before",
        plain_notice=LINGERS,
        digits=6,
        measures=(
            Measure(
                side="uncached_in",
                counters=("llamacpp:prompt_tokens_total",),
                buckets=("uncached_in", "cache_write_in"),
                moves="at_first_token",
                but="embeddings and reranked texts are not counted",
                cut_counts=False,
            ),
            Measure(
                side="out",
                counters=("llamacpp:tokens_predicted_total",),
                buckets=OUTPUT,
                moves="at_end",
                but="a stopped request is not counted",
                cut_counts=False,
            ),
        ),
    ),
    Counting(
        engine="vllm",
        versions="since February 2026",
        measures=(
            _VLLM_IN,
            Measure(
                side="cached_in",
                counters=("vllm:prompt_tokens_cached_total",),
                buckets=("cached_in",),
                moves="at_first_token",
                prompts="each",
                binds=False,
                but=_NOT_SAID,
            ),
            _VLLM_OUT,
        ),
    ),
    Counting(engine="vllm", versions="before", measures=(_VLLM_IN, _VLLM_OUT)),
    Counting(
        engine="sglang",
        versions="with a counter of cached tokens",
        notice=LINGERS,
        plain_notice=LINGERS,
        measures=(
            _SGLANG_IN,
            Measure(
                side="cached_in",
                counters=("sglang:cached_tokens_total",),
                buckets=("cached_in",),
                moves="at_end",
                cut_counts=False,
                prompts="each_and_once",
                binds=False,
                but=_NOT_SAID,
            ),
            _SGLANG_OUT,
        ),
    ),
    Counting(
        engine="sglang",
        versions="before",
        measures=(_SGLANG_IN, _SGLANG_OUT),
        notice=LINGERS,
        plain_notice=LINGERS,
    ),
)
"""Every engine; of two entries of one engine the first stands whose counters are all there."""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """An engine's counters as `gateway` read them `at` a moment; `fault`: why there are none.

    Every life of a gateway is a gateway of its own here: two machines may have the same name.
    """

    at: datetime
    gateway: str
    counters: Mapping[str, int] = {}
    process_started: datetime | None = None
    fault: str | None = None


class Restart(msgspec.Struct, frozen=True):
    """The engine restarted behind `after`; what it counted from there to `before` may be lost."""

    after: datetime
    before: datetime


class Span(msgspec.Struct, frozen=True):
    """Readings from one edge to the next. `joined` are the hours between that had no reading."""

    line: tuple[Reading, ...]
    joined: tuple[datetime, ...] = ()


class Moved(msgspec.Struct, frozen=True):
    """What an engine's counters moved by over some readings, and what happened to it meanwhile.

    `ends` are the readings whose numbers went into it: the first, the last, and the last before
    each restart.
    """

    by: Mapping[str, int]
    restarts: tuple[Restart, ...]
    ends: tuple[Reading, ...]


def makes_nothing(endpoint: str | None, *, output: bool) -> bool:
    """True if no engine counts anything on that side for a request at `endpoint`, however it ended.
    So one that failed there is no excuse for tokens that nobody asked for."""
    return endpoint in COUNTS_ONLY or (output and endpoint in READS_ONLY)


def counting_of(counters: Mapping[str, int]) -> Counting | None:
    """What the engine that shows these counters counts; null if it is none that we know."""
    return _counting(frozenset(counters))


# Kept, since all readings of an engine have the same names, and there are thousands of them a day.
@lru_cache(maxsize=64)
def _counting(names: frozenset[str]) -> Counting | None:
    page = dict.fromkeys(names, 0)
    for counting in COUNTINGS:
        wanted = (name for measure in counting.measures for name in measure.counters)
        if all(_found(page, name) is not None for name in wanted):
            return counting
    return None


def value_of(counters: Mapping[str, int], measure: Measure) -> int:
    """The sum of a measure's counters; one that is not there adds nothing."""
    return sum(_found(counters, name) or 0 for name in measure.counters)


def _found(counters: Mapping[str, int], name: str) -> int | None:
    """A counter of that name. Clients of Prometheus differ in whether they write its `_total`."""
    return counters.get(name, counters.get(name.removesuffix("_total")))


def in_line(readings: Iterable[Reading]) -> list[Reading]:
    """Good readings in the order of time, as if one had read them all.

    Clocks of gateways differ by less than the time between two readings of one, but by enough to
    make a counter seem to fall; so those of one gateway are taken, and others' where it has none.
    """
    by_gateway: dict[str, list[Reading]] = {}
    for reading in sorted(readings, key=lambda reading: reading.at):
        if reading.fault is None and counting_of(reading.counters) is not None:
            by_gateway.setdefault(reading.gateway, []).append(reading)
    line: list[Reading] = []
    for gateway in sorted(by_gateway, key=lambda name: (-len(by_gateway[name]), name)):
        line = list(_filled(line, by_gateway[gateway]))
    return line


def _filled(line: Sequence[Reading], more: Sequence[Reading]) -> Iterator[Reading]:
    """`line` with those of `more` that stand in its holes."""
    if not line:
        yield from more
        return
    yield from (r for r in more if r.at < line[0].at - APART and not _astray(r, line[0]))
    for one, other in pairwise(line):
        yield one
        if other.at - one.at > 2 * HOLE:
            yield from (r for r in more if one.at + HOLE < r.at < other.at - HOLE)
    yield line[-1]
    yield from (r for r in more if r.at > line[-1].at + APART and not _astray(line[-1], r))


def _astray(one: Reading, other: Reading) -> bool:
    """True if a clock, rather than a restart, makes the counters of two gateways fall."""
    return other.at - one.at < ASTRAY and _fell(one, other)


def moved(line: Sequence[Reading]) -> Moved:
    """What the counters moved by from the first of `line` to its last, across restarts."""
    by: dict[str, int] = {}
    restarts: list[Restart] = []
    ends = [line[0]]
    for one, other in pairwise(line):
        began = _restarted(one, other)
        if began is not None:
            restarts.append(Restart(one.at, began))
            ends.append(one)
        for name, count in other.counters.items():
            before = 0 if began is not None else one.counters.get(name, count)
            by[name] = by.get(name, 0) + count - before
    return Moved(by, tuple(restarts), (*ends, line[-1]))


def blur(ends: Iterable[Reading], measure: Measure, digits: int | None) -> int:
    """How far off a measure may be because the page rounds what it shows."""
    if digits is None:
        return 0
    counts = [_found(reading.counters, name) or 0 for reading in ends for name in measure.counters]
    return sum(
        int(10 ** max(0, len(str(count)) - digits) + 1) // 2
        for count in counts
        if count >= 10**digits
    )


def _restarted(one: Reading, other: Reading) -> datetime | None:
    """By when the engine had restarted between two readings; null if it had not."""
    was, now = one.process_started, other.process_started
    anew = was is not None and now is not None and now - was > SAME_START
    if not anew and not _fell(one, other):
        return None
    return now if now is not None and one.at < now <= other.at else other.at


def _fell(one: Reading, other: Reading) -> bool:
    return any(other.counters.get(name, count) < count for name, count in one.counters.items())


def spans(
    line: Sequence[Reading], since: datetime, until: datetime, told: datetime | None = None
) -> list[Span]:
    """`line` cut near every full hour from `since` to `until`, and at the last reading before
    `told`: up to there everything is known, so a verdict need not wait for the hour's end.

    An engine of another kind or age, behind the same address, begins a span of its own.
    """
    found: list[Span] = []
    within = [one for one in line if since - NEAR <= one.at <= until + NEAR]
    for _, group in groupby(within, key=lambda one: counting_of(one.counters)):
        found += _hours(list(group), since, until, told)
    return found


def _hours(
    line: Sequence[Reading], since: datetime, until: datetime, told: datetime | None
) -> Iterator[Span]:
    moments = [reading.at for reading in line]
    begin, end = max(since, line[0].at), min(until, line[-1].at)
    marks = {mark: _nearest(moments, mark) for mark in _marks(begin, end)}
    if told is not None and begin < told <= end:
        place = bisect_right(moments, told) - 1
        if told - moments[place] <= NEAR:
            marks[told] = place
    edges: list[int] = []
    skipped: list[list[datetime]] = []
    for mark, near in sorted(marks.items()):
        if abs(line[near].at - mark) > NEAR:
            if skipped:
                skipped[-1].append(mark)
        elif not edges or near > edges[-1]:
            edges.append(near)
            skipped.append([])
    for (first, last), joined in zip(pairwise(edges), skipped, strict=False):
        yield Span(tuple(line[first : last + 1]), tuple(joined))


def _nearest(moments: Sequence[datetime], mark: datetime) -> int:
    """Where in `moments`, which are in order, the one nearest to `mark` is."""
    after = bisect_left(moments, mark)
    around = range(max(0, after - 1), min(len(moments), after + 1))
    return min(around, key=lambda place: abs(moments[place] - mark))


def _marks(since: datetime, until: datetime) -> Iterator[datetime]:
    """`since`, each full hour behind it, and `until`."""
    yield since
    mark = since.replace(minute=0, second=0, microsecond=0) + HOUR
    while mark < until:
        yield mark
        mark += HOUR
    yield until
