"""Plain counters of the serving path. `metrics` turns them into Prometheus text when asked.

They are integers that one event loop changes, so counting costs no lock and no label look-up.
"""

from bisect import bisect_left
from collections import Counter
from typing import NamedTuple, Self

from gateway.routing.shares import Odds
from ledger.events import BUCKETS, Usage

BOUNDS_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96)
"""Bucket bounds that OpenTelemetry's GenAI conventions give for durations of a model server."""

OVERHEAD_BOUNDS_SECONDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5)


ENDED_MAX = 1_000
"""Ends of requests that may wait to be counted."""


class Ended(NamedTuple):
    """What is counted of a request that ended. Times are in seconds, of the monotonic clock."""

    endpoint: str
    outcome: str
    basis: str
    usage: Usage
    chunks: int
    seconds: float
    overhead: float
    first_token: float | None


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
        self._ended: list[Ended] = []
        self._finished: Counter[tuple[str, str]] = Counter()
        self.rejected: Counter[str] = Counter()  # code
        self.unauthorized = 0
        self.fallbacks: Counter[tuple[str, str]] = Counter()  # (asked model, answering model)
        self.picks: Counter[tuple[str, str]] = Counter()  # (backend, how)
        self.drawn: Counter[Odds] = Counter()  # odds of choices; whoever checks shares takes them
        self.attempts_failed: Counter[tuple[str, str]] = Counter()  # (backend, reason)
        self._tokens: Counter[str] = Counter()
        self._basis: Counter[str] = Counter()
        self._chunks = 0
        self.finish_delayed = 0
        self.scrapes_failed: Counter[str] = Counter()  # backend
        self.probe_failures: Counter[tuple[str, str]] = Counter()  # (backend, model)
        self.probe_seconds: dict[tuple[str, str], float] = {}  # the last one, if it was answered
        self._duration = Histogram(BOUNDS_SECONDS)
        self._first_token = Histogram(BOUNDS_SECONDS)
        self._overhead = Histogram(OVERHEAD_BOUNDS_SECONDS)

    def ended(self, request: Ended) -> None:
        """Count the end of one request, later: many at once cost a third of one by one."""
        self._ended.append(request)
        if len(self._ended) >= ENDED_MAX:
            self._settle()

    @property
    def finished(self) -> Counter[tuple[str, str]]:
        """Requests that were accepted and have an end, by endpoint and outcome."""
        return self._settle()._finished

    @property
    def tokens(self) -> Counter[str]:
        """Tokens billed, by bucket."""
        return self._settle()._tokens

    @property
    def basis(self) -> Counter[str]:
        """Finished requests by how their tokens were counted."""
        return self._settle()._basis

    @property
    def chunks(self) -> int:
        """Chunks with text passed on, of requests that have an end."""
        return self._settle()._chunks

    @property
    def duration(self) -> Histogram:
        """Whole requests."""
        return self._settle()._duration

    @property
    def first_token(self) -> Histogram:
        """From the request to its first chunk with text."""
        return self._settle()._first_token

    @property
    def overhead(self) -> Histogram:
        """Time spent in the gateway itself."""
        return self._settle()._overhead

    def _settle(self) -> Self:
        ended, self._ended = self._ended, []
        for one in ended:
            self._finished[one.endpoint, one.outcome] += 1
            self._basis[one.basis] += 1
            self._chunks += one.chunks
            for bucket, count in zip(BUCKETS, one.usage.counts(), strict=True):
                if count:
                    self._tokens[bucket] += count
            self._duration.observe(one.seconds)
            self._overhead.observe(one.overhead)
            if one.first_token is not None:
                self._first_token.observe(one.first_token)
        return self
