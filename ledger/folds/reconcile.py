"""The ledger's tokens held against an engine's own counters, and the causes of a difference. Pure.

For each request the bound says how few and how many tokens the engine may have counted for it
within a window. A whole request is exact. One that was cut, or whose tokens nobody could count, or
that runs across an edge of the window, is a range. If the engine counted more than all ranges allow
together, somebody called it around the gateway; if less, the ledger bills what was never made.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Final, Literal

import msgspec

from ledger.events import Basis, Usage
from ledger.events.requests import SYSTEM_KEY_ID
from ledger.events.usage import NOTHING_KNOWN
from ledger.folds.counters import (
    INPUT,
    OUTPUT,
    Counting,
    Measure,
    Moved,
    Reading,
    Restart,
    Span,
    blur,
    counting_of,
    makes_nothing,
    moved,
    value_of,
)

EDGE: Final = timedelta(seconds=2)
"""A reading takes its time, and clocks of machines may differ by this: so near an edge of a window
a token may be on either side of it."""

RATE_MAX: Final = 1000
"""Tokens per second: no engine makes more for one request."""

LATE_TOKENS_MIN: Final = 32
"""So many an engine may make after the last chunk that was seen, however slow it seemed: it looks
for a hang-up between two tokens, and makes several at once where it speculates."""

CONTEXT_MAX: Final = 1 << 20
"""The most that one request can hold if nothing else is known of it."""

TEMPLATE_TOKENS_MAX: Final = 512
"""What a chat template and its tools may add to a prompt."""

STALLED: Final = "the client stopped reading beyond the time limit"
"""The reason of a request whose engine worked on while nobody read."""

NEVER: Final = datetime(9999, 1, 1, tzinfo=UTC)

CauseName = Literal[
    "back_door",
    "missing",
    "cut",
    "uncounted",
    "tokenized",
    "failed_attempt",
    "open",
    "abandoned",
    "edge",
    "restart",
    "rounded",
    "answers",
    "probes",
]


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one attempt at this backend.

    It began at or after `started`, and was over by `ended` (null: nobody knows). `first_token` is
    when its first token came. `failed` says why another attempt was made: then the usage is that of
    the other. `held_in` and `held_out` are the estimate of its prompt and the caller's own limit.
    """

    request_id: str
    key_id: str | None = None
    endpoint: str | None = None
    stream: bool = True
    state: str = "finished"
    outcome: str | None = None
    status: int | None = None
    reason: str | None = None
    basis: Basis = "none"
    usage: Usage = NOTHING_KNOWN
    started: datetime
    ended: datetime | None = None
    first_token: datetime | None = None
    failed: str | None = None
    held_in: int | None = None
    held_out: int | None = None
    answers: int = 1


class Several(msgspec.Struct, frozen=True):
    """Requests that asked for several answers: how many, the tokens of their prompts, and the same
    counted once for each answer."""

    requests: int = 0
    prompts: int = 0
    times: int = 0


class Whole(msgspec.Struct, frozen=True):
    """Requests that ran within the window and are known exactly: how many, and their tokens.

    `several` are those among them that asked for several answers.
    """

    requests: int = 0
    tokens: Mapping[str, int] = {}
    probes: int = 0
    several: Several = Several()


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """Why ledger and engine may part on one side.

    Because of these `requests` the engine may have counted up to `fewer` tokens less and up to
    `more` tokens more than the ledger holds.
    """

    name: CauseName
    requests: int = 0
    fewer: int = 0
    more: int = 0


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison of one window. `low` and `high` bound what the engine may have counted."""

    side: str
    counters: tuple[str, ...]
    engine: int
    ledger: int
    low: int
    high: int
    binds: bool
    causes: tuple[Cause, ...]
    but: str | None = None

    @property
    def difference(self) -> int:
        """What the engine counted beyond the ledger."""
        return self.engine - self.ledger

    @property
    def beyond(self) -> int:
        """How far the engine's count is outside of the bound: negative below, 0 within it."""
        if not self.binds:
            return 0
        return max(self.engine - self.high, 0) or min(self.engine - self.low, 0)


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """One backend between two readings. `readings` counts them; `requests` ran there.

    `longest` is the longest time between two of them, in seconds. `joined` are full hours that had
    no reading near them. `faults` counts readings that failed, `fault` says why the last one did.
    """

    backend_id: str
    engine: str
    start: datetime
    end: datetime
    readings: int
    longest: float
    requests: int
    restarts: tuple[Restart, ...]
    sides: tuple[Side, ...]
    joined: tuple[datetime, ...] = ()
    faults: int = 0
    fault: str | None = None

    @property
    def beyond(self) -> bool:
        """True if some side is outside of its bound."""
        return any(side.beyond for side in self.sides)


