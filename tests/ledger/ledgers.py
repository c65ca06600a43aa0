"""Ledgers for the tests of `ledger.sql`: one per kind of database, filled through batches.

`KINDS` is the one place where another database joins every one of these tests.
"""

import tempfile
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path

from sqlalchemy import Table, delete, func, select

from ledger.clock import SystemClock
from ledger.events import Draft, Event
from ledger.sql import tables
from ledger.sql.session import Ledger, open_ledger
from ledger.sql.writer import Batch, LedgerWriter, Poison, Written
from tests.support.events import Scribe

KINDS = ("sqlite", "postgres")

Make = Callable[[Path, str], Ledger]
"""Makes an empty ledger in a directory, under a name; two names are two ledgers."""


@cache
def _empty_file() -> bytes:
    """The file of an empty ledger: migrating anew for each example would take most of the time."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "ledger.db"
        open_ledger(path).close()
        return path.read_bytes()


def in_files(directory: Path, name: str) -> Ledger:
    """An empty ledger of SQLite."""
    path = directory / f"{name}.db"
    path.write_bytes(_empty_file())
    return open_ledger(path)


def on_postgres(create_database: Callable[[str], str]) -> Make:
    """Makes empty ledgers of Postgres: one database for each name, emptied when it comes again."""
    urls: dict[str, str] = {}

    def make(directory: Path, name: str) -> Ledger:
        if name not in urls:
            urls[name] = create_database(f"suite_{name}")
        ledger = open_ledger(urls[name])
        with ledger.write() as tx:
            for table in tables.metadata.tables.values():
                tx.execute(delete(table))
        return ledger

    return make


class Feeder:
    """Writes events as the records of one log, each 100 bytes long."""

    def __init__(self, ledger: Ledger, log: str = "log") -> None:
        self.ledger, self.log, self.offset = ledger, log, 0
        self.writer = LedgerWriter(ledger, SystemClock())

    def feed(self, events: Sequence[Event], poison: Sequence[Poison] = ()) -> Written:
        after = self.offset + 100 * (len(events) + len(poison))
        batch = Batch(self.log, self.offset, after, list(events), list(poison))
        written = self.writer.write(batch)
        self.offset = after
        return written


def scribed(drafts: Iterable[Draft], source: str | None = None) -> list[Event]:
    """`drafts` as one source writes them."""
    scribe = Scribe() if source is None else Scribe(source)
    return scribe.write_all(*drafts)


def count(ledger: Ledger, table: Table) -> int:
    """How many rows `table` has."""
    with ledger.read() as read:
        return int(read.value(select(func.count()).select_from(table)))
