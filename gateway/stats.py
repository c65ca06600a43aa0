"""Plain counters of the serving path. `metrics` turns them into Prometheus text when asked.

They are integers that one event loop changes, so counting costs no lock and no label look-up.
"""

from bisect import bisect_left
from collections import Counter

from gateway.routing.shares import Odds
from ledger.events import BUCKETS, Usage

BOUNDS_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96)
"""Bucket bounds that OpenTelemetry's GenAI conventions give for durations of a model server."""

OVERHEAD_BOUNDS_SECONDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5)


class Histogram:
    """Counts per bucket and a sum, in seconds."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds


class Stats:
    """What happened in this process since it started."""

    def __init__(self) -> None:
        self.finished: Counter[tuple[str, str]] = Counter()  # (endpoint, outcome)
        self.rejected: Counter[str] = Counter()  # code
        self.unauthorized = 0
        self.fallbacks: Counter[tuple[str, str]] = Counter()  # (asked model, answering model)
        self.picks: Counter[tuple[str, str]] = Counter()  # (backend, how)
        self.drawn: Counter[Odds] = Counter()  # odds of choices; whoever checks shares takes them
        self.attempts_failed: Counter[tuple[str, str]] = Counter()  # (backend, reason)
        self.tokens: Counter[str] = Counter()  # bucket
        self.basis: Counter[str] = Counter()
        self.chunks = 0
        self.finish_delayed = 0
        self.scrapes_failed: Counter[str] = Counter()  # backend
        self.probe_failures: Counter[tuple[str, str]] = Counter()  # (backend, model)
        self.probe_seconds: dict[tuple[str, str], float] = {}  # the last one, if it was answered
        self.duration = Histogram(BOUNDS_SECONDS)
        self.first_token = Histogram(BOUNDS_SECONDS)
        self.overhead = Histogram(OVERHEAD_BOUNDS_SECONDS)

    def count(self, usage: Usage) -> None:
        """Add what is known of one request's tokens."""
        for bucket in BUCKETS:
            if count := getattr(usage, bucket):
                self.tokens[bucket] += count
