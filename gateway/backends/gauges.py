"""What is shown of each backend in `/metrics`."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from gateway.backends.backend import Backend
from gateway.routing.breaker import error_score, share, trials_left

Gauge = tuple[str, str, dict[str, str], float]

_STATES: Final = {"closed": 0, "half_open": 1, "open": 2}


def backend_gauges(
    backends: Iterable[Backend], now: float, read_at: Mapping[str, float], gateways: int = 1
) -> Iterator[Gauge]:
    """The gauges of `backends`; `read_at` is when each last told its own counters, and `gateways`
    live and share the trials."""
    for backend in backends:
        label, breaker = {"backend": backend.backend_id}, backend.breaker
        yield "tollbook_backend_up", "1 if requests may go to the backend.", label, backend.up
        yield (
            "tollbook_backend_requests_open",
            "Requests in flight at a backend.",
            label,
            backend.in_flight,
        )
        yield (
            "tollbook_backend_requests_open_elsewhere",
            "Requests that other gateways have in flight at a backend, as they last said.",
            label,
            backend.others_in_flight,
        )
        yield from _engine_gauges(backend, label)
        yield (
            "tollbook_backend_breaker",
            "State of the backend's breaker: 0 closed, 1 half open, 2 open.",
            label,
            _STATES[breaker.state],
        )
        yield (
            "tollbook_backend_breaker_opened",
            "Times that the breaker opened since this process started.",
            label,
            backend.opened,
        )
        yield (
            "tollbook_backend_trials_left",
            "Trials that this process may give a half-open backend now; 0 for any other.",
            label,
            trials_left(breaker, gateways) or 0,
        )
        yield (
            "tollbook_backend_share",
            "Part of its share of requests that the backend gets, rising after it recovered.",
            label,
            share(breaker, now),
        )
        yield (
            "tollbook_backend_errors",
            "Part of the backend's attempts that met a fault of it; it fades by itself.",
            label,
            error_score(breaker, now),
        )
        if backend.rung is not None:
            yield (
                "tollbook_backend_fails_at",
                "1 for the first rung of the ladder of probes that does not hold.",
                {**label, "rung": backend.rung},
                1,
            )
        if (at := read_at.get(backend.backend_id)) is not None:
            yield (
                "tollbook_scrape_age_seconds",
                "Since the backend last told its own counters.",
                label,
                now - at,
            )


def _engine_gauges(backend: Backend, label: dict[str, str]) -> Iterator[Gauge]:
    """What the engine itself last said of its load; nothing of what it does not say."""
    signals = backend.signals
    for name, meaning, value in (
        ("requests_running", "Requests that the engine says it works on.", signals.running),
        ("requests_waiting", "Requests that the engine says wait for it.", signals.waiting),
        ("kv_usage_ratio", "Part of the engine's KV cache in use, 0 to 1.", signals.kv_usage),
        ("prefix_hits", "Prompt tokens found in the engine's cache.", signals.prefix_hits),
        ("prefix_queries", "Prompt tokens looked up there.", signals.prefix_queries),
    ):
        if value is not None:
            yield f"tollbook_engine_{name}", meaning, label, value
