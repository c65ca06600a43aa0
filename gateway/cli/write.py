"""`tollbook write`: the process that takes Kafka's topics into the ledger."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from gateway.cli.place import Place, place_option
from ledger.clock import Clock, SystemClock

if TYPE_CHECKING:
    from gateway.reconciled import Gauge
    from ledger.folds.reconcile import Checked
    from streams.kafka.writer import KafkaWriter

COMPARE_SECONDS: Final = 120.0


@click.command("write", short_help="Take Kafka's topics into the ledger, until stopped.")
@place_option
@click.option(
    "--poison-max-per-minute",
    "poison",
    type=click.IntRange(0),
    default=100,
    show_default=True,
    metavar="N",
    help="Stop if more records than this within a minute are no events.",
)
@click.option(
    "--stall-seconds",
    "stall",
    type=click.FloatRange(1),
    default=120,
    show_default=True,
    metavar="N",
    help="End with exit code 1, to be started anew, if a partition is not read for so long.",
)
@click.option(
    "--accept-gaps",
    is_flag=True,
    help="Go on behind records that Kafka has deleted before the ledger took them.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(1, 65_535),
    metavar="PORT",
    help="Serve metrics for Prometheus there. Default: nowhere.",
)
@click.option(
    "--metrics-host",
    default="127.0.0.1",
    show_default=True,
    metavar="HOST",
    help="The address for --metrics-port.",
)
def command(
    place: Place,
    poison: int,
    stall: float,
    accept_gaps: bool,
    metrics_port: int | None,
    metrics_host: str,
) -> int:
    """Take events from Kafka into the ledger until SIGTERM or Ctrl-C. Several may run: they share
    the partitions, and each event counts once.

    Where to read is in the ledger and not in Kafka's group. While Kafka or the ledger is away it
    waits. It ends with words and exit code 1 where somebody has to look.
    """
    from streams.kafka.write_process import run_forever
    from streams.kafka.writer import WriterOptions

    access, target = place.need_kafka(), place.ledger_target
    options = WriterOptions(poison_per_minute=poison, stall_seconds=stall, accept_gaps=accept_gaps)
    with ExitStack() as stack:

        def watch(writer: "KafkaWriter") -> None:
            if metrics_port is not None:
                from gateway.metrics import Gauges, serving

                compare = Comparing(target, SystemClock())
                gauges = Gauges(lambda: chain(writer_gauges(writer), compare.gauges()))
                stack.enter_context(serving(gauges, metrics_host, metrics_port))

        return run_forever(access, target, options, watch)


class Comparing:
    """Holds the last hours of the ledger against the engines' counters, at most every
    `COMPARE_SECONDS`, when somebody asks for the metrics: in the thread that answers, so that the
    writer goes on."""

    def __init__(self, target: Path | str, clock: Clock) -> None:
        self._target, self._clock = target, clock
        self._lock = threading.Lock()
        self._found: Checked | None = None
        self._due = float("-inf")

    def gauges(self) -> "Iterator[Gauge]":
        """What was found last; with the ledger away it only grows old."""
        from gateway.reconciled import gauges_of
        from ledger.errors import LedgerError

        with self._lock:
            if self._clock.monotonic() >= self._due:
                # An old outcome says by its age that there is no newer one.
                with suppress(LedgerError):
                    self._found = self._compare()
                self._due = self._clock.monotonic() + COMPARE_SECONDS
            yield from gauges_of(self._found, self._clock.now())

    def _compare(self) -> "Checked | None":
        from ledger.sql.reconcile import latest
        from ledger.sql.session import open_ledger

        with open_ledger(self._target, readonly=True) as ledger, ledger.read() as read:
            return latest(read, self._clock.now())


def writer_gauges(writer: "KafkaWriter") -> Iterator[tuple[str, str, dict[str, str], float]]:
    """What is true of a writer now: name, meaning, labels, value."""
    for view in list(writer.views.values()):
        labels = {"topic": view.partition.name, "partition": str(view.partition.number)}
        lag = max(0, view.end - view.written)
        yield ("tollbook_writer_lag_records", "Records that the ledger has not taken.", labels, lag)
        yield (
            "tollbook_writer_lag_seconds",
            "Age of the last record taken, if there are more.",
            labels,
            writer.age_seconds(view) if lag else 0,
        )
        yield (
            "tollbook_writer_halted",
            "1 if a partition waits for an upgrade of this writer.",
            labels,
            view.halted,
        )
    for what, count in writer.counts.items():
        yield (
            "tollbook_writer_events",
            "Events since the start, by what the ledger made of them.",
            {"result": what},
            count,
        )
    yield (
        "tollbook_writer_waiting",
        "1 while Kafka or the ledger is away.",
        {},
        bool(writer.waiting),
    )
