"""Names of keys, backends and accounts: the one erasable table. No event or total holds a name."""

from typing import Final, Literal, get_args

from sqlalchemy import delete, select, text

from ledger.events.requests import SYSTEM_KEY_ID
from ledger.sql import tables
from ledger.sql.session import ReadSession, WriteSession
from ledger.sql.upsert import upsert

Kind = Literal["key", "backend", "project", "organization"]

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

SYSTEM_NAME: Final = "system"
"""Who the requests of a gateway's own are shown as."""


def set_name(tx: WriteSession, kind: Kind, of: str, name: str) -> None:
    """Give the thing with id `of` a name, or another one, of which nothing is left then."""
    _leave_no_trace(tx)
    tx.execute(upsert(tx.dialect, tables.names), {"kind": kind, "id": of, "name": name})


def names_of(read: ReadSession, kind: Kind) -> dict[str, str]:
    """Every name of that kind, by id."""
    table = tables.names
    found = read.rows(select(table.c.id, table.c.name).where(table.c.kind == kind))
    return {row.id: row.name for row in found}


def key_names(read: ReadSession) -> dict[str, str]:
    """The names of keys as they are shown: our own key has one that nobody gave it."""
    return {SYSTEM_KEY_ID: SYSTEM_NAME} | names_of(read, "key")


def erase_name(tx: WriteSession, kind: Kind, of: str) -> bool:
    """Forget a name; false if there was none. Everything counted stays, under its id."""
    _leave_no_trace(tx)
    table = tables.names
    return tx.execute(delete(table).where(table.c.kind == kind, table.c.id == of)) > 0


def _leave_no_trace(tx: WriteSession) -> None:
    # SQLite would keep the old bytes in its file until something else needs the room. Postgres
    # takes them out when it next vacuums the table.
    if tx.dialect == "sqlite":
        tx.execute(text("PRAGMA secure_delete = ON"))
