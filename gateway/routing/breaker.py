"""When a backend gets requests, and how many: a circuit breaker for one gateway's view of it. Pure.

closed     it gets its share
open       it gets none, until a probe says that it works again
half_open  it gets a few trials, and nothing more until they were answered

Only faults of the server are told to it. They fade, so that no backend pays for long for what is
over; none waits by a clock, so that one which recovered has requests within one interval of probes;
and it comes back by a share that rises, since a server with cold caches that gets everything at
once fails again. Times are seconds of a monotonic clock, given as arguments.
"""

from typing import Final, Literal

import msgspec

State = Literal["closed", "open", "half_open"]

HALF_LIFE_SECONDS: Final = 10.0
"""After this time an attempt, good or bad, counts half."""

IN_A_ROW: Final = 3
"""Faults without one success in between that open it, however far apart they are: a server that
hangs fails one request in each time limit, which is minutes."""

FAULTS_MIN: Final = 5.0
"""Faded faults from which their part of all attempts is believed."""

FAULTS_PART: Final = 0.5
"""The part of faded attempts that failed from which on it opens."""

CALM_SECONDS: Final = 0.25
"""So long the successes of a backend without faults may be counted before they are told. To tell
each by itself would cost a hundredth of all requests/s."""

FAULTS_FORGOTTEN: Final = 0.01
"""Faded faults below this are none: it takes 70 s for one."""

TRIALS: Final = 4
"""Requests that may wait for their first token at a backend that is half open, all gateways
together."""

ANSWERED_MIN: Final = 2
"""Trials that must be answered before it closes."""

SHARE_FIRST: Final = 0.1
RISE_SECONDS: Final = 10.0
"""Closed again, it gets a tenth of its share, and in even steps of time all of it."""


class Breaker(msgspec.Struct, frozen=True):
    """The state, and what it is judged by.

    `tried` and `faults` are faded counts of attempts that ended, as they were at `counted_at`;
    `in_a_row` counts faults since the last success. `since` is when the state began. `period`
    counts the times that it was half open, `trials` are those of this period that wait for their
    first token, `answered` those that had it. `share` is what of its share it had at `since`.
    `sure`: it was opened by a probe, or by a fault that needs no second one; a model list is then
    enough to try it again. What requests made of it is only undone by a generation. `proven`: since
    it closed, one answer at least was whole; before that its share does not rise, since a server
    may give first tokens and then fall silent, which is known only after a limit.
    """

    state: State = "closed"
    since: float = 0.0
    tried: float = 0.0
    faults: float = 0.0
    counted_at: float = 0.0
    in_a_row: int = 0
    period: int = 0
    trials: int = 0
    answered: int = 0
    share: float = 1.0
    sure: bool = True
    proven: bool = True


def failed(breaker: Breaker, now: float, *, sure: bool = False) -> Breaker:
    """A request met a fault of the server. `sure`: nothing listens there, so one is enough.

    Half open, or while its share still rises, one fault opens it again.
    """
    tried, faults = _faded(breaker, now)
    after = msgspec.structs.replace(
        breaker,
        tried=tried + 1,
        faults=faults + 1,
        counted_at=now,
        in_a_row=breaker.in_a_row + 1,
    )
    if breaker.state == "open":
        return after
    frail = share(breaker, now) < 1
    often = faults + 1 >= FAULTS_MIN and faults + 1 >= FAULTS_PART * (tried + 1)
    if sure or frail or often or after.in_a_row >= IN_A_ROW:
        return _opened(after, now, sure=sure)
    return after


def is_calm(breaker: Breaker, now: float) -> bool:
    """True if one more success changes only how many there were, and those of a moment ago are
    told: then it may wait and be told with the next."""
    return (
        breaker.counted_at <= now < breaker.counted_at + CALM_SECONDS
        and not breaker.faults
        and breaker.state == "closed"
        and breaker.share >= 1
        and breaker.proven
    )


def succeeded(breaker: Breaker, now: float, answers: int = 1) -> Breaker:
    """So many requests were answered whole. One that began before it opened says nothing of it
    now."""
    if breaker.state == "open":
        return breaker
    tried, faults = _faded(breaker, now)
    if faults < FAULTS_FORGOTTEN:
        faults = 0.0
    first = breaker.state == "closed" and not breaker.proven
    return Breaker(
        breaker.state,
        now if first else breaker.since,
        tried + answers,
        faults,
        now,
        0,
        breaker.period,
        breaker.trials,
        breaker.answered,
        # Once it has risen nobody need reckon it again.
        1.0 if breaker.share < 1 <= share(breaker, now) else breaker.share,
        breaker.sure,
        breaker.proven or first,
    )


