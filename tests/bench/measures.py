"""The measurements against the fake backend: figures beside the budgets they are held to."""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from tests.bench.machinery import (
    Cpu,
    Served,
    child_of,
    cpu,
    fake_backend,
    load,
    metric,
    passthrough,
    tollbook,
)

CALLERS = 32
FAST_STREAMS = 16
PACED_STREAMS = 200
PACED_MICROSECONDS = 20_000
PAIRS = 400
Say = Callable[[str], None]


class Figure(msgspec.Struct, frozen=True):
    """One line of the report. `at_most` false: the budget is a lower bound."""

    what: str
    direct: float | None
    passthrough: float | None
    tollbook: float | None
    figure: float
    budget: float | None
    unit: str = ""
    at_most: bool = True

    def row(self) -> tuple[str, ...]:
        """The cells, for a person."""
        sides = [_number(side) for side in (self.direct, self.passthrough, self.tollbook)]
        budget, holds = "", ""
        if self.budget is not None:
            budget = f"{'≤' if self.at_most else '≥'} {self.budget:g}"
            good = self.figure <= self.budget if self.at_most else self.figure >= self.budget
            holds = "yes" if good else "NO"
        return (self.what, *sides, f"{self.figure:.3f}{self.unit}", budget, holds)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.3f}" if value < 1000 else f"{value:,.0f}"


def against_fake(place: Path, seconds: float, rounds: int, say: Say) -> list[Figure]:
    """All figures with the fake backend, which is never the limit."""
    found: list[Figure] = []
    with (
        fake_backend("fake") as direct,
        passthrough(direct) as floor,
        tollbook(direct, place / "plain") as ours,
    ):
        say("added latency and time to first token, one at a time, direct in between …")
        found += _added(direct, floor, ours, rounds)
        say(f"requests/s at {CALLERS} callers, chunks/s at {FAST_STREAMS} streams, in turns …")
        found.append(_requests(floor, ours, seconds, rounds))
        found.append(_lag(ours))
        found.append(_chunks("chunks/s, unthrottled", floor, ours, seconds, rounds, 0.80))
        say(f"{PACED_STREAMS} streams of 50 chunks/s …")
        found += _paced(direct, floor, ours, seconds)
        found += _memory(ours)
    with (
        fake_backend("vllm") as direct,
        passthrough(direct) as floor,
        tollbook(direct, place / "running") as ours,
    ):
        say("chunks/s where running usage is stripped from each chunk …")
        what = "chunks/s, running usage stripped"
        found.append(_chunks(what, floor, ours, seconds, rounds, 0.55))
    return found


def _pair(direct: Served, proxy: Served, *more: object) -> Any:
    return load(
        *("-mode", "pair", "-url", proxy.url, "-key", proxy.key, "-direct", direct.url),
        *("-direct-key", direct.key, "-n", PAIRS, "-t", "60s", *more),
    )


def _added(direct: Served, floor: Served, ours: Served, rounds: int) -> list[Figure]:
    latency: dict[str, list[float]] = {"passthrough": [], "tollbook": []}
    first: dict[str, list[float]] = {"passthrough": [], "tollbook": []}
    for _ in range(rounds):
        for proxy in (floor, ours):
            plain = _pair(direct, proxy, "-model", "fake-n16")
            latency[proxy.name].append(plain["latency_ms"]["added_p50"])
            stream = _pair(
                direct,
                proxy,
                *("-model", "fake-n200-i5000", "-stream", "-c", 4, "-n", 32),
            )
            first[proxy.name].append(stream["ttft_ms"]["added_p50"])
    return [
        _of_added("added latency p50, ms", latency, 0.6),
        _of_added("added time to first token p50, ms", first, 1.4),
    ]


def _of_added(what: str, sides: dict[str, list[float]], budget: float) -> Figure:
    ours = statistics.median(sides["tollbook"])
    return Figure(what, None, statistics.median(sides["passthrough"]), ours, ours, budget, " ms")


