"""Postgres alone: its lock, its words, its schema, and what a URL may and may not say."""

import multiprocessing
import time

import pytest
from sqlalchemy import insert, select, text

from gateway.dev.postgres import Postgres
from ledger.errors import LedgerUnavailable
from ledger.sql import engines, migrate, tables
from ledger.sql.session import open_ledger
from tests.support.kafka import Certificates
from tests.support.tls_front import tls_front

SECRET = "hunter2"


def read_version(url: str) -> str:
    with open_ledger(url) as ledger, ledger.read() as read:
        return str(migrate.schema_of(read))


def test_many_processes_make_the_schema_once(postgres_url: str) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        found = pool.map(read_version, [postgres_url] * 6)
        pool.close()
        pool.join()
    assert set(found) == {migrate.HEAD}


def test_a_migration_that_fails_leaves_nothing(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(connection: object, revision: str) -> None:
        upgrade(connection, revision)  # type: ignore[arg-type]
        raise LedgerUnavailable("the disk is full")

    upgrade = migrate.upgrade
    monkeypatch.setattr(migrate, "upgrade", half)
    with pytest.raises(LedgerUnavailable, match="disk is full"):
        open_ledger(postgres_url)
    monkeypatch.undo()
    with pytest.raises(LedgerUnavailable, match="none yet"):
        open_ledger(postgres_url, readonly=True)
    assert read_version(postgres_url) == migrate.HEAD


@pytest.mark.parametrize("readonly", [True, False])
def test_a_newer_schema_is_left_alone(postgres_url: str, readonly: bool) -> None:
    with open_ledger(postgres_url) as ledger, ledger.write() as tx:
        tx.execute(text("UPDATE alembic_version SET version_num = '20991231_from_the_future'"))
    with pytest.raises(LedgerUnavailable, match=r"newer version of Tollbook.*upgrade Tollbook"):
        open_ledger(postgres_url, readonly=readonly)


def test_a_reader_cannot_write(postgres_url: str) -> None:
    open_ledger(postgres_url).close()
    for readonly in (True, False):
        with (
            open_ledger(postgres_url, readonly=readonly) as ledger,
            pytest.raises(LedgerUnavailable, match="may not be written"),
            ledger.read() as read,
        ):
            read.rows(insert(tables.meta).values(key="k", value="v"))


def test_a_connection_that_has_read_writes_again(postgres_url: str) -> None:
    with open_ledger(postgres_url) as ledger:
        for key in "abc":
            with ledger.read() as read:
                read.value(select(tables.meta.c.key))
                assert read.value(text("SHOW transaction_isolation")) == "repeatable read"
            with ledger.write() as tx:
                assert tx.value(text("SHOW transaction_isolation")) == "read committed"
                tx.execute(insert(tables.meta), {"key": key, "value": ""})


def test_a_writer_that_stands_still_loses_its_place(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process was stopped, or its machine cut off: the others go on, and it writes nothing."""
    monkeypatch.setattr(engines, "ABANDONED_SECONDS_MAX", 0.2)
    with open_ledger(postgres_url) as stopped, open_ledger(postgres_url) as other:
        with pytest.raises(LedgerUnavailable, match="broke off"), stopped.write() as tx:
            tx.execute(insert(tables.meta), {"key": "lost", "value": ""})
            with other.write() as tx2:  # waits until the server ends the first
                tx2.execute(insert(tables.meta), {"key": "kept", "value": ""})
            tx.execute(insert(tables.meta), {"key": "late", "value": ""})
        with other.read() as read:
            assert [row.key for row in read.rows(select(tables.meta))] == ["kept"]


def test_a_long_read_keeps_no_writer(postgres_url: str) -> None:
    with open_ledger(postgres_url) as ledger, ledger.read() as read:
        read.value(select(tables.meta.c.key))
        before = time.monotonic()
        with ledger.write() as tx:
            tx.execute(insert(tables.meta), {"key": "k", "value": ""})
        assert time.monotonic() - before < engines.BUSY_SECONDS_MAX


def test_the_ledger_is_named_without_its_secrets(postgres_url: str) -> None:
    user, rest = postgres_url.split("://", 1)[1].split("@", 1)
    url = f"postgresql://{user}:{SECRET}@{rest}?application_name={SECRET}"
    with open_ledger(url) as ledger:
        assert SECRET not in ledger.where
        assert ledger.where == f"postgresql+psycopg://{user}@{rest}"


def test_what_cannot_be_reached_is_told_in_words_without_secrets(postgres_url: str) -> None:
    base, _, name = postgres_url.rpartition("/")
    user, address = base.split("://", 1)[1].split("@", 1)
    host = address.rpartition(":")[0]
    start = f"postgresql+psycopg://{user}:{SECRET}"
    for url, words in {
        f"{start}@{host}:1/{name}": "cannot be reached.*host and port",
        f"{start}@no-such-host.invalid/{name}": "cannot be reached",
        f"{start}@{address}/no_such_ledger": "lacks something.*check database",
        f"{start}@{address}/{name}?sslmode=sometimes": "sslmode",
        f"{start}@{address}/{name}?colour=blue": "colour",
        f"postgresql+psycopg2://me:{SECRET}@host/db": "not supported: give a path",
        f"mysql+pymysql://me:{SECRET}@host/db": "not supported",
        f"me:{SECRET}@host": "cannot be read; write postgresql",
        f"postgresql://me:{SECRET}@host:port/db": "cannot be read; write postgresql",
    }.items():
        with pytest.raises(LedgerUnavailable, match=words) as refused:
            open_ledger(url)
        assert SECRET not in str(refused.value)


def test_a_database_of_another_encoding_is_refused(postgres: Postgres) -> None:
    with open_ledger(postgres.create_database("latin_from")) as ledger:
        engine = ledger._engine.execution_options(isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(
                text(
                    "CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' LOCALE_PROVIDER libc"
                    " TEMPLATE template0"
                )
            )
    with pytest.raises(LedgerUnavailable, match=r"keeps text as LATIN1.*UTF8"):
        open_ledger(postgres.url_of("latin"))
    postgres.drop_database("latin")
    postgres.drop_database("latin_from")


def test_tls_is_said_by_the_url(postgres_url: str, certificates: Certificates) -> None:
    """Certificate and host are checked where the URL asks for it; a server without TLS is none."""
    base, _, name = postgres_url.rpartition("/")
    user, address = base.split("://", 1)[1].split("@", 1)
    port = int(address.rpartition(":")[2])
    trust = f"sslrootcert={certificates.authority}"
    with tls_front(port, certificates.certificate, certificates.key) as front:
        url = f"postgresql+psycopg://{user}@localhost:{front.port}/{name}"
        with open_ledger(f"{url}?sslmode=verify-full&{trust}") as ledger:
            with ledger.write() as tx:
                tx.execute(insert(tables.meta), {"key": "k", "value": "x" * 200_000})
            with ledger.read() as read:
                assert len(read.value(select(tables.meta.c.value))) == 200_000
            assert str(certificates.authority) not in ledger.where
        open_ledger(f"{url}?sslmode=require").close()
        stranger = url.replace("localhost", "ledger.example") + "?hostaddr=127.0.0.1"
        for wrong, words in {
            f"{url}?sslmode=verify-full&sslrootcert=system": "is not trusted over TLS",
            f"{url}?sslmode=verify-full&sslrootcert=/no/such/file": "is not trusted over TLS",
            f"{stranger}&sslmode=verify-full&{trust}": "is not trusted over TLS",
            f"{url}?sslmode=disable": "broke off|cannot be reached",
            f"{postgres_url}?sslmode=require": "is not trusted over TLS, or takes no TLS",
        }.items():
            with pytest.raises(LedgerUnavailable, match=words):
                open_ledger(wrong)
