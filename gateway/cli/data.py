"""How a verb reaches the data directory: its registry, its names, its ledger brought up to date.

Every verb works whether or not a gateway is alive: the registry has its own lock, the ledger its
own transactions, and what a dead process left in a spool is taken in before the ledger is read.
"""

import re
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from gateway.cli.failure import Stop
from gateway.cli.place import Place
from gateway.cli.progress import progress
from ledger.clock import SystemClock
from ledger.events import Draft
from ledger.folds.book import Book
from ledger.identity import mint_id

if TYPE_CHECKING:
    from ledger.sql.names import Kind
    from ledger.sql.session import Ledger
    from streams.kafka.access import KafkaAccess

MARKS: Final = frozenset({"spool", "registry", "ledger.db", "runner.lock", "secrets", "exports"})
"""Any of these makes a directory one of ours."""

PASSED_ON_SECONDS_MAX: Final = 3.0
"""A worker needs a tenth of a second; one that takes over from another, up to fifteen."""

KEEP_EVERYTHING: Final = 1 << 62
"""How much spool is kept is the gateway's setting; a command that only reads deletes none."""


def for_reading(data: Path) -> Path:
    """`data`, if there is a data directory. Raises `Stop`."""
    if not data.exists():
        raise Stop(
            f"there is no data directory {data}; `tollbook serve` makes one, "
            "and --data DIR names another"
        )
    _refuse_strangers(data)
    return data


def for_writing(data: Path) -> Path:
    """`data`, made if it is missing. Raises `Stop` if it holds something else."""
    data.mkdir(parents=True, exist_ok=True)
    _refuse_strangers(data)
    return data


def make_ready(place: Place) -> Place:
    """`place`, whose data directory is there if it needs one. Raises `Stop`."""
    if place.embedded or not place.shared_ledger:
        for_writing(place.data)
    return place


def registry(place: Place) -> Book:
    """Keys and prices as the registry log has them now; no lock is taken, no ledger needed.

    Raises `KafkaError` where the log is on Kafka and cannot be reached.
    """
    access = place.kafka
    if access is not None:
        from streams.kafka.registry import KafkaRegistry

        return KafkaRegistry(access, cli_source(), clock=SystemClock()).read()
    from streams.local.layout import Layout
    from streams.log.registry import RegistryTail

    tail = RegistryTail(Layout(for_reading(place.data)).registry_log)
    tail.poll()
    return tail.book


def change_registry(place: Place, make: Callable[[Book], Draft]) -> Book:
    """Append what `make` makes of the newest book. Raises `RegistryRefused` with the reason.

    With Kafka it waits until gateways can read it, and says so if no worker passes it on.
    """
    access = place.kafka
    if access is not None:
        return _change_on_kafka(access, make)
    from streams.local.layout import Layout
    from streams.log.registry import RegistryLog

    directory = Layout(refuse_relayed(for_writing(place.data))).registry
    return RegistryLog(directory, cli_source(), clock=SystemClock()).append(make)


def _change_on_kafka(access: "KafkaAccess", make: Callable[[Book], Draft]) -> Book:
    from streams.kafka.registry import KafkaRegistry

    made: list[Draft] = []

    def remembered(book: Book) -> Draft:
        made.append(make(book))
        return made[-1]

    registry = KafkaRegistry(access, cli_source(), clock=SystemClock())
    book = registry.append(remembered)
    if not registry.passed_on(made[-1].payload, PASSED_ON_SECONDS_MAX):
        click.echo(
            "tollbook: this is recorded, but running gateways do not know of it yet: no worker has "
            f"passed it on within {PASSED_ON_SECONDS_MAX:.0f} s; see that `tollbook worker` runs",
            err=True,
        )
    return book


def key_names(place: Place) -> Mapping[str, str]:
    """The names of keys by id. Without a ledger nothing has a name."""
    return all_names(place, ("key",)).get("key", {})


def all_names(
    place: Place, kinds: "Sequence[Kind]" = ("key", "project", "organization")
) -> dict[str, dict[str, str]]:
    """Names by kind and id. Without a ledger nothing has a name."""
    target = place.ledger_target
    if isinstance(target, Path) and not target.exists():
        return {}
    from ledger.sql.names import names_of
    from ledger.sql.session import open_ledger

    with open_ledger(target, readonly=True) as ledger, ledger.read() as read:
        return {kind: names_of(read, kind) for kind in kinds}


def made_names(place: Place) -> dict[str, dict[str, str]]:
    """`all_names` of a ledger that is made or migrated if need be: for what comes first of all."""
    make_ready(place)
    if place.embedded:
        refuse_relayed(place.data)
    from ledger.sql.session import open_ledger

    open_ledger(place.ledger_target).close()
    return all_names(place)


def name_key(place: Place, key_id: str, name: str) -> None:
    """Give a key its name. The ledger is made or migrated if need be."""
    name_it(place, "key", key_id, name)


def name_it(place: Place, kind: "Kind", of: str, name: str) -> None:
    """Give a thing its name, or another one. The ledger is made or migrated if need be."""
    if place.embedded:
        refuse_relayed(place.data)
    from ledger.sql.names import set_name
    from ledger.sql.session import open_ledger

    with open_ledger(place.ledger_target) as ledger, ledger.write() as tx:
        set_name(tx, kind, of, name)


def forget_name(place: Place, kind: "Kind", of: str) -> bool:
    """Erase the name of a thing; false if it had none."""
    if place.embedded:
        refuse_relayed(for_reading(place.data))
    from ledger.sql.names import erase_name
    from ledger.sql.session import open_ledger

    with open_ledger(place.ledger_target) as ledger, ledger.write() as tx:
        return erase_name(tx, kind, of)


@contextmanager
def current_ledger(place: Place, *, readonly: bool = True) -> Iterator["Ledger"]:
    """The ledger. In embedded mode everything that dead processes left behind is taken in first;
    with Kafka it is what the writer has brought so far."""
    from ledger.sql.session import open_ledger

    if place.embedded:
        catch_up(place)
    with open_ledger(place.ledger_target, readonly=readonly) as ledger:
        yield ledger


def catch_up(place: Place) -> None:
    """Do the runner's work once if no runner is at it; else it is not behind by much."""
    from streams.local.runner import run_once

    data = refuse_relayed(for_reading(place.data))
    with progress("bringing the ledger up to date") as tell:
        run_once(data, keep_bytes=KEEP_EVERYTHING, progress=tell, ledger=place.ledger_target)


def refuse_relayed(data: Path) -> Path:
    """`data`, unless it is that of a gateway with Kafka. Raises `Stop`.

    Its requests count in the shared ledger, and must not count in one of its own too.
    """
    from streams.kafka.relay.status import STATUS

    if (data / STATUS).exists():
        raise Stop(
            f"{data} is that of a gateway with Kafka: its books are in the shared ledger. Name "
            "both by --config, or by --kafka and --ledger; without them give another directory by "
            "--data"
        )
    return data


def cli_source() -> str:
    """The source of the events that this command writes."""
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname()) or "host"
    return f"/cli/{host}/{mint_id()}"


def _refuse_strangers(data: Path) -> None:
    held = {entry.name for entry in data.iterdir()}
    if held and not held & MARKS:
        raise Stop(
            f"{data} holds other things ({', '.join(sorted(held)[:3])}) and no data of Tollbook; "
            "give another directory by --data"
        )
