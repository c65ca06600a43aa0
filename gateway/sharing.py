"""Watches the shares of one serving process, always and after each start: what its draws promised
each backend against what it picked, and the first minute against the last one before.

It costs the path of a request one count. All else is done at the heartbeat.
"""

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime

import msgspec

from gateway.routing.shares import FALSE_ALARMS, LOOKS, Draws, moved, parts, shares
from gateway.stats import Stats
from ledger.clock import Clock
from ledger.folds.routing import RoutingView

log = logging.getLogger("tollbook.routing")

SLOT_SECONDS = 10.0
SLOTS = 6
"""What is told of shares is the last minute, in steps of ten seconds."""

WINDOW_SECONDS = 3600.0
"""The draw is judged over so long, and then anew: the chance of a false alarm is one of each hour.
That finds what is a little off."""

SHORT_SECONDS = 60.0
"""It is judged over so long too: a fault that came just now does not hide behind what went well
before. The hour, and all the minutes in it, have each half of the chance of a false alarm."""

CHANCES = {
    WINDOW_SECONDS: FALSE_ALARMS / 2,
    SHORT_SECONDS: FALSE_ALARMS / 2 * SHORT_SECONDS / WINDOW_SECONDS,
}

OFF_SECONDS = 300.0
"""A share stays off for so long after it was last found to be."""


BEFORE_SECONDS = 3600.0
"""Shares of a process that ended longer ago say little of how they should be now."""


class Told(msgspec.Struct, frozen=True):
    """What is told of one backend: requests that were sent there in the last `seconds`, what the
    odds promised, its share before this start (0 to 1), and why it is off, null if it is not."""

    picks: int = 0
    expected: float = 0.0
    seconds: float = 0.0
    before: float | None = None
    off: str | None = None


