"""Migrations and opening: one schema, made once by however many come at once; words otherwise."""

import ast
import multiprocessing
import sqlite3
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import insert, inspect, select, text

import migrations
from ledger.audit import audit
from ledger.errors import LedgerUnavailable
from ledger.sql import engines, migrate, tables
from ledger.sql.rebuild import rebuild
from ledger.sql.session import Ledger, ledger_url, open_ledger
from tests.ledger.ledgers import Feeder, scribed
from tests.support import events as say

SOURCE_OF_MIGRATIONS = Path(migrations.__file__).parent


def read_version(path: Path) -> str:
    with open_ledger(path) as ledger, ledger.read() as read:
        return str(migrate.schema_of(read))


def set_version(path: Path, version: str) -> None:
    with open_ledger(path) as ledger, ledger.write() as tx:
        tx.execute(text("UPDATE alembic_version SET version_num = :v"), {"v": version})


def test_the_migrations_make_exactly_the_tables(ledger: Ledger) -> None:
    with ledger.write() as tx:
        whole = {"include_name": lambda name, kind, _: kind != "table" or not tables.is_part(name)}
        context = MigrationContext.configure(tx.connection, opts=whole)
        assert compare_metadata(context, tables.metadata) == []


def test_the_head_is_the_newest_migration() -> None:
    config = Config()
    config.set_main_option("script_location", str(SOURCE_OF_MIGRATIONS))
    script = ScriptDirectory.from_config(config)
    oldest_first = [revision.revision for revision in script.walk_revisions()][::-1]
    assert script.get_heads() == [migrate.HEAD]
    assert tuple(oldest_first) == migrate.KNOWN


def test_versions_are_frozen_in_time() -> None:
    """A migration that imports ours would mean something else after the next change."""
    for path in (SOURCE_OF_MIGRATIONS / "versions").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.split(".")[0] in ("ledger", "streams", "gateway") for name in names)


def test_down_to_nothing_and_up_again(ledger: Ledger) -> None:
    with ledger.write() as tx:
        migrate.downgrade(tx.connection, "base")
        assert inspect(tx.connection).get_table_names() == ["alembic_version"]
    with ledger.write() as tx:
        migrate.upgrade(tx.connection, "head")
        made = inspect(tx.connection).get_table_names()
        assert {name for name in made if not tables.is_part(name)} == {
            "alembic_version",
            *tables.metadata.tables,
        }


FIRST = migrate.KNOWN[0]


def rows_of(ledger: Ledger, *left_out: str) -> dict[str, list[tuple[object, ...]]]:
    """Every row of every table but `left_out`."""
    with ledger.read() as read:
        return {
            name: [tuple(row) for row in read.rows(select(table).order_by(*table.primary_key))]
            for name, table in tables.metadata.tables.items()
            if name not in left_out
        }


def test_a_first_ledger_with_data_comes_up_with_its_attempts_and_counts_the_same(
    ledger: Ledger,
) -> None:
    """Nothing but the new tables and the new column is touched; the attempts are those which the
    same events make now."""
    feeder = Feeder(ledger)
    for n in range(30):
        request = f"r{n:02}"
        tries = [say.accepted(request), say.attempted(request, 1)]
        if n % 3:
            tries.append(say.attempted(request, 2, say.after(1), backend_id="b-2", after="é\n"))
        if n % 5 == 0:
            tries.append(say.attempted(request, len(tries), say.after(2), backend_id="b-3"))
        source = f"/gateway/test/{n}"
        end = say.finished(request) if n % 4 else say.abandoned(request, source=source)
        feeder.feed(scribed([*tries, end], source))
    before = rows_of(ledger)
    assert len(before["attempts"]) == 30 + 20 + 6
    with ledger.write() as tx:
        migrate.downgrade(tx.connection, FIRST)
        assert {"attempts", "counters"}.isdisjoint(inspect(tx.connection).get_table_names())
        # As the first version left them: it gave no reason.
        tx.execute(text("UPDATE requests SET reason = NULL WHERE state = 'abandoned'"))
    with ledger.read() as read:
        assert migrate.schema_of(read) == FIRST
    migrate.bring_up(ledger)
    assert rows_of(ledger) == before
    with ledger.read() as read:
        assert audit(read).clean
    assert rebuild(ledger).parted == ()