def _load(proxy: Served, seconds: float, *more: object) -> Any:
    return load(
        *("-mode", "load", "-url", proxy.url, "-key", proxy.key, "-n", 5_000_000),
        *("-t", f"{seconds}s", *more),
    )


def _in_turns(
    floor: Served, ours: Served, rounds: int, run: Callable[[Served], float]
) -> tuple[float, float, float]:
    """Medians of both, and the median of the rounds' ratios ours : floor."""
    sides: dict[str, list[float]] = {floor.name: [], ours.name: []}
    for turn in range(rounds):
        for proxy in (floor, ours) if turn % 2 == 0 else (ours, floor):
            sides[proxy.name].append(run(proxy))
    ratios = [b / a for a, b in zip(sides[floor.name], sides[ours.name], strict=True)]
    return (
        statistics.median(sides[floor.name]),
        statistics.median(sides[ours.name]),
        statistics.median(ratios),
    )


def _requests(floor: Served, ours: Served, seconds: float, rounds: int) -> Figure:
    def run(proxy: Served) -> float:
        return float(_load(proxy, seconds, "-model", "fake-n16", "-c", CALLERS)["rps"])

    low, high, ratio = _in_turns(floor, ours, rounds, run)
    return Figure(f"requests/s at {CALLERS} callers", None, low, high, ratio, 0.75, at_most=False)


def _chunks(
    what: str, floor: Served, ours: Served, seconds: float, rounds: int, budget: float
) -> Figure:
    def run(proxy: Served) -> float:
        found = _load(proxy, seconds, "-model", "fake-n500", "-stream", "-c", FAST_STREAMS)
        return float(found["chunks_per_s"])

    low, high, ratio = _in_turns(floor, ours, rounds, run)
    return Figure(what, None, low, high, ratio, budget, at_most=False)


def _lag(ours: Served) -> Figure:
    """How old the oldest event is that the ledger has not taken, right after the load."""
    return Figure(
        "ledger behind at the end of that load, s",
        None,
        None,
        None,
        metric(ours, "tollbook_ledger_lag_seconds"),
        5.0,
        " s",
    )


def _paced(direct: Served, floor: Served, ours: Served, seconds: float) -> list[Figure]:
    gaps: dict[str, float] = {}
    cost: dict[str, float] = {}
    chunks = int(seconds * 2_000_000 / PACED_MICROSECONDS)
    model = f"fake-n{chunks}-i{PACED_MICROSECONDS}"
    for proxy in (direct, floor, ours):
        before, began = cpu(proxy.pid), time.monotonic()
        found = _load(
            proxy,
            seconds * 2 + 30,
            *("-model", model, "-stream", "-c", PACED_STREAMS, "-n", PACED_STREAMS, "-warm", 0),
        )
        after = cpu(proxy.pid)
        gaps[proxy.name] = found["gap_ms"]["p99"]
        cost[proxy.name] = (after.seconds - before.seconds) / found["chunks"] * 1e6
        assert time.monotonic() - began > seconds, "a paced load takes the time of its pace"
    return [
        Figure(
            "paced: CPU per chunk, µs",
            None,
            cost["passthrough"],
            cost["tollbook"],
            cost["tollbook"] / cost["passthrough"],
            1.25,
            " ×",
        ),
        Figure(
            "paced: gap p99 over direct's, ms",
            gaps["direct"],
            gaps["passthrough"],
            gaps["tollbook"],
            gaps["tollbook"] - gaps["direct"],
            5.0,
            " ms",
        ),
    ]


def _memory(ours: Served) -> list[Figure]:
    serving: Cpu = cpu(ours.pid)
    runner: Cpu = cpu(child_of(ours.pid, "runner"))
    return [
        Figure("memory of the serving process, MB", None, None, None, serving.rss_mb, 120.0, " MB"),
        Figure("memory of the runner, MB", None, None, None, runner.rss_mb, None, " MB"),
    ]
