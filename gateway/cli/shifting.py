"""Whether a rolling update may go on, by what gateways say of old and new backends. Pure."""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from math import exp, lgamma
from typing import Final, Literal

import msgspec

from ledger.folds.routing import RoutingView
from ledger.words import counted

CHANCE_MAX: Final = 0.01
"""More failures than the old backends have count as worse if they would come by chance less often
than this."""

FAILURES_MIN: Final = 3
"""One failure may be anything, where there is nothing to compare it with."""

SLOWER_US_MIN: Final = 50_000
"""A first token that comes later by less than this is not worth a word, whatever the ratio."""

Verdict = Literal["good", "few", "slow", "bad"]
"""good   nothing is worse
few    too few requests to tell
slow   first tokens come later: hold, and roll back if it stays so
bad    more failures, or gateways do not reach it: roll back at once
"""


class Pace(msgspec.Struct, frozen=True):
    """What gateways had of some backends in a while. `first_token_us`: the mean of what gateways
    have last, by their requests; null if none has any."""

    requests: int = 0
    failures: int = 0
    first_token_us: int | None = None


class Limits(msgspec.Struct, frozen=True):
    """What is taken for worse: failures above `failures_max` (a part of all) that chance does not
    explain, and first tokens `slower_max` times later. `requests_min` are needed to tell."""

    failures_max: float = 0.01
    slower_max: float = 1.5
    requests_min: int = 20


class Judged(msgspec.Struct, frozen=True):
    verdict: Verdict
    words: str


def pace(
    before: Mapping[tuple[str, str], RoutingView],
    views: Iterable[RoutingView],
    backends: Collection[str],
    now: datetime,
) -> Pace:
    """What was at `backends` since the views `before`. A gateway that started anew counts from its
    start, and one whose view has run out does not count."""
    requests = failures = weighted = told = 0
    for view in views:
        if view.backend_id not in backends or view.expires_at <= now:
            continue
        was = before.get((view.backend_id, view.gateway))
        same = was is not None and was.source == view.source
        came = view.requests - (was.requests if was is not None and same else 0)
        requests += came
        failures += view.failures - (was.failures if was is not None and same else 0)
        if view.first_token_us is not None and came:
            weighted += view.first_token_us * came
            told += came
    return Pace(requests, failures, weighted // told if told else None)


def unreached(
    views: Iterable[RoutingView], backends: Collection[str], now: datetime
) -> tuple[str, ...]:
    """Which of `backends` no gateway reaches that tells of them, with the reason that one gives."""
    told: dict[str, list[RoutingView]] = {name: [] for name in backends}
    for view in views:
        if view.backend_id in told and view.expires_at > now:
            told[view.backend_id].append(view)
    return tuple(
        f"{name}: {seen[0].fault or 'down'}" if seen else f"{name}: no gateway tells of it"
        for name, seen in told.items()
        if not any(view.up for view in seen)
    )


def judge(old: Pace, new: Pace, limits: Limits) -> Judged:
    """Whether the new backends do worse than the old ones.

    More failures: the part of failures is above the limit, and of all draws of so many failures
    from both together, fewer than `CHANCE_MAX` give the new ones so many (Fisher's exact test, one
    side); where the old ones have too few to compare with, `FAILURES_MIN` are enough.
    Slower: the mean of first tokens is above the old one's by the factor, and by at least
    `SLOWER_US_MIN`.
    """
    if old.requests < limits.requests_min:
        worse = new.failures >= FAILURES_MIN
    else:
        worse = chance(old, new) < CHANCE_MAX
    if worse and new.failures > limits.failures_max * new.requests:
        return Judged(
            "bad",
            f"{new.failures} of {counted(new.requests, 'request')} failed at the new, "
            f"{old.failures} of {old.requests} at the old",
        )
    if new.requests < limits.requests_min:
        few = counted(new.requests, "request is", "requests are")
        return Judged("few", f"{few} too few to tell")
    was, now = old.first_token_us, new.first_token_us
    if was is None or now is None or now <= max(was * limits.slower_max, was + SLOWER_US_MIN):
        return Judged(
            "good", f"{counted(new.requests, 'request')} at the new, {new.failures} failed"
        )
    return Judged(
        "slow",
        f"the first token takes {now / 1000:.0f} ms at the new, {was / 1000:.0f} ms at the old",
    )


def chance(old: Pace, new: Pace) -> float:
    """How likely the new ones have so many of all failures, or more, if they are no worse."""
    total, failed = old.requests + new.requests, old.failures + new.failures
    if not new.failures or not total:
        return 1.0
    # A request may fail in another while than it came in, so there may be more of these.
    failed, least = min(failed, total), min(new.failures, new.requests)
    most, all_ways = min(new.requests, failed), _ways(total, failed)
    return sum(
        exp(_ways(new.requests, count) + _ways(old.requests, failed - count) - all_ways)
        for count in range(max(least, failed - old.requests), most + 1)
    )


def _ways(many: int, few: int) -> float:
    """The logarithm of the number of ways to take `few` out of `many`."""
    return lgamma(many + 1) - lgamma(few + 1) - lgamma(many - few + 1)


def together(one: Pace, other: Pace) -> Pace:
    """Both, the first token of `other` if it has one."""
    later = one.first_token_us if other.first_token_us is None else other.first_token_us
    return Pace(one.requests + other.requests, one.failures + other.failures, later)


def worst(one: Pace, other: Pace) -> Pace:
    """Both, the later first token of the two: what new ones are held against, since the old ones
    become faster as they get less to do."""
    told = [each for each in (one.first_token_us, other.first_token_us) if each is not None]
    first = max(told, default=None)
    return Pace(one.requests + other.requests, one.failures + other.failures, first)
