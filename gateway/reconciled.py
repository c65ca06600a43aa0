"""Whether the ledger agrees with the engines' own counters, as metrics.

Another process compares, one that has the ledger: the runner, which leaves a small file, or the
writer.
"""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from ledger.clock import Clock
from ledger.folds.reconcile import Checked
from streams.local.reckoned import read_reckoned

Gauge = tuple[str, str, dict[str, str], float]
"""Name, meaning, labels and value."""


def reconcile_gauges(data: Path, clock: Clock) -> Iterator[Gauge]:
    """What the runner of `data` found last; nothing before it compared."""
    return gauges_of(read_reckoned(data), clock.now())


def gauges_of(found: Checked | None, now: datetime) -> Iterator[Gauge]:
    """The same of what was `found`. Pure."""
    if found is None:
        return
    for backend, sides in found.beyond.items():
        for side, tokens in sides.items():
            yield (
                "tollbook_reconcile_difference_tokens",
                "Tokens of the last hours that the engine counted and no request explains; "
                "negative: that the ledger holds and the engine did not count. 0 within the bound.",
                {"backend": backend, "side": side},
                tokens,
            )
    yield (
        "tollbook_reconcile_checked_seconds",
        "Since the ledger was last held against the engines' counters.",
        {},
        max(0.0, (now - found.at).total_seconds()),
    )