class Sharing:
    """The shares of one process. `before` gives each backend's picks in the last minute of the
    process before it, nothing if there was none; it is asked for as long as it matters."""

    def __init__(
        self, stats: Stats, clock: Clock, before: Callable[[], Mapping[str, int]] = dict
    ) -> None:
        self._stats = stats
        self._clock = clock
        self._before = before
        self._seen: Counter[str] = Counter()
        now = clock.monotonic()
        self._slots: deque[_Slot] = deque([_Slot(now)], maxlen=SLOTS)
        self._windows = {seconds: _Window(now) for seconds in CHANCES}
        self._started = now
        self._looked = 0
        self._off: dict[str, tuple[float, str]] = {}

    def tick(self) -> None:
        """Take in what was drawn since the last time, and judge it."""
        now = self._clock.monotonic()
        for seconds, window in self._windows.items():
            if now - window.began >= seconds:
                self._windows[seconds] = _Window(now)
        if self._stats.drawn:
            self._fold()
            self._judge_draws(now)
        if self._looked < LOOKS and now - self._started >= SLOT_SECONDS * (self._looked + 1):
            # Before the first slot may be dropped: so far it is all since the start.
            self._looked += 1
            self._judge_start(now)
        if now - self._slots[-1].began >= SLOT_SECONDS:
            self._slots.append(_Slot(now))

    def told(self, backend_id: str) -> Told:
        """How the share of one backend stands."""
        now = self._clock.monotonic()
        until, words = self._off.get(backend_id, (now, ""))
        before = self._before()
        return Told(
            sum(slot.picks[backend_id] for slot in self._slots),
            sum(slot.expected.get(backend_id, 0.0) for slot in self._slots),
            now - self._slots[0].began,
            shares(before, before).get(backend_id),
            words if now < until else None,
        )

    def gauges(self) -> Iterable[tuple[str, str, dict[str, str], float]]:
        """The metrics of each backend that was drawn in the last minute or is off."""
        now = self._clock.monotonic()
        picks, expected = self._recent()
        off = {name for name, (until, _) in self._off.items() if now < until}
        measured, promised = shares(picks, picks), shares(expected, expected)
        for name in sorted(expected.keys() | off):
            label = {"backend": name}
            yield "tollbook_share_off", "1 if its share of the picks is off.", label, name in off
            if name in promised:
                about = "Its part of the picks of the last minute, 0 to 1."
                yield "tollbook_share_measured", about, label, measured.get(name, 0.0)
                about = "What the odds of these picks promised it, 0 to 1."
                yield "tollbook_share_expected", about, label, promised[name]

    def _recent(self) -> tuple[Counter[str], dict[str, float]]:
        picks: Counter[str] = Counter()
        expected: dict[str, float] = {}
        for slot in self._slots:
            picks.update(slot.picks)
            for name, part in slot.expected.items():
                expected[name] = expected.get(name, 0.0) + part
        return picks, expected

    def _fold(self) -> None:
        drawn, self._stats.drawn = self._stats.drawn, Counter()
        total: Counter[str] = Counter()
        for (name, how), count in self._stats.picks.items():
            if how != "asked":
                total[name] += count
        picks, self._seen = total - self._seen, total
        odds, slot = parts(drawn), self._slots[-1]
        for name in odds.keys() | picks.keys():
            counts = odds.get(name, Counter())
            for window in self._windows.values():
                window.draws.setdefault(name, Draws()).add(picks[name], counts)
            promised = sum(part * number for part, number in counts.items())
            slot.expected[name] = slot.expected.get(name, 0.0) + promised
            slot.picks[name] += picks[name]

    def _judge_draws(self, now: float) -> None:
        for seconds, window in self._windows.items():
            draws = window.draws
            off = [name for name, one in draws.items() if one.off(len(draws), CHANCES[seconds])]
            if not off:
                continue
            number = sum(one.picks for one in draws.values())
            for name in sorted(off):
                one = draws[name]
                self._call_off(
                    name,
                    f"it got {one.picks / number:.1%} of {number:,} picks, and its odds were "
                    f"{one.expected / number:.1%}",
                    now,
                )
            # What was found is said; whether it goes on is asked anew.
            self._windows[seconds] = _Window(now)

    def _judge_start(self, now: float) -> None:
        before, after = self._before(), self._recent()[0]
        for name, (was, came) in moved(before, after).items():
            self._call_off(
                name,
                f"it got {came:.1%} of {after.total():,} picks since this start, and {was:.1%} "
                "in the last minute before it",
                now,
            )
        if self._looked == LOOKS and before and after:
            then, here = shares(before, before), shares(after, after)
            words = ", ".join(
                f"{name} {here.get(name, 0):.1%} (before {then.get(name, 0):.1%})"
                for name in sorted(then.keys() | here.keys())
            )
            log.info("shares in the first minute after this start: %s", words)

    def _call_off(self, name: str, words: str, now: float) -> None:
        if self._off.get(name, (now, ""))[0] <= now:
            log.warning("the share of backend %s is off: %s; see `tollbook shares`", name, words)
        self._off[name] = now + OFF_SECONDS, words


def picks_before(views: Iterable[RoutingView], now: datetime) -> dict[str, int]:
    """Each backend's picks in the last minute of a process that ended, by its last views; those
    that are too old to be compared with what comes now are left out."""
    return {
        view.backend_id: view.picks
        for view in views
        if view.picks is not None and (now - view.observed_at).total_seconds() < BEFORE_SECONDS
    }


class _Window:
    """The draws of each backend, from one moment on."""

    __slots__ = ("began", "draws")

    def __init__(self, began: float) -> None:
        self.began = began
        self.draws: dict[str, Draws] = {}


class _Slot:
    """Picks and what was promised, from one moment on."""

    __slots__ = ("began", "expected", "picks")

    def __init__(self, began: float) -> None:
        self.began = began
        self.picks: Counter[str] = Counter()
        self.expected: dict[str, float] = {}
