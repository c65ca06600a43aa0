"""Brings a ledger's schema to this version, once, under a lock. It never changes what is counted.

The lock is the write transaction itself: whoever comes second waits for it and then finds nothing
left to do. A schema that this version does not know is left alone and named.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, text

from ledger.errors import LedgerUnavailable

if TYPE_CHECKING:
    # The sessions call this module when they open; the other way round it is only a type.
    from alembic.config import Config

    from ledger.sql.session import Ledger, ReadSession

HEAD = "20261203_charges"
"""The newest revision under `migrations/versions`; a test holds the two together."""

KNOWN = (
    "20261129_first_ledger",
    "20261130_attempts_counters",
    "20261201_finance",
    "20261202_months",
    HEAD,
)
"""Every revision that this version can start from, oldest first."""


def schema_of(read: "ReadSession") -> str | None:
    """The revision of the schema, or null for a database without one."""
    if not read.has_table("alembic_version"):
        return None
    found: str | None = read.value(text("SELECT version_num FROM alembic_version"))
    return found


def check_schema(ledger: "Ledger") -> None:
    """Raises `LedgerUnavailable` unless the schema is exactly this version's."""
    with ledger.read() as read:
        found = schema_of(read)
    _refuse_newer(ledger, found)
    if found != HEAD:
        raise LedgerUnavailable(
            f"the ledger {ledger.where} has the schema of an older version of Tollbook"
            f" ({found or 'none yet'}, this version needs {HEAD}); start the gateway once, or"
            " `tollbook write` where Kafka is used, which brings it up to date"
        )


def bring_up(ledger: "Ledger") -> None:
    """Make or migrate the schema if it is not this version's. Safe to call at any time, by many.

    Raises `LedgerUnavailable` for a newer schema, or if the database cannot be written.
    """
    with _creation_lock(ledger), ledger.read() as read:
        found = schema_of(read)
    _refuse_newer(ledger, found)
    if found == HEAD:
        return
    with ledger.write() as write:
        # Another process may have done it while this one waited for the lock.
        if schema_of(write) != HEAD:
            upgrade(write.connection, HEAD)


def upgrade(connection: Connection, revision: str) -> None:
    """Migrate up to `revision` inside the transaction that `connection` is in."""
    from alembic import command

    command.upgrade(_config(connection), revision)


def downgrade(connection: Connection, revision: str) -> None:
    """Migrate down to `revision` (`base`: to nothing); for tests of the migrations."""
    from alembic import command

    command.downgrade(_config(connection), revision)


def _config(connection: Connection) -> "Config":
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(resources.files("migrations")))
    config.attributes["connection"] = connection
    return config


def _refuse_newer(ledger: "Ledger", found: str | None) -> None:
    if found is not None and found not in KNOWN:
        raise LedgerUnavailable(
            f"the ledger {ledger.where} was written by a newer version of Tollbook (schema {found},"
            f" this version knows up to {HEAD}); upgrade Tollbook, nothing was changed"
        )


@contextmanager
def _creation_lock(ledger: "Ledger") -> Iterator[None]:
    """Held around the first connection, which may turn a new file into a WAL database.

    SQLite does not wait for a lock while it changes the journal mode; it fails at once. A database
    of Postgres is made by its owner, not by us.
    """
    if ledger.dialect != "sqlite":
        yield
        return
    directory = Path(ledger.where).parent
    try:
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as wrong:
        raise LedgerUnavailable(
            f"the directory of the ledger {ledger.where} cannot be opened: {wrong.strerror}"
        ) from wrong
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
