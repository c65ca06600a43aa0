"""How each database is connected to: SQLite in a file, Postgres at a URL. It opens no ledger.

Both give the same two kinds of transaction. A reader sees one unchanging snapshot and cannot write;
a writer is alone at the ledger. SQLite has a lock on its file for that, Postgres an advisory lock
that belongs to the database.
"""

from pathlib import Path
from typing import Any, Literal

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import ConnectionPoolEntry

from ledger.errors import LedgerUnavailable

Durability = Literal["process", "power"]
"""What a commit survives: the end of any process, or also the loss of power."""

BUSY_SECONDS_MAX = 30
"""How long one writer waits for another; a rebuild may hold the ledger that long on a small one."""

ABANDONED_SECONDS_MAX = 60
"""How long a writer that stands still in its transaction keeps Postgres from the others."""

CONNECT_SECONDS_MAX = 10
"""How long the first answer of a Postgres may take."""

POSTGRES = "postgresql+psycopg"
"""What the URL of a ledger on Postgres begins with: the database and its driver."""

WRITER_LOCK = 0x746F6C6C626F6F6B
"""The advisory lock that the one writer of a database holds: the letters `tollbook`."""

WRITES = "tollbook_writes"
"""The option of a connection that says what its next transaction is for."""

# A peer that vanished without a word is noticed after a minute and a half, not after two hours.
_LIBPQ = {
    "application_name": "tollbook",
    "client_encoding": "utf8",
    "connect_timeout": str(CONNECT_SECONDS_MAX),
    "keepalives_idle": "30",
    "keepalives_interval": "20",
    "keepalives_count": "3",
    "tcp_user_timeout": "90000",
}


def url_of(target: Path | str) -> URL:
    """The URL of the ledger at a path or a URL. Raises `LedgerUnavailable` if it is neither."""
    if isinstance(target, Path):
        return URL.create("sqlite+pysqlite", database=str(target.absolute()))
    try:
        url = make_url(target)
    except (ArgumentError, ValueError) as wrong:
        # The text is not repeated: it may hold a password.
        raise LedgerUnavailable(
            "the URL of the ledger cannot be read; write"
            f" {POSTGRES}://USER:PASSWORD@HOST:PORT/DATABASE, with special characters of the"
            " password written as %XX"
        ) from wrong
    if url.drivername in ("postgresql", "postgres"):
        url = url.set(drivername=POSTGRES)
    if url.drivername not in ("sqlite", "sqlite+pysqlite", POSTGRES):
        raise LedgerUnavailable(
            f"a ledger at {shown(url)} is not supported: give a path, or a URL that begins with"
            f" sqlite+pysqlite:/// or {POSTGRES}://"
        )
    return url


def shown(url: URL) -> str:
    """The database in words for a message: without password and without any option."""
    if url.get_backend_name() == "sqlite":
        return str(url.database)
    host = url.query.get("host", url.host)
    named = ",".join(host) if isinstance(host, tuple) else host
    plain = URL.create(
        url.drivername, username=url.username, host=named, port=url.port, database=url.database
    )
    return plain.render_as_string()


def engine_for(url: URL, *, readonly: bool, durability: Durability) -> Engine:
    """An engine that gives readers a snapshot and lets one writer in at a time.

    `durability` is for SQLite; what a commit on Postgres survives is a setting of that server, and
    its default survives the loss of power.
    """
    if url.get_backend_name() == "sqlite":
        return _sqlite(url, readonly=readonly, durability=durability)
    return _postgres(url, readonly=readonly)


def reads(connection: Connection) -> Connection:
    """`connection`, whose next transaction sees one snapshot and cannot write."""
    if connection.dialect.name == "sqlite":
        return connection
    return connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)


def writes(connection: Connection) -> Connection:
    """`connection`, whose next transaction begins by waiting until it is the only writer."""
    return connection.execution_options(**{WRITES: True})


