"""What the relay to Kafka says of itself, as metrics.

The relay is another process: it keeps a small file, which is read when somebody asks.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ledger.clock import Clock
from streams.kafka.relay.status import read_status

SKEW_SECONDS_MAX: Final = 60.0
"""With a clock so wrong requests would be billed to wrong hours and at wrong prices."""


def relay_missing(data: Path) -> list[str]:
    """What the relay of `data` has found that keeps new requests from being welcome, in words."""
    status = read_status(data)
    if status is None or abs(status.skew_seconds) <= SKEW_SECONDS_MAX:
        return []
    way = "ahead of" if status.skew_seconds > 0 else "behind"
    return [
        f"the right time: this machine's clock is {abs(status.skew_seconds):.0f} s {way} Kafka's"
    ]


def relay_gauges(data: Path, clock: Clock) -> Iterator[tuple[str, str, dict[str, str], float]]:
    """Name, meaning, labels and value of each; nothing before a relay was at work in `data`."""
    status = read_status(data)
    if status is None:
        return
    now = clock.now()
    oldest = 0.0 if status.oldest_at is None else (now - status.oldest_at).total_seconds()
    silent = max(0.0, (now - status.at).total_seconds())
    values = {
        "lag_bytes": ("Spool that Kafka has not taken yet.", status.lag_bytes),
        "oldest_seconds": ("Age of the oldest event that Kafka has not taken.", max(0.0, oldest)),
        "kafka_up": ("1 if Kafka takes what the relay sends.", status.fault is None),
        "sent_events": ("Events that Kafka has taken since the relay started.", status.sent),
        "aside_records": ("Records set aside, which Kafka or nobody can take.", status.aside),
        "adopted_spools": ("Spools of dead processes closed since its start.", status.adopted),
        "spools": ("Spools that the relay follows.", status.spools),
        "skew_seconds": ("This machine's clock minus the broker's.", status.skew_seconds),
        "silent_seconds": ("Since the relay last said anything of itself.", silent),
    }
    for name, (about, value) in values.items():
        yield f"tollbook_relay_{name}", about, {}, value
