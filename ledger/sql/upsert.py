"""The one statement that each database spells in its own way: insert, or change what is there."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, Table
from sqlalchemy.dialects import postgresql, sqlite

Change = Callable[[Table, Any], Mapping[str, ColumnElement[Any]]]
"""From the table and the row that could not be inserted to the new values of the old row."""


# Building a statement costs more than running it, so each is kept. The bound is for the tables of
# rebuilds, which are other objects each time.
@lru_cache(maxsize=64)
def upsert(
    dialect: str, table: Table, change: Change | None = None
) -> sqlite.Insert | postgresql.Insert:
    """Insert a row, or change the row that has its primary key. The same object for the same call.

    Without `change` every column takes the new value.
    The table may hold no other unique column.
    """
    insert = _insert(dialect, table)
    key = list(table.primary_key.columns)
    every = {c.name: insert.excluded[c.name] for c in table.columns if not c.primary_key}
    values: Any = every if change is None else change(table, insert.excluded)
    return insert.on_conflict_do_update(index_elements=key, set_=values)


@lru_cache(maxsize=64)
def insert_missing(dialect: str, table: Table) -> sqlite.Insert | postgresql.Insert:
    """Insert a row unless one with its primary key is there."""
    insert = _insert(dialect, table)
    return insert.on_conflict_do_nothing(index_elements=list(table.primary_key.columns))


def _insert(dialect: str, table: Table) -> sqlite.Insert | postgresql.Insert:
    if dialect == "sqlite":
        return sqlite.insert(table)
    assert dialect == "postgresql", "open_ledger refuses every other database"
    return postgresql.insert(table)