def _postgres(url: URL, *, readonly: bool) -> Engine:
    given = {name: value for name, value in _LIBPQ.items() if name not in url.query}
    engine = create_engine(
        url.update_query_dict(given),
        # A connection that a restart of the server has cut is replaced, not handed out.
        pool_pre_ping=True,
        # Rows go to the driver as tuples, as they do with SQLite.
        paramstyle="format",
        isolation_level="READ COMMITTED",
    )

    def connected(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
        driver: Any = connection
        encoding = driver.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            raise LedgerUnavailable(
                f"the database of the ledger {shown(url)} keeps text as {encoding}; make one with"
                " CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0"
            )

    def begins(connection: Connection) -> None:
        if not connection.get_execution_options().get(WRITES, False):
            return
        # READ COMMITTED, so that what is read after the wait is what the writer before it wrote.
        # A writer whose process was stopped or cut off loses its place: the server ends it.
        busy_ms, abandoned_ms = (
            round(seconds * 1000) for seconds in (BUSY_SECONDS_MAX, ABANDONED_SECONDS_MAX)
        )
        connection.exec_driver_sql(
            f"SET LOCAL lock_timeout = {busy_ms};"
            f"SET LOCAL idle_in_transaction_session_timeout = {abandoned_ms};"
            f"SELECT pg_advisory_xact_lock({WRITER_LOCK})"
        )

    event.listen(engine, "connect", connected)
    if not readonly:
        event.listen(engine, "begin", begins)
    return engine


def _sqlite(url: URL, *, readonly: bool, durability: Durability) -> Engine:
    path = Path(str(url.database))
    if readonly:
        if not path.exists():
            raise LedgerUnavailable(
                f"there is no ledger at {path} yet; start the gateway, or check --data"
            )
        # query_only instead of mode=ro: a reader of a WAL database may have to make its -shm file.
        pragmas = ["PRAGMA query_only = ON"]
    else:
        synchronous = "FULL" if durability == "power" else "NORMAL"
        pragmas = ["PRAGMA journal_mode = WAL", f"PRAGMA synchronous = {synchronous}"]
    engine = create_engine(url, connect_args={"timeout": BUSY_SECONDS_MAX})

    def connected(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
        # The driver's own idea of when to begin would give reads no snapshot; we begin ourselves.
        connection.isolation_level = None
        cursor = connection.cursor()
        for pragma in pragmas:
            cursor.execute(pragma)
        cursor.close()

    def begins(connection: Connection) -> None:
        # A writer takes the lock at once: one that began as a reader could not wait for it.
        writing = connection.get_execution_options().get(WRITES, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")

    event.listen(engine, "connect", connected)
    event.listen(engine, "begin", begins)
    return engine


def explain(wrong: DBAPIError, where: str) -> str:
    """What a database error means and what to do about it, for a person."""
    said = str(wrong.orig).strip()
    for sign, words in _MEANINGS.items():
        if sign in said:
            return f"the ledger {where} {words} ({said})"
    return f"the ledger {where} failed: {said}"


_BUSY = (
    f"is being written by another process for more than {BUSY_SECONDS_MAX} s;"
    " a rebuild may be running: wait for it to end, then try again"
)
_AWAY = "cannot be reached; check that Postgres runs there, and the host and port of the URL"
_NO_ENTRY = "does not let this user in; check user, password and database in its URL"
_NO_TRUST = (
    "is not trusted over TLS, or takes no TLS; check sslmode and sslrootcert in its URL, and the"
    " certificate of the server"
)
_CUT = "broke off; nothing of this transaction was written, try again"
_READ_ONLY = "may not be written by this user; check the owner of the file"

# The first sign that is found wins, so what is more special stands before what is general.
_MEANINGS = {
    "database is locked": _BUSY,
    "disk is full": "cannot grow because its disk is full; free some space and try again, nothing"
    " that was written before is lost",
    "No space left on device": "cannot grow because the disk of its server is full; free some space"
    " there and try again, nothing that was written before is lost",
    "unable to open": "cannot be opened; check that its directory exists and may be read and"
    " written by this user",
    "readonly database": _READ_ONLY,
    "disk I/O error": "could not be read or written by the operating system; check the disk",
    "malformed": "is damaged; put back a copy, the spools bring it up to date again",
    "not a database": "is not a SQLite file; check --data",
    "no such table": "lacks a table that this version needs; it was not made by Tollbook, or its"
    " schema is older",
    "lock timeout": _BUSY,
    "read-only transaction": "may not be written through a connection that is for reading",
    "permission denied": "does not allow this; grant the user of its URL the right",
    "SSL connection has been closed": _CUT,
    "SSL SYSCALL": _CUT,
    "certificate": _NO_TRUST,
    "SSL": _NO_TRUST,
    "password": _NO_ENTRY,
    "no pg_hba.conf entry": _NO_ENTRY,
    "does not exist": "lacks something that this version needs; check database and user in its URL",
    "too many clients": "has no connection left; raise max_connections of Postgres, or stop what"
    " holds them",
    "remaining connection slots": "has no connection left; raise max_connections of Postgres, or"
    " stop what holds them",
    "server closed the connection": _CUT,
    "terminating connection": _CUT,
    "consuming input failed": _CUT,
    "idle-in-transaction timeout": _CUT,
    "the connection is lost": _CUT,
    "the connection is closed": _CUT,
    "the database system is": "is starting or stopping; try again in a moment",
    "connection timeout": _AWAY,
    "connection failed": _AWAY,
    "could not translate host name": _AWAY,
    "failed to resolve host": _AWAY,
}