def probed(breaker: Breaker, ok: bool, now: float, *, generated: bool = False) -> Breaker:
    """A probe of the gateway's own came back. `generated`: it was for a token, and not only for the
    list of models."""
    if not ok:
        return breaker if breaker.state == "open" else _opened(breaker, now, sure=not generated)
    if breaker.state != "open" or not (breaker.sure or generated):
        return breaker
    return msgspec.structs.replace(
        breaker, state="half_open", since=now, period=breaker.period + 1, trials=0, answered=0
    )


def began(breaker: Breaker) -> tuple[Breaker, int | None]:
    """A request goes to it: the breaker, and the period of which it is a trial; null: of none."""
    if breaker.state != "half_open":
        return breaker, None
    return msgspec.structs.replace(breaker, trials=breaker.trials + 1), breaker.period


def ended(breaker: Breaker, period: int | None) -> Breaker:
    """A trial of `period` gave its place back; what an older period began is gone already."""
    if period is None or breaker.state != "half_open" or breaker.period != period:
        return breaker
    return msgspec.structs.replace(breaker, trials=breaker.trials - 1)


def answered(breaker: Breaker, period: int | None, now: float) -> Breaker:
    """A trial of `period` has its first token, and so gives its place back. Enough of them close
    it."""
    breaker = ended(breaker, period)
    if period is None or breaker.state != "half_open" or breaker.period != period:
        return breaker
    if breaker.answered + 1 < ANSWERED_MIN:
        return msgspec.structs.replace(breaker, answered=breaker.answered + 1)
    # What it did before it was down is over: the faults of then must not open it now.
    return Breaker(
        "closed", now, counted_at=now, period=breaker.period, share=SHARE_FIRST, proven=False
    )


def share(breaker: Breaker, now: float) -> float:
    """The part of its share that it gets, 0–1: all or none, or rising since it closed again.

    Closed: min(1, s + (now − since) / RISE_SECONDS × (1 − SHARE_FIRST)), with s the share that it
    began with, from its first whole answer on; s before that. Half open the trials bound it, and
    `SHARE_FIRST` is what it begins with.
    """
    if breaker.state == "closed":
        if breaker.share >= 1 or not breaker.proven:
            return breaker.share
        risen = max(now - breaker.since, 0.0) / RISE_SECONDS * (1 - SHARE_FIRST)
        return min(1.0, breaker.share + risen)
    return 0.0 if breaker.state == "open" else SHARE_FIRST


def trials_left(breaker: Breaker, gateways: int = 1) -> int | None:
    """How many trials may begin at once; null if it is not half open.

    `TRIALS` divided by the gateways that live, rounded down, but one for each at least: so many
    that with more gateways than trials there are as many as gateways.
    """
    if breaker.state != "half_open":
        return None
    return max(max(1, TRIALS // max(gateways, 1)) - breaker.trials, 0)


def may_try(breaker: Breaker, gateways: int = 1) -> bool:
    """True if a request may go to it now."""
    return breaker.state == "closed" or bool(trials_left(breaker, gateways))


def error_score(breaker: Breaker, now: float) -> float:
    """The part of attempts that failed of late, 0–1: faults / max(tried, 1), both faded, so that it
    goes to nothing by itself."""
    tried, faults = _faded(breaker, now)
    return faults / max(tried, 1.0)


def restored(state: State, had: float, now: float, *, fresh: bool) -> Breaker:
    """The breaker of a backend as a view of it said: `state`, and `had` of its share.

    An old view never means that it is down: what was open is then half open, so that it is tried,
    and not by everybody at once.
    """
    if state == "open":
        if fresh:
            return Breaker("open", now, counted_at=now, sure=False)
        state = "half_open"
    if state == "half_open":
        return Breaker("half_open", now, counted_at=now, period=1)
    return Breaker("closed", now, counted_at=now, share=min(max(had, SHARE_FIRST), 1.0))


def _opened(breaker: Breaker, now: float, *, sure: bool) -> Breaker:
    return msgspec.structs.replace(
        breaker, state="open", since=now, trials=0, answered=0, share=1.0, sure=sure, proven=True
    )


def _faded(breaker: Breaker, now: float) -> tuple[float, float]:
    """`tried` and `faults` as they count now."""
    if not breaker.tried:
        return 0.0, 0.0
    part = 0.5 ** (max(now - breaker.counted_at, 0.0) / HALF_LIFE_SECONDS)
    return breaker.tried * part, breaker.faults * part
