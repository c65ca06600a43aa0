"""What the tests of the worker share: its process, and what stands in the derived topics."""

import asyncio
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ledger.events import Event, payload_of
from ledger.folds.live import KeyUsage, usage_of
from ledger.folds.requests import REQUEST_TYPES, RequestRow, fold_request
from ledger.folds.usage import ZERO, Totals, contribution
from streams.kafka.access import KafkaAccess
from streams.kafka.read import latest_values
from tests.support.processes import CLI, Process, wait_until

WAIT_SECONDS_MAX = 60.0


def worker_process(access: KafkaAccess, folder: Path, name: str = "worker") -> Process:
    """`tollbook worker` on the topics of `access`; not yet ready."""
    config = folder / "worker.toml"
    lines = [
        "[kafka]",
        f"bootstrap = {list(access.bootstrap)!r}",
        f"security = {access.security!r}",
        f"prefix = {access.prefix!r}",
        f"partitions = {access.partitions}",
        f"replication = {access.replication}",
    ]
    if access.password is not None:
        (folder / "password").write_text(access.password)
        lines += [
            f"ca_file = {access.ca_file!r}",
            f"sasl_username = {access.username!r}",
            f"sasl_password = 'file:{folder / 'password'}'",
        ]
    config.write_text("\n".join(lines))
    command = [*CLI, "worker", "--data", str(folder / "data"), "--config", str(config)]
    return Process(command, folder / f"{name}.log", cwd=folder)


@contextmanager
def working(access: KafkaAccess, name: str = "worker") -> Iterator[Process]:
    """A worker that is ready; ended with the block, in order if it still runs."""
    with tempfile.TemporaryDirectory(prefix="tollbook-test-worker-") as folder:
        process = worker_process(access, Path(folder), name)
        try:
            wait_until(
                f"{name} is ready: {process.output()}", lambda: "ready" in process.output(), 60
            )
            yield process
        finally:
            process.stop()


def usages(access: KafkaAccess) -> dict[str, KeyUsage]:
    """The live totals of each key, as a gateway reads them. Not within an event loop."""
    values = asyncio.run(latest_values(access, "usage-by-key", "test"))
    return {key.decode(): usage_of(value) for key, value in values.items()}


def totals(found: dict[str, KeyUsage]) -> dict[str, tuple[int, Totals]]:
    """Accepted requests and the totals of those with an end, by key."""
    return {
        key: (usage.accepted, Totals(usage.ended, usage.tokens, usage.known))
        for key, usage in found.items()
    }


def expected(log: Iterable[Event]) -> dict[str, tuple[int, Totals]]:
    """The same as the ledger's own folds have it for the distinct events of `log`."""
    distinct = {(e.source, e.topic, e.sequence): e for e in log if e.topic == "requests"}
    rows: dict[tuple[str, str], RequestRow] = {}
    accepted: dict[str, int] = {}
    for event in distinct.values():
        said = payload_of(event)
        accepted.setdefault(event.subject, 0)
        accepted[event.subject] += event.type == "tollbook.request.accepted.v1"
        if isinstance(said, REQUEST_TYPES):
            name = event.subject, said.request_id
            rows[name] = fold_request(rows.get(name), event, said)
    sums = dict.fromkeys(accepted, ZERO)
    for (key, _), row in rows.items():
        cell = contribution(row)
        sums[key] = sums[key] if cell is None else sums[key].plus(cell[1].totals)
    return {key: (accepted[key], sums[key]) for key in accepted}


def wait_for(access: KafkaAccess, log: Iterable[Event]) -> None:
    """Wait until usage-by-key says what the distinct events of `log` add up to."""
    wanted = expected(log)
    found: list[object] = []

    def holds() -> bool:
        found[:] = [totals(usages(access))]
        return found[0] == wanted

    try:
        wait_until("usage-by-key = distinct events", holds, WAIT_SECONDS_MAX)
    except AssertionError as wrong:
        raise AssertionError(f"{wrong}: {found[0]} is not {wanted}") from wrong