BEFORE_CHARGES = "20261202_months"
"""The last schema whose roll-up counted requests and tokens only."""


def test_a_roll_up_of_before_charges_is_filled_from_the_requests(ledger: Ledger) -> None:
    """To what the writer makes of the same events: calls that failed, and times that are known of
    all requests of an hour, of some and of none; what is open counts nowhere."""
    drafts = []
    for n in range(40):
        at, attempts = say.after(600 * n), n % 4
        known = n % 3 or n > 30
        took: dict[str, Any] = {"duration_us": 10**6 + n, "overhead_us": n} if known else {}
        drafts.append(say.accepted(f"r{n}", at, f"key-{n % 2}"))
        if n % 10 == 9:
            drafts.append(say.abandoned(f"r{n}", at, f"key-{n % 2}"))
        elif n % 10 == 8:
            drafts.append(say.attempted(f"r{n}", 3, at))
        else:
            drafts.append(say.finished(f"r{n}", at, f"key-{n % 2}", attempts=attempts, **took))
    Feeder(ledger).feed(scribed(drafts))
    before = rows_of(ledger)
    counted = {row[-3:] for row in before["usage_hourly"]}
    assert len(counted) > 5 and any(row[-1] == 0 for row in before["usage_hourly"])
    with ledger.write() as tx:
        migrate.downgrade(tx.connection, BEFORE_CHARGES)
        columns = {column["name"] for column in inspect(tx.connection).get_columns("usage_hourly")}
        assert "requests" in columns and "busy_us" not in columns
    migrate.bring_up(ledger)
    assert rows_of(ledger) == before
    with ledger.read() as read:
        assert audit(read).clean
    assert rebuild(ledger).parted == ()