class Checked(msgspec.Struct, frozen=True):
    """The outcome of the last hours, computed `at` a moment: by backend and side, how many tokens
    the engine's count is beyond its bound; 0 where it is within."""

    at: datetime
    beyond: dict[str, dict[str, int]]


def checked(windows: Iterable[Window], at: datetime) -> Checked:
    """What `windows` come to together."""
    beyond: dict[str, dict[str, int]] = {}
    for window in windows:
        sides = beyond.setdefault(window.backend_id, {})
        for side in window.sides:
            if side.binds:
                sides[side.side] = sides.get(side.side, 0) + side.beyond
    return Checked(at, beyond)


class _Range(msgspec.Struct, frozen=True):
    """Tokens of one attempt: as the ledger has them, and at least and at most as the engine."""

    ledger: int
    low: int
    high: int


_NOTHING: Final = _Range(0, 0, 0)


def reckon(
    backend_id: str,
    span: Span,
    whole: Whole,
    ran: Iterable[Ran],
    failed: Sequence[Reading] = (),
) -> Window | None:
    """Compare what the engine counted over `span` with what ran there.

    `whole` and `ran` together are all attempts at this backend that may be in it, each in one of
    them; `failed` are readings that failed meanwhile. Null if there are no two readings.
    """
    line = span.line
    counting = counting_of(line[-1].counters) if len(line) > 1 else None
    if counting is None:
        return None
    start, end = line[0].at, line[-1].at
    did = moved(line)
    tallies = [_Tally(measure, counting, did, start, end) for measure in counting.measures]
    touched: set[str] = set()
    for one in ran:
        took = [tally.take(one) for tally in tallies]
        if any(took):
            touched.add(one.request_id)
    return Window(
        backend_id=backend_id,
        engine=counting.engine,
        start=start,
        end=end,
        readings=len(line),
        longest=max((b.at - a.at).total_seconds() for a, b in pairwise(line)),
        requests=whole.requests + len(touched),
        restarts=did.restarts,
        sides=tuple(tally.side(value_of(did.by, tally.measure), whole) for tally in tallies),
        joined=span.joined,
        faults=len(failed),
        fault=failed[-1].fault if failed else None,
    )


