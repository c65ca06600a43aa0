"""The closed list of metrics, in Prometheus's text form. Read when asked, counted in `stats`."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from gateway.stats import Histogram, Stats
from ledger.events import BUCKETS

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Gauges:
    """What is true at this moment, brought by whoever knows it."""

    def __init__(
        self, read: Callable[[], Iterable[tuple[str, str, dict[str, str], float]]]
    ) -> None:
        self.read = read


class GatewayCollector(Collector):
    """One gateway process. Labels are few and bounded: no key, no user, no request."""

    def __init__(self, stats: Stats, gauges: Gauges) -> None:
        self._stats = stats
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        """Every metric of this process."""
        stats = self._stats
        yield _counter(
            "tollbook_requests_finished",
            "Requests that were accepted and have an end.",
            ("endpoint", "outcome"),
            stats.finished.items(),
        )
        yield _counter(
            "tollbook_requests_rejected",
            "Authenticated requests that were refused before any backend was called.",
            ("code",),
            (((code,), count) for code, count in stats.rejected.items()),
        )
        yield _counter(
            "tollbook_requests_unauthorized",
            "Requests without a key that is good here.",
            (),
            [((), stats.unauthorized)],
        )
        yield from self._of_backends()
        yield _counter(
            "tollbook_tokens",
            "Tokens billed, by disjoint bucket.",
            ("bucket",),
            (((bucket,), stats.tokens[bucket]) for bucket in BUCKETS),
        )
        yield _counter(
            "tollbook_usage_basis",
            "Finished requests by how their tokens were counted.",
            ("basis",),
            (((basis,), count) for basis, count in stats.basis.items()),
        )
        yield _counter(
            "tollbook_stream_chunks", "Chunks with text passed on.", (), [((), stats.chunks)]
        )
        yield _counter(
            "tollbook_finish_delayed",
            "Ends of requests that the spool did not take at once.",
            (),
            [((), stats.finish_delayed)],
        )
        yield _histogram(
            "gen_ai_server_request_duration_seconds", "A whole request.", stats.duration
        )
        yield _histogram(
            "gen_ai_server_time_to_first_token_seconds",
            "From the request to its first chunk with text.",
            stats.first_token,
        )
        yield _histogram(
            "tollbook_overhead_seconds", "Time spent in the gateway itself.", stats.overhead
        )
        yield from GaugeCollector(self._gauges).collect()

    def _of_backends(self) -> Iterator[Metric]:
        stats = self._stats
        yield _counter(
            "tollbook_picks",
            "Choices of a backend, and how: score, explored, trial, last_resort or asked.",
            ("backend", "how"),
            stats.picks.items(),
        )
        yield _counter(
            "tollbook_fallbacks",
            "Requests for which another model was asked, since no backend of theirs was fit.",
            ("model", "to"),
            stats.fallbacks.items(),
        )
        yield _counter(
            "tollbook_attempts_failed",
            "Calls to a backend that failed before the first byte; refusals that were tried again.",
            ("backend", "reason"),
            stats.attempts_failed.items(),
        )
        yield _counter(
            "tollbook_scrapes_failed",
            "Times that a backend did not tell its own counters.",
            ("backend",),
            (((backend,), count) for backend, count in stats.scrapes_failed.items()),
        )
        yield _counter(
            "tollbook_probe_failures",
            "Probes of the gateway's own that had no answer.",
            ("backend", "model"),
            stats.probe_failures.items(),
        )


class GaugeCollector(Collector):
    """A process that has nothing but gauges."""

    def __init__(self, gauges: Gauges) -> None:
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        """Every gauge as it stands now."""
        families: dict[str, GaugeMetricFamily] = {}
        for name, about, labels, value in self._gauges.read():
            if name not in families:
                families[name] = GaugeMetricFamily(name, about, labels=tuple(labels))
            families[name].add_metric(tuple(labels.values()), value)
        yield from families.values()


@contextmanager
def serving(gauges: Gauges, host: str, port: int) -> Iterator[None]:
    """Serve `gauges` at `http://HOST:PORT/metrics` from a thread, for a process without doors.

    Raises `OSError` if the address cannot be had.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(GaugeCollector(gauges))
    server, thread = start_http_server(port, host, registry)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def render(collector: Collector) -> bytes:
    """The text form of all that `collector` knows."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry)


def _counter(
    name: str,
    about: str,
    labels: tuple[str, ...],
    values: Iterable[tuple[tuple[str, ...], int]],
) -> CounterMetricFamily:
    family = CounterMetricFamily(name, about, labels=labels)
    for label_values, value in values:
        family.add_metric(label_values, value)
    return family


def _histogram(name: str, about: str, histogram: Histogram) -> HistogramMetricFamily:
    total, buckets = 0, []
    for bound, count in zip((*histogram.bounds, "+Inf"), histogram.counts, strict=True):
        total += count
        buckets.append((str(bound), float(total)))
    family = HistogramMetricFamily(name, about)
    family.add_metric((), buckets, histogram.sum)
    return family
