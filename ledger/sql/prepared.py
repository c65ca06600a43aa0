"""Statements as a driver takes them, for what a writer does with every batch.

SQLAlchemy spends ten times as long on a small statement as SQLite does, so these are compiled once
and run without it, in its connection and its transaction. Nothing converts their values: there are
only texts, integers, booleans and bytes.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import BigInteger, Boolean, Connection, Dialect, Insert, Text
from sqlalchemy.engine.interfaces import DBAPICursor
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql import ClauseElement
from sqlalchemy.sql.compiler import SQLCompiler

Cells = Sequence[object]
"""The values of a row, or of a statement, in the order in which they are asked for."""


class Prepared(NamedTuple):
    """The text of a statement, the names of its values in order, and those that it brings along."""

    sql: str
    names: tuple[str, ...]
    given: dict[str, Any]

    def cells(self, values: Mapping[str, object]) -> list[object]:
        """`values` in order. Raises `KeyError` for one that is missing."""
        given = self.given
        return [values[name] if name in values else given[name] for name in self.names]


@lru_cache(maxsize=256)
def prepared(dialect: Dialect, statement: ClauseElement) -> Prepared:
    """`statement` for the driver of `dialect`. It should be kept: each object is compiled once."""
    compiled = _compiled(dialect, statement)
    required = {bind.key for bind in compiled.bind_names if bind.required}
    given = {name: value for name, value in compiled.params.items() if name not in required}
    return Prepared(compiled.string, tuple(compiled.positiontup or ()), given)


class PreparedInsert(NamedTuple):
    """The text of an insert, its columns in order, and how the driver wants many rows of them."""

    sql: str
    names: tuple[str, ...]
    for_driver: Callable[[Sequence[Cells]], Any]

    def by_name(self, rows: Sequence[Mapping[str, object]]) -> list[Cells]:
        """Rows by the names of columns. Raises `KeyError` if one has not every column."""
        every = itemgetter(*self.names)
        return [every(row) for row in rows]

    def ordered(self, rows: Sequence[Cells], order: tuple[str, ...]) -> Sequence[Cells]:
        """Rows whose cells come as `order` says."""
        if order == self.names:
            return rows
        return self.by_name([dict(zip(order, row, strict=True)) for row in rows])


@lru_cache(maxsize=256)
def prepared_insert(dialect: Dialect, statement: Insert) -> PreparedInsert:
    """An insert or upsert with a value for every column of its table."""
    for column in statement.table.columns:
        assert isinstance(column.type, Text | BigInteger | Boolean), f"{column} needs a conversion"
    compiled = _compiled(dialect, statement)
    names = tuple(compiled.positiontup or ())
    assert names, "an insert without values is none"
    if dialect.name == "sqlite":
        return PreparedInsert(compiled.string, names, lambda rows: rows)
    quoted = dialect.identifier_preparer.quote
    source = f"json_populate_recordset(NULL::{quoted(statement.table.name)}, %s)"
    columns = ", ".join(map(quoted, names))
    sql, found = _VALUES.subn(f"SELECT {columns} FROM {source}", compiled.string)
    assert found == 1, f"an insert has its values once: {compiled.string}"

    def one_message(rows: Sequence[Cells]) -> tuple[str]:
        # One statement for all rows: the driver takes four times as long for one after the other.
        return (msgspec.json.encode([dict(zip(names, row, strict=True)) for row in rows]).decode(),)

    return PreparedInsert(sql, names, one_message)


_VALUES = re.compile(r"VALUES \([^()]*\)")


def _compiled(dialect: Dialect, statement: ClauseElement) -> SQLCompiler:
    compiled = statement.compile(dialect=dialect)
    assert isinstance(compiled, SQLCompiler), "a statement is compiled by the compiler of SQL"
    return compiled


def run(connection: Connection, sql: str, cells: Any, *, many: bool = False) -> DBAPICursor:
    """Run `sql` in the transaction of `connection`, which has begun; once for each of `cells` if
    there are `many`. Raises what SQLAlchemy raises."""
    proxied = connection.connection
    cursor = proxied.cursor()
    try:
        if many:
            cursor.executemany(sql, cells)
        else:
            cursor.execute(sql, cells)
    except connection.dialect.loaded_dbapi.Error as wrong:
        cursor.close()
        raise _in_words_of_ours(connection, sql, wrong, cursor) from wrong
    return cursor


def _in_words_of_ours(
    connection: Connection, sql: str, wrong: Any, cursor: DBAPICursor
) -> BaseException:
    """`wrong` as SQLAlchemy tells it; a connection that is gone is not used again."""
    dialect = connection.dialect
    gone = dialect.is_disconnect(wrong, connection.connection.dbapi_connection, cursor)
    if gone:
        connection.invalidate(wrong)
    told: BaseException = DBAPIError.instance(
        sql,
        None,
        wrong,
        dialect.loaded_dbapi.Error,
        hide_parameters=True,
        connection_invalidated=gone,
        dialect=dialect,
    )
    return told