class _Tally:
    """Adds up one measure over the attempts of a window."""

    def __init__(
        self,
        measure: Measure,
        counting: Counting,
        did: Moved,
        start: datetime,
        end: datetime,
    ) -> None:
        self.measure = measure
        self._counting = counting
        self._restarts = did.restarts
        self._blur = blur(did.ends, measure, counting.digits)
        self._start, self._end = start, end
        self._ledger = self._low = self._high = 0
        self._causes: dict[CauseName, Cause] = {}

    def take(self, ran: Ran) -> bool:
        """Add one attempt. True if any of it is in this window."""
        notice = self._counting.notice if ran.stream else self._counting.plain_notice
        notice = timedelta(0) if _ended_in_error(ran) else notice
        amount, cause = _amount(ran, self.measure, notice)
        cut = amount.high > amount.ledger
        again = _again(Several(1, amount.high, amount.high * ran.answers), self.measure)
        if ran.answers > 1 and again:
            amount = msgspec.structs.replace(amount, high=amount.high + again)
            cause = cause or "answers"
        began, over = _when(ran, self.measure, notice, cut=cut)
        if over + EDGE <= self._start or began - EDGE >= self._end:
            return False
        within = began - EDGE >= self._start and over + EDGE <= self._end
        if not within:
            nominal = self._end if ran.ended is None else min(over, ran.ended)
            ledger = round(amount.ledger * _share(began, nominal, self._start, self._end))
            amount, cause = _Range(ledger, 0, amount.high), cause or "edge"
        lost = any(began - EDGE < gap.before and over + EDGE > gap.after for gap in self._restarts)
        if lost and amount.low:
            amount, cause = msgspec.structs.replace(amount, low=0), "restart"
        self._ledger += amount.ledger
        self._low += amount.low
        self._high += amount.high
        if ran.key_id == SYSTEM_KEY_ID:
            self._note("probes", _NOTHING)
        if cause is not None and (amount.low, amount.high) != (amount.ledger, amount.ledger):
            self._note(cause, amount)
        return True

    def _note(self, name: CauseName, amount: _Range) -> None:
        before = self._causes.get(name, Cause(name=name))
        self._causes[name] = Cause(
            name=name,
            requests=before.requests + 1,
            fewer=before.fewer + amount.ledger - amount.low,
            more=before.more + amount.high - amount.ledger,
        )

    def side(self, engine: int, whole: Whole) -> Side:
        """The comparison, with what is known exactly added on both sides."""
        exact = sum(whole.tokens.get(bucket, 0) for bucket in self.measure.buckets)
        low, high = self._low + exact - self._blur, self._high + exact + self._blur
        causes = dict(self._causes)
        again = _again(whole.several, self.measure)
        if again:
            known = causes.get("answers", Cause(name="answers"))
            number = known.requests + whole.several.requests
            causes["answers"] = Cause(name="answers", requests=number, more=known.more + again)
            high += again
        if self._blur:
            causes["rounded"] = Cause(name="rounded", fewer=self._blur, more=self._blur)
        if whole.probes:
            known = causes.get("probes", Cause(name="probes"))
            causes["probes"] = Cause(name="probes", requests=known.requests + whole.probes)
        if self._restarts and "restart" not in causes:
            causes["restart"] = Cause(name="restart")
        if self.measure.binds and engine > high:
            causes["back_door"] = Cause(name="back_door", more=engine - high)
        if self.measure.binds and engine < low:
            causes["missing"] = Cause(name="missing", fewer=low - engine)
        return Side(
            side=self.measure.side,
            counters=self.measure.counters,
            engine=engine,
            ledger=self._ledger + exact,
            low=low,
            high=high,
            binds=self.measure.binds,
            causes=tuple(sorted(causes.values(), key=_weight)),
            but=self.measure.but,
        )


def _again(several: Several, measure: Measure) -> int:
    """Tokens that a counter may hold beyond the usage of requests for several answers."""
    match measure.prompts:
        case "once":
            return 0
        case "each":
            return several.times - several.prompts
        case "each_and_once":
            return several.times


def _weight(cause: Cause) -> tuple[bool, int, str]:
    """The findings first, then by size."""
    return cause.name not in ("back_door", "missing"), -(cause.fewer + cause.more), cause.name


def _ended_in_error(ran: Ran) -> bool:
    """True if the engine said so and is not at work any more; 502 and 504 are said by proxies."""
    said = f"status {ran.status}" if ran.failed is None else ran.failed
    error = ran.failed is not None or (ran.status or 0) >= 400
    return error and said.startswith("status ") and said not in ("status 502", "status 504")


def _amount(ran: Ran, measure: Measure, notice: timedelta) -> tuple[_Range, CauseName | None]:
    """What one attempt may have cost on one side, wherever it stands in time, and why a range."""
    output = measure.buckets == OUTPUT
    never = makes_nothing(ran.endpoint, output=output)
    if never or ran.failed in ("unreachable", "own_limit"):
        return _NOTHING, None
    if ran.failed is not None:
        return _Range(0, 0, _most(ran, notice, output=output)), "failed_attempt"
    if ran.status is not None and 400 <= ran.status < 500 and ran.basis == "none":
        return _NOTHING, None
    known = _known(ran, measure)
    exact = ran.basis == "reported" and ran.state == "finished"
    if exact and known is not None:
        return _Range(known, known, known), None
    return _uncertain(ran, measure, notice, known, output=output)


