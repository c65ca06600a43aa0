"""Whether each backend gets the part of the requests that it should: pure, and exact for any number
of picks, be it ten or ten million.

Two questions. Does the draw keep to its own odds (`Draws`)? And does a gateway that was started
again send its requests where it sent them before (`moved`)?
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import chain
from math import exp, log, sqrt
from typing import Final

Odds = tuple[tuple[float, tuple[str, ...]], ...]
"""How one draw stood, as `Choice.odds` has it."""

FALSE_ALARMS: Final = 1e-6
"""The chance that a whole window of a gateway, or one of its starts, is called off though all is as
it should be. With a window each hour, that is once in a hundred years of one gateway."""

FACTORS: Final = (1.05, 1.1, 1.25, 1.5, 2.0, 4.0, 16.0)
"""A backend is suspected of having so many times its odds, or of having so many times too little.
A skew between two of them is found too, a little later."""

MARGIN: Final = 0.05
"""A share may move by 5 points over a restart: load changes meanwhile, and so do the engines."""

LOOKS: Final = 6
"""So often may one start be looked at."""

_TILTS: Final = tuple(log(factor) for factor in chain(FACTORS, (1 / one for one in FACTORS)))


class Draws:
    """What one backend could expect of a window of draws, and what it got. Counts of requests.

    The test: under odds p, the likelihood of the picks if the backend had e^t times its odds, over
    their likelihood as it is, is the product of e^(t x picked) / (1 - p + p e^t). Each of these is
    a martingale that begins at 1, and so is their mean over all suspicions t. By Ville's inequality
    it ever reaches 1/a with a chance of at most a. So it may be looked at after every pick; no
    number of picks is too small, and nothing is taken to be normal or independent: odds may change
    with each pick, and by what was picked before.
    """

    __slots__ = ("_norms", "expected", "picks")

    def __init__(self) -> None:
        self.picks = 0
        self.expected = 0.0
        self._norms = [0.0] * len(_TILTS)

    def add(self, picks: int, odds: Mapping[float, int]) -> None:
        """Take in draws: how many chose this backend, and how many gave it which odds, 0 to 1."""
        self.picks += picks
        for part, number in odds.items():
            if number:
                self.expected += part * number
                for at, norm in enumerate(_norms(part)):
                    self._norms[at] += norm * number

    def doubt(self) -> float:
        """The natural logarithm of the test's mean: 0 at the start, high if the share is off."""
        logs = [tilt * self.picks - norm for tilt, norm in zip(_TILTS, self._norms, strict=True)]
        most = max(logs)
        return most + log(sum(exp(one - most) for one in logs) / len(logs))

    def off(self, backends: int, chance: float = FALSE_ALARMS) -> bool:
        """True if the share is off. Of `backends` that are judged so, one is called off wrongly
        with at most `chance` in the whole window, however often this is asked."""
        return self.doubt() >= log(max(backends, 1) / chance)


def parts(drawn: Mapping[Odds, int]) -> dict[str, Counter[float]]:
    """Of counted odds: for each backend, how many draws gave it which part.

    A backend that stands in several groups of one draw has the sum of what they give it.
    """
    found: dict[str, Counter[float]] = {}
    spread: Counter[tuple[float, tuple[str, ...]]] = Counter()
    for odds, number in drawn.items():
        if not odds:
            continue
        # Most backends are in the widest group alone, and that one is much the same each time: so
        # it is spread out once for all draws, and each draw only corrects the few others.
        wide = max(odds, key=_width)
        even = wide[0] / len(wide[1])
        spread[even, wide[1]] += number
        beside: dict[str, float] = {}
        for group in odds:
            if group is not wide:
                each = group[0] / len(group[1])
                for name in group[1]:
                    beside[name] = beside.get(name, 0.0) + each
        for name, part in beside.items():
            counts = found.setdefault(name, Counter())
            if name in wide[1]:
                counts[even] -= number
                part += even
            counts[part] += number
    for (even, names), number in spread.items():
        for name in names:
            found.setdefault(name, Counter())[even] += number
    return found


def shares(counts: Mapping[str, float], among: Iterable[str]) -> dict[str, float]:
    """The part, 0 to 1, that each of `among` has of what they have together; none without any."""
    held = {name: counts.get(name, 0) for name in among}
    total = sum(held.values())
    return {name: count / total for name, count in held.items()} if total else {}


def moved(
    before: Mapping[str, int],
    after: Mapping[str, int],
    *,
    margin: float = MARGIN,
    looks: int = LOOKS,
    chance: float = FALSE_ALARMS,
) -> dict[str, tuple[float, float]]:
    """The backends whose share moved over a restart by more than `margin`: share before and after.

    Given are picks. Only backends in both are compared, by their part of what these had together.
    With n picks before and m after, one whose share moved by at most `margin` is called off with a
    chance of at most 2 exp(-2 e² / (1/n + 1/m)) if it must differ by more than `margin` + e
    (Hoeffding, Azuma); e is made such that over all backends, and all `looks` at one start, this
    adds up to `chance`. It holds for any n and m; small ones can only show what is far off.
    """
    among = sorted(before.keys() & after.keys())
    was, now = shares(before, among), shares(after, among)
    if len(among) < 2 or not was or not now:
        return {}
    picks = 1 / sum(before[name] for name in among) + 1 / sum(after[name] for name in among)
    room = margin + sqrt(log(2 * len(among) * looks / chance) * picks / 2)
    return {name: (was[name], now[name]) for name in among if abs(was[name] - now[name]) > room}


def _width(group: tuple[float, tuple[str, ...]]) -> int:
    return len(group[1])


@lru_cache(maxsize=4096)
def _norms(part: float) -> tuple[float, ...]:
    """log(1 - p + p e^t) for each suspicion t."""
    part = min(max(part, 0.0), 1.0)
    return tuple(log(1 - part + part * exp(tilt)) for tilt in _TILTS)
