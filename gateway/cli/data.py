"""How a verb reaches the data directory: its registry, its names, its ledger brought up to date.

Every verb works whether or not a gateway is alive: the registry has its own lock, the ledger its
own transactions, and what a dead process left in a spool is taken in before the ledger is read.
"""

import re
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gateway.cli.failure import Stop
from gateway.cli.progress import progress
from ledger.clock import SystemClock
from ledger.events import Draft
from ledger.folds.book import Book
from ledger.identity import mint_id

if TYPE_CHECKING:
    from ledger.sql.session import Ledger

MARKS: Final = frozenset({"spool", "registry", "ledger.db", "runner.lock", "secrets", "exports"})
"""Any of these makes a directory one of ours."""

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


def registry(data: Path) -> Book:
    """Keys and prices as the registry log has them now; no lock is taken, no ledger needed."""
    from streams.local.layout import Layout
    from streams.log.registry import RegistryTail

    tail = RegistryTail(Layout(data).registry_log)
    tail.poll()
    return tail.book


def change_registry(data: Path, make: Callable[[Book], Draft]) -> Book:
    """Append what `make` makes of the newest book. Raises `RegistryRefused` with the reason."""
    from streams.local.layout import Layout
    from streams.log.registry import RegistryLog

    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname()) or "host"
    source = f"/cli/{host}/{mint_id()}"
    return RegistryLog(Layout(data).registry, source, clock=SystemClock()).append(make)


def key_names(data: Path) -> Mapping[str, str]:
    """The names of keys by id. Without a ledger nothing has a name."""
    from streams.local.layout import Layout

    path = Layout(data).ledger
    if not path.exists():
        return {}
    from ledger.sql.names import names_of
    from ledger.sql.session import open_ledger

    with open_ledger(path, readonly=True) as ledger, ledger.read() as read:
        return names_of(read, "key")


def name_key(data: Path, key_id: str, name: str) -> None:
    """Give a key its name. The ledger is made or migrated if need be."""
    from ledger.sql.names import set_name
    from ledger.sql.session import open_ledger
    from streams.local.layout import Layout

    with open_ledger(Layout(data).ledger) as ledger, ledger.write() as tx:
        set_name(tx, "key", key_id, name)


@contextmanager
def current_ledger(data: Path, *, readonly: bool = True) -> Iterator["Ledger"]:
    """The ledger, after everything that dead processes left behind has been taken in."""
    from ledger.sql.session import open_ledger
    from streams.local.layout import Layout

    catch_up(for_reading(data))
    with open_ledger(Layout(data).ledger, readonly=readonly) as ledger:
        yield ledger


def catch_up(data: Path) -> None:
    """Do the runner's work once if no runner is at it; else it is not behind by much."""
    from streams.local.runner import run_once

    with progress("bringing the ledger up to date") as tell:
        run_once(data, keep_bytes=KEEP_EVERYTHING, progress=tell)


def _refuse_strangers(data: Path) -> None:
    held = {entry.name for entry in data.iterdir()}
    if held and not held & MARKS:
        raise Stop(
            f"{data} holds other things ({', '.join(sorted(held)[:3])}) and no data of Tollbook; "
            "give another directory by --data"
        )
