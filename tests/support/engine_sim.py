"""A simulated engine with counters like a real one's, and what a gateway would write of it.

Every token has a moment at which the engine counts it; a restart sets the counters to zero and
takes what was at work with it. The simulation keeps the truth; the reconciliation must find it.
"""

import random
from bisect import bisect_right
from datetime import datetime, timedelta
from itertools import accumulate
from typing import Any, Final

import msgspec

from ledger.events import Usage
from ledger.folds.counters import COUNTINGS, Counting, Reading
from ledger.folds.reconcile import Ran
from tests.support.events import START

SECONDS = 2 * 3600
"""How long a simulated engine is watched."""

ZERO: Final = START.replace(minute=0)
LLAMA: Final = COUNTINGS[0]

Tick = tuple[float, str, int]
"""When, which side's counter, by how many tokens."""


def at(start: datetime, seconds: float) -> datetime:
    return start + timedelta(seconds=seconds)


def llama(seconds: float, prompt: int = 0, cached: int = 0, out: int = 0, **more: Any) -> Reading:
    """What llama.cpp says of itself at a moment."""
    counters = dict(
        zip([m.counters[0] for m in LLAMA.measures], (prompt, cached, out), strict=True)
    )
    return Reading(at=at(ZERO, seconds), gateway="g", counters=counters, **more)


class Sim(msgspec.Struct):
    """One engine's life. `restarts` are moments; `ticks` is what it counted."""

    counting: Counting
    start: datetime
    dice: random.Random
    restarts: list[float]
    ticks: list[Tick] = []
    ran: list[Ran] = []
    sums: dict[str, tuple[list[float], list[int]]] = {}

    def request(self, number: int) -> None:
        """One request through the gateway, whole or cut at any moment."""
        dice = self.dice
        began = dice.uniform(0, SECONDS - 1)
        prompt, cached = dice.randrange(1, 500), 0
        if dice.random() < 0.5:
            cached = dice.randrange(prompt)
        wanted, rate = dice.randrange(1, 400), dice.choice((5, 50, 400))
        first = began + dice.uniform(0.05, 4)
        made = [first + n / rate for n in range(wanted)]
        crash = next((when for when in self.restarts if when > began), None)
        leaves = dice.uniform(began, made[-1] + 1) if dice.random() < 0.4 else None
        notice = dice.uniform(0, min(2.0, self.counting.notice.total_seconds()))
        lost = crash is not None and crash < made[-1] and (leaves is None or crash < leaves)
        cut = crash if lost else leaves
        seen = [when for when in made if cut is None or when < cut]
        stop = made[-1] if cut is None else cut if lost else min(cut + notice, made[-1])
        if leaves is not None and crash is not None and not lost:
            stop = min(stop, crash)
        whole = len(seen) == wanted and not lost
        forgotten = cut is not None and not whole and dice.random() < 0.5
        done = [when for when in made if when <= stop]
        self._count(prompt, cached, done, began, first, stop, crash, forgotten)
        known = bool(seen)
        usage = Usage(
            uncached_in=prompt - cached if known else None,
            cached_in=cached if known else None,
            cache_write_in=0 if known else None,
            reasoning_out=0 if known else None,
            other_out=len(seen) if known else None,
        )
        basis = "reported" if whole else "running" if known else "none"
        self.ran.append(
            Ran(
                request_id=f"r{number}",
                outcome="completed" if whole else "backend_lost" if lost else "client_gone",
                basis=basis,  # type: ignore[arg-type]
                usage=usage,
                started=at(self.start, began),
                ended=at(self.start, made[-1] if whole else cut or made[-1]),
                first_token=at(self.start, first) if known else None,
                held_in=prompt,
                held_out=wanted,
            )
        )

    def _count(
        self,
        prompt: int,
        cached: int,
        made: list[float],
        began: float,
        first: float,
        stop: float,
        crash: float | None,
        forgotten: bool,
    ) -> None:
        """What the engine's counters move by for one request, each at its moment. One that was
        stopped is `forgotten` by counters that may do so."""
        for measure in self.counting.measures:
            if forgotten and not measure.cut_counts:
                continue
            total = {
                "in": prompt,
                "uncached_in": prompt - cached,
                "cached_in": cached,
                "out": len(made),
            }[measure.side]
            if measure.side == "out" and measure.moves == "as_made":
                self.ticks += [(when, "out", 1) for when in made]
            elif measure.moves == "at_end":
                # A crash takes what would have been counted at the end with it.
                if crash is None or stop < crash:
                    self.ticks.append((stop, measure.side, total))
            elif stop >= first:
                when = first if measure.moves == "at_first_token" else (began + first) / 2
                self.ticks.append((when, measure.side, total))

    def back_door(self, when: float, side: str, tokens: int) -> None:
        self.ticks.append((when, side, tokens))

    def reading(self, when: float, gateway: str, skew: float) -> Reading:
        """The counters as a reading at `when` finds them."""
        began = max((r for r in self.restarts if r <= when), default=0.0)
        counters = {
            measure.counters[0]: self._total(measure.side, when) - self._total(measure.side, began)
            for measure in self.counting.measures
        }
        told = self.counting.engine == "vllm"
        return Reading(
            at=at(self.start, when + skew),
            gateway=gateway,
            counters=counters,
            process_started=at(self.start, began) if told else None,
        )

    def _total(self, side: str, when: float) -> int:
        """What was counted on one side up to `when`."""
        if not self.sums:
            for name in {measure.side for measure in self.counting.measures}:
                mine = sorted((moment, tokens) for moment, of, tokens in self.ticks if of == name)
                totals = list(accumulate(tokens for _, tokens in mine))
                self.sums[name] = [moment for moment, _ in mine], [0, *totals]
        moments, totals = self.sums[side]
        return totals[bisect_right(moments, when)]

    def readings(self, every: float, missed: float) -> list[Reading]:
        """What two gateways read, each with its own clock; some readings fail."""
        found = []
        for gateway, skew in (("a", 0.0), ("b", self.dice.uniform(-1, 1))):
            when = self.dice.uniform(0, every)
            while when < SECONDS:
                if self.dice.random() >= missed:
                    found.append(self.reading(when, gateway, skew))
                else:
                    found.append(
                        Reading(at=at(self.start, when + skew), gateway=gateway, fault="no answer")
                    )
                when += every
        self.dice.shuffle(found)
        return found


def simulated(seed: int, start: datetime, requests: int = 25) -> Sim:
    """An engine of some kind that served some requests and restarted at most twice."""
    dice = random.Random(seed)
    restarts = sorted(dice.uniform(60, SECONDS - 60) for _ in range(dice.choice((0, 0, 1, 2))))
    sim = Sim(dice.choice(COUNTINGS), start, dice, restarts)
    for number in range(requests):
        sim.request(number)
    return sim