def _uncertain(
    ran: Ran, measure: Measure, notice: timedelta, known: int | None, *, output: bool
) -> tuple[_Range, CauseName]:
    """The same for an attempt that the engine gave no final word of."""
    cause = _why(ran)
    if known is None:
        floor = sum(getattr(ran.usage, name) or 0 for name in measure.buckets)
        return _Range(floor, 0, max(floor, _most(ran, notice, output=output))), cause
    low = high = known
    if output:
        high += _late(ran, known, notice)
    elif ran.first_token is None and ran.outcome != "completed":
        low = 0
    if ran.basis == "tokenized":
        slack = _slack(known)
        low, high = max(0, low - slack), high + slack
    if ran.basis == "counted" and output:
        high = max(high, _most(ran, notice, output=True))
    if ran.usage.cached_in is None and not output and "cached_in" not in measure.buckets:
        low = 0
    if not measure.cut_counts and ran.outcome != "completed":
        low = 0
    return _Range(known, low, high), cause


def _slack(tokens: int) -> int:
    """By how much a tokenizer may part from what an engine read or made."""
    return 8 + tokens // 10


def _why(ran: Ran) -> CauseName:
    if ran.state == "open":
        return "open"
    if ran.state == "abandoned":
        return "abandoned"
    if ran.basis in ("none", "counted", "reported"):
        return "uncounted"
    if ran.basis == "tokenized":
        return "tokenized"
    return "cut"


def _known(ran: Ran, measure: Measure) -> int | None:
    """The tokens of a measure's buckets; null if nobody knows one of them.

    What was cached is only known from the engine itself. Where it is not, `uncached_in` is the
    whole prompt, of which either part may be any.
    """
    counts = [getattr(ran.usage, name) for name in measure.buckets]
    if measure.buckets == OUTPUT:
        return None if counts[1] is None else (counts[0] or 0) + counts[1]
    if "uncached_in" not in measure.buckets:
        return None if None in counts else sum(counts)
    return None if ran.usage.uncached_in is None else sum(count or 0 for count in counts)


def _late(ran: Ran, known: int, notice: timedelta) -> int:
    """Tokens that an engine may have made of a cut request beyond the last that was seen."""
    left = CONTEXT_MAX if ran.held_out is None else max(0, ran.held_out - known)
    if ran.outcome == "completed":
        return 0
    unseen = ran.state != "finished" or ran.outcome == "timeout" or ran.reason == STALLED
    if unseen or ran.ended is None:
        return min(left, max(LATE_TOKENS_MIN, _most(ran, notice, output=True) - known))
    took = (ran.ended - (ran.first_token or ran.started)).total_seconds()
    rate = known / took if took > 0 else RATE_MAX
    late = math.ceil(min(rate, RATE_MAX) * notice.total_seconds())
    return min(left, max(LATE_TOKENS_MIN, late))


def _most(ran: Ran, notice: timedelta, *, output: bool) -> int:
    """The most tokens that an attempt can have cost on one side, if nobody counted them."""
    if not output:
        if ran.usage.uncached_in is not None:
            prompt = sum(getattr(ran.usage, name) or 0 for name in INPUT)
            return prompt if ran.basis in ("reported", "running") else prompt + _slack(prompt)
        if ran.held_in is None:
            return CONTEXT_MAX
        # The estimate is a quarter of the body's bytes, and a token has a byte at least.
        return min(CONTEXT_MAX, 4 * ran.held_in + TEMPLATE_TOKENS_MAX)
    most = CONTEXT_MAX
    if ran.ended is not None:
        seconds = (ran.ended - ran.started + notice).total_seconds()
        most = min(most, math.ceil(max(0.0, seconds) * RATE_MAX))
    return most if ran.held_out is None else min(most, ran.held_out)


def _when(ran: Ran, measure: Measure, notice: timedelta, *, cut: bool) -> tuple[datetime, datetime]:
    """Between when the counter moved for this attempt."""
    started = ran.started
    ended = NEVER if ran.ended is None else max(ran.ended, started)
    first = ran.first_token
    over = ended + notice if cut and ended < NEVER - notice else ended
    match measure.moves:
        case "at_first_token":
            return (first, first) if first is not None else (started, ended)
        case "during_prompt":
            return started, first if first is not None else over
        case "as_made":
            return first or started, over
        case "at_end":
            return (started if ended == NEVER else ended), over


def _share(began: datetime, over: datetime, start: datetime, end: datetime) -> float:
    """Which part of the time from `began` to `over` is within the window."""
    if over <= began:
        return float(start <= began < end)
    within = min(over, end) - max(began, start)
    return max(0.0, within / (over - began))
