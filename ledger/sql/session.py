"""Opening a ledger, and the two kinds of session. The only place that begins or ends a transaction.

A `ReadSession` sees one unchanging snapshot and has no method that writes; a `WriteSession` is one
transaction, alone at the ledger, committed when its block ends and rolled back if the block raises.
Errors of the database leave here as `LedgerUnavailable` with words.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Connection, Engine, Executable, Insert, Row, inspect
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.sql import ClauseElement

from ledger.errors import LedgerUnavailable
from ledger.sql.engines import Durability, engine_for, explain, reads, shown, url_of, writes
from ledger.sql.prepared import Cells, PreparedInsert, prepared, prepared_insert, run


class ReadSession:
    """A consistent snapshot of the ledger. Nothing can be written through it."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def dialect(self) -> str:
        """`sqlite` or `postgresql`."""
        return self._connection.dialect.name

    def rows(
        self, statement: Executable, parameters: Mapping[str, object] | None = None
    ) -> Sequence[Row[*tuple[Any, ...]]]:
        """All rows of `statement`; for results that are known to be small."""
        return self._connection.execute(statement, parameters).all()

    def stream(
        self, statement: Executable, *, size: int = 5000
    ) -> Iterator[Sequence[Row[*tuple[Any, ...]]]]:
        """The rows of `statement` in runs of at most `size`; memory stays bounded."""
        options = {"yield_per": size}
        with self._connection.execute(statement, execution_options=options) as result:
            yield from result.partitions(size)

    def has_table(self, name: str) -> bool:
        """True if there is a table of that name."""
        return inspect(self._connection).has_table(name)

    def value(self, statement: Executable) -> Any:
        """The first cell of the first row, or null if there is none."""
        return self._connection.execute(statement).scalar()


class WriteSession(ReadSession):
    """One transaction, alone at the ledger. It commits when its block ends, never before."""

    __slots__ = ()

    def execute(
        self,
        statement: Executable,
        parameters: Mapping[str, object] | Sequence[Mapping[str, object]] | None = None,
    ) -> int:
        """Run a statement that writes, once or for each of `parameters`; the rows it touched."""
        options = {"preserve_rowcount": True}
        return self._connection.execute(statement, parameters, execution_options=options).rowcount

    def insert(self, statement: Insert, rows: Sequence[Mapping[str, object]]) -> None:
        """Run an insert or upsert for each of `rows`: at least one, each with every column.

        For many rows, as they go to the driver as they are. `statement` should be kept: the same
        object is compiled once.
        """
        ready = prepared_insert(self._connection.dialect, statement)
        self._insert(ready, ready.by_name(rows))

    def insert_cells(self, statement: Insert, rows: Sequence[Cells]) -> None:
        """As `insert`, for rows that have every column in the order of the table."""
        ready = prepared_insert(self._connection.dialect, statement)
        self._insert(ready, ready.ordered(rows, tuple(statement.table.columns.keys())))

    def _insert(self, ready: PreparedInsert, rows: Sequence[Cells]) -> None:
        many = self.dialect == "sqlite"
        run(self._connection, ready.sql, ready.for_driver(rows), many=many).close()

    def ask(self, statement: ClauseElement, values: Mapping[str, object]) -> list[Any]:
        """The rows of `statement` as tuples of the driver; a boolean of SQLite is a number there.

        For what is asked with every batch. `statement` should be kept, as for `insert`.
        """
        ready = prepared(self._connection.dialect, statement)
        cursor = run(self._connection, ready.sql, ready.cells(values))
        found = cursor.fetchall()
        cursor.close()
        return list(found)

    def do(self, statement: ClauseElement, values: Mapping[str, object]) -> int:
        """Run a statement that writes, as `ask` does; the rows that it touched."""
        ready = prepared(self._connection.dialect, statement)
        cursor = run(self._connection, ready.sql, ready.cells(values))
        touched = cursor.rowcount
        cursor.close()
        return touched

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """A part that can fail alone: what it wrote is undone if its block raises."""
        run(self._connection, "SAVEPOINT part", ()).close()
        try:
            yield
        except BaseException as wrong:
            try:
                run(self._connection, "ROLLBACK TO SAVEPOINT part", ()).close()
                run(self._connection, "RELEASE SAVEPOINT part", ()).close()
            except SQLAlchemyError:
                # A full disk undoes the whole transaction, and so does a connection that breaks
                # off: what came first says why. After a row that was there somebody goes on, and
                # must not do so without the transaction.
                if isinstance(wrong, IntegrityError):
                    raise
            raise
        run(self._connection, "RELEASE SAVEPOINT part", ()).close()

    @property
    def connection(self) -> Connection:
        """The connection inside this transaction, for schema changes. Never commit it."""
        return self._connection


class Ledger:
    """One database. Cheap to keep open; `close` it or use it as a context manager."""

    def __init__(self, engine: Engine, *, readonly: bool) -> None:
        self._engine = engine
        self.readonly = readonly

    @property
    def where(self) -> str:
        """The database in words for a message; never with a password in it."""
        return shown(self._engine.url)

    @property
    def dialect(self) -> str:
        """`sqlite` or `postgresql`."""
        return self._engine.dialect.name

    @contextmanager
    def read(self) -> Iterator[ReadSession]:
        """A snapshot for the length of the block. Does not wait for writers. Raises
        `LedgerUnavailable`."""
        with self._translated(), self._engine.connect() as connection:
            connection = reads(connection)
            with connection.begin():
                yield ReadSession(connection)

    @contextmanager
    def write(self) -> Iterator[WriteSession]:
        """The one writer's transaction; waits up to `BUSY_SECONDS_MAX` for another's to end.

        Raises `LedgerUnavailable` when it cannot begin, write or commit; then nothing was written.
        """
        assert not self.readonly, "a ledger opened for reading was asked to write"
        with self._translated(), self._engine.connect() as connection:
            connection = writes(connection)
            with connection.begin():
                yield WriteSession(connection)

    def close(self) -> None:
        """Give the connections back. The ledger can be used again afterwards."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as wrong:
            raise LedgerUnavailable(explain(wrong, self.where)) from wrong


def ledger_url(path: Path) -> str:
    """The URL of the SQLite ledger at `path`; it names its driver."""
    return url_of(path).render_as_string(False)


def open_ledger(
    target: Path | str,
    *,
    readonly: bool = False,
    durability: Durability = "process",
    migrate: bool = True,
) -> Ledger:
    """The ledger at a path, or at a URL (`sqlite+pysqlite:///…`, `postgresql+psycopg://…`).

    For writing it is made if it is missing and brought to this version's schema, under a lock
    (`migrate=False` only checks); a database of Postgres must be there. For reading it must be
    there and of this version. TLS to Postgres is said by the URL, as everywhere in Postgres:
    `?sslmode=verify-full&sslrootcert=FILE`. Raises `LedgerUnavailable`, also for a schema that is
    newer than this program.
    """
    # Alembic is only loaded if there is something to migrate, so opening stays cheap.
    from ledger.sql.migrate import bring_up, check_schema

    engine = engine_for(url_of(target), readonly=readonly, durability=durability)
    ledger = Ledger(engine, readonly=readonly)
    try:
        if readonly or not migrate:
            check_schema(ledger)
        else:
            bring_up(ledger)
    except BaseException:
        ledger.close()
        raise
    return ledger