def test_a_first_ledger_is_not_read_before_it_is_brought_up(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with open_ledger(path) as ledger, ledger.write() as tx:
        migrate.downgrade(tx.connection, FIRST)
    with pytest.raises(LedgerUnavailable, match=rf"older version.*{FIRST}"):
        open_ledger(path, readonly=True)
    assert read_version(path) == migrate.HEAD


def test_a_migration_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(connection: object, revision: str) -> None:
        upgrade(connection, revision)  # type: ignore[arg-type]
        raise LedgerUnavailable("the disk is full")

    upgrade = migrate.upgrade
    monkeypatch.setattr(migrate, "upgrade", half)
    with pytest.raises(LedgerUnavailable):
        open_ledger(tmp_path / "ledger.db")
    monkeypatch.undo()
    with sqlite3.connect(tmp_path / "ledger.db") as plain:
        assert plain.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
    plain.close()
    assert read_version(tmp_path / "ledger.db") == migrate.HEAD


def test_many_processes_make_it_once(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        found = pool.map(read_version, [path] * 8)
        pool.close()
        pool.join()
    assert set(found) == {migrate.HEAD}


def test_opening_again_needs_no_alembic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger.db"
    open_ledger(path).close()
    monkeypatch.setattr(migrate, "upgrade", None)
    assert read_version(path) == migrate.HEAD


@pytest.mark.parametrize("readonly", [True, False])
def test_a_newer_schema_is_left_alone(tmp_path: Path, readonly: bool) -> None:
    path = tmp_path / "ledger.db"
    set_version(path, "20991231_from_the_future")
    before = path.read_bytes()
    with pytest.raises(LedgerUnavailable, match=r"newer version of Tollbook.*upgrade Tollbook"):
        open_ledger(path, readonly=readonly)
    assert path.read_bytes() == before


def test_an_older_schema_is_named_when_it_may_not_be_changed(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    sqlite3.connect(path).close()
    with pytest.raises(LedgerUnavailable, match=r"older version.*none yet.*start the gateway"):
        open_ledger(path, readonly=True)
    with pytest.raises(LedgerUnavailable, match="older version"):
        open_ledger(path, migrate=False)


def test_reading_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(LedgerUnavailable, match="there is no ledger at"):
        open_ledger(tmp_path / "ledger.db", readonly=True)
    assert list(tmp_path.iterdir()) == []


def test_a_reader_cannot_write(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    open_ledger(path).close()
    with open_ledger(path, readonly=True) as ledger:
        with pytest.raises(AssertionError), ledger.write():
            pass
        with (
            pytest.raises(LedgerUnavailable, match="may not be written"),
            ledger.read() as read,
        ):
            read.rows(insert(tables.meta), {"key": "k", "value": "v"})


def test_a_url_names_its_driver(tmp_path: Path) -> None:
    url = ledger_url(tmp_path / "ledger.db")
    assert url.startswith("sqlite+pysqlite:////")
    with open_ledger(url) as ledger:
        assert ledger.where == str(tmp_path / "ledger.db")
    with pytest.raises(LedgerUnavailable, match="not supported") as refused:
        open_ledger("mysql+pymysql://me:secret@host/db")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("bad", [b"not a database " * 100, b"SQLite format 3\0" + b"\xff" * 4096])
def test_a_file_that_is_no_ledger_is_named(tmp_path: Path, bad: bytes) -> None:
    path = tmp_path / "ledger.db"
    path.write_bytes(bad)
    with pytest.raises(LedgerUnavailable, match=r"ledger\.db"):
        open_ledger(path)
    assert path.read_bytes() == bad


def test_a_locked_ledger_is_told_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "BUSY_SECONDS_MAX", 0.1)
    path = tmp_path / "ledger.db"
    with open_ledger(path) as one, open_ledger(path) as other, one.write():
        with pytest.raises(LedgerUnavailable, match="written by another process"), other.write():
            pass
        with other.read() as read:  # readers do not wait
            assert read.rows(select(tables.meta)) == []


@pytest.mark.parametrize("part", [False, True])
def test_a_full_disk_is_told_in_words_and_loses_nothing(tmp_path: Path, part: bool) -> None:
    with open_ledger(tmp_path / "ledger.db") as ledger:
        with ledger.write() as tx:
            tx.execute(insert(tables.meta), {"key": "old", "value": "kept"})
        with (
            pytest.raises(LedgerUnavailable, match="its disk is full; free some space"),
            ledger.write() as tx,
        ):
            pages = tx.value(text("PRAGMA page_count"))
            tx.value(text(f"PRAGMA max_page_count = {pages}"))
            with tx.savepoint() if part else nullcontext():
                tx.insert(insert(tables.meta), [{"key": "big", "value": "x" * 100_000}])
        with ledger.read() as read:
            assert [row.key for row in read.rows(select(tables.meta))] == ["old"]


def test_a_writer_that_began_after_a_reader_does_not_deadlock(tmp_path: Path) -> None:
    """Two writers at once: the second waits for the first, and neither fails."""
    with open_ledger(tmp_path / "ledger.db") as ledger:

        def write(name: str) -> None:
            for n in range(20):
                with ledger.write() as tx:
                    tx.value(select(tables.meta.c.key).limit(1))
                    tx.execute(insert(tables.meta), {"key": f"{name}{n}", "value": ""})

        threads = [threading.Thread(target=write, args=(name,)) for name in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with ledger.read() as read:
            assert len(read.rows(select(tables.meta))) == 40


@pytest.mark.parametrize(("durability", "level"), [("process", 1), ("power", 2)])
def test_durability_sets_what_a_commit_waits_for(
    tmp_path: Path, durability: engines.Durability, level: int
) -> None:
    with (
        open_ledger(tmp_path / "ledger.db", durability=durability) as ledger,
        ledger.read() as read,
    ):
        assert read.value(text("PRAGMA synchronous")) == level
        assert read.value(text("PRAGMA journal_mode")) == "wal"
