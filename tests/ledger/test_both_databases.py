"""What SQLite and Postgres must do alike, each in its own way: transactions, and the same bytes."""

import random
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select, text

from gateway.dev.postgres import Postgres
from ledger.audit import audit
from ledger.clock import SystemClock
from ledger.errors import LedgerUnavailable
from ledger.events import Event
from ledger.export.month import export_month
from ledger.sql import engines, migrate, tables
from ledger.sql.bill import bill
from ledger.sql.hashes import projection_hash
from ledger.sql.names import erase_name, names_of, set_name
from ledger.sql.rebuild import rebuild
from ledger.sql.session import Ledger, open_ledger
from ledger.sql.writer import Batch, LedgerWriter
from tests.ledger.ledgers import Make, count
from tests.support import events as say
from tests.support.books import Books
from tests.support.events import START, Scribe

META = tables.meta


def note(ledger: Ledger, key: str) -> None:
    with ledger.write() as tx:
        tx.execute(insert(META), {"key": key, "value": ""})


def test_a_reader_sees_one_moment_and_does_not_wait(ledger: Ledger) -> None:
    note(ledger, "a")
    with ledger.read() as read:
        assert len(read.rows(select(META))) == 1
        note(ledger, "b")
        assert len(read.rows(select(META))) == 1
    assert count(ledger, META) == 2


def test_a_reader_does_not_see_what_is_not_committed(ledger: Ledger) -> None:
    with ledger.write() as tx:
        tx.execute(insert(META), {"key": "a", "value": ""})
        assert count(ledger, META) == 0
    assert count(ledger, META) == 1


def test_a_block_that_raises_writes_nothing_and_frees_the_ledger(ledger: Ledger) -> None:
    with pytest.raises(ZeroDivisionError), ledger.write() as tx:
        tx.execute(insert(META), {"key": "a", "value": ""})
        raise ZeroDivisionError
    note(ledger, "b")
    with ledger.read() as read:
        assert [row.key for row in read.rows(select(META))] == ["b"]


def test_a_writer_reads_what_the_one_before_it_wrote(ledger: Ledger) -> None:
    """Each adds one to a number that it has read: none is lost, whoever waits for whom."""
    with ledger.write() as tx:
        tx.execute(insert(META), {"key": "n", "value": "0"})

    def add() -> None:
        for _ in range(15):
            with ledger.write() as tx:
                value = int(tx.value(select(META.c.value)))
                tx.execute(META.update().values(value=str(value + 1)))

    threads = [threading.Thread(target=add) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with ledger.read() as read:
        assert read.value(select(META.c.value)) == "45"


def test_names_are_given_changed_and_erased(ledger: Ledger) -> None:
    with ledger.write() as tx:
        set_name(tx, "key", "k-1", "Ada")
        set_name(tx, "key", "k-1", "Ada Łovelace 🧮")
        set_name(tx, "backend", "k-1", "the big one")
    with ledger.read() as read:
        assert names_of(read, "key") == {"k-1": "Ada Łovelace 🧮"}
    with ledger.write() as tx:
        assert erase_name(tx, "key", "k-1")
        assert not erase_name(tx, "key", "k-1")


def story(seed: int) -> list[Event]:
    """A month of many keys, some of whose names sort otherwise in a language than by bytes."""
    dice = random.Random(seed)
    scribe = Scribe()
    prices = {"uncached_in": "0.5", "cached_in": "0.05", "other_out": "1.250001"}
    events = scribe.write_all(
        say.key_issued("key-1"), say.price("p-1", prices), say.mark(scribe.source, 1, START, {})
    )
    keys = ["a-b", "ab", "A-B", "Ä", "ä", "a b", "_", "zz", "Z"]
    for n in range(60):
        at = START + timedelta(minutes=dice.randrange(20_000))
        usage = say.tokens(dice.randrange(1000), dice.randrange(50), dice.randrange(10**9))
        events += scribe.write_all(*say.life(f"r-{n}", at, dice.choice(keys), usage=usage))
    lost = (say.accepted("r-lost"), say.abandoned("r-lost"))
    events += scribe.write_all(*lost, say.accepted("r-open"))
    return events


def test_the_same_events_give_the_same_rows_bill_and_bytes_in_both(
    seed: int, postgres_url: str, tmp_path: Path
) -> None:
    events = story(seed)
    found: list[tuple[Any, ...]] = []
    for target in (tmp_path / "ledger.db", postgres_url):
        with open_ledger(target) as ledger:
            order = random.Random(seed + len(found)).sample(events, len(events))
            LedgerWriter(ledger, SystemClock()).write(Batch("log", 0, len(order), order))
            done = export_month(ledger, "2026-11", tmp_path / ledger.dialect)
            files = {path.name: path.read_bytes() for path in done.directory.iterdir()}
            with ledger.read() as read:
                bills = bill(read, None, ("key", "model", "day"))
                found.append((projection_hash(read), bills, files))
    assert len(found[0][1]) > 9 and len(found[0][2]) > 2
    assert found[0] == found[1]


def test_a_locked_ledger_is_told_in_words(
    make_ledger: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "BUSY_SECONDS_MAX", 0.1)
    with (
        make_ledger(tmp_path, "ledger") as ledger,
        ledger.write(),
        pytest.raises(LedgerUnavailable, match="written by another process"),
        ledger.write(),
    ):
        pass


@pytest.mark.parametrize("within", [False, True])
def test_a_postgres_that_is_killed_is_told_in_words_and_loses_nothing(
    own_postgres: Postgres, within: bool
) -> None:
    with open_ledger(own_postgres.create_database("ledger")) as ledger:
        note(ledger, "before")
        with pytest.raises(LedgerUnavailable, match="broke off"), ledger.write() as tx:
            tx.execute(insert(META), {"key": "lost", "value": ""})
            if not within:
                own_postgres.kill()
            with tx.savepoint():
                if within:
                    own_postgres.kill()
                tx.insert(insert(META), [{"key": "lost too", "value": ""}])
        with pytest.raises(LedgerUnavailable, match="cannot be reached"):
            note(ledger, "nobody is there")
        own_postgres.start()
        note(ledger, "after")
        with ledger.read() as read:
            keys = read.rows(select(META.c.key).order_by(META.c.key))
    assert [row.key for row in keys] == ["after", "before"]


def test_exports_hold_no_database(books: Books) -> None:
    """Nothing of a file says which database it came from."""
    books.add(*say.life("r-1"))
    done = export_month(books.ledger, "2026-11", books.exports)
    for path in done.directory.iterdir():
        data = path.read_bytes().lower()
        assert b"sqlite" not in data and b"postgres" not in data


def test_the_code_of_this_schema_goes_on_under_a_newer_one(ledger: Ledger, tmp_path: Path) -> None:
    """While machines are upgraded one by one: a newer version has added to the schema, and what
    runs already goes on. What starts now is refused with words."""
    events = story(1)
    writer = LedgerWriter(ledger, SystemClock())
    writer.write(Batch("log", 0, 60, events[:60]))
    with open_ledger(ledger._engine.url.render_as_string(False)) as newer, newer.write() as tx:
        for table in tables.metadata.sorted_tables:
            tx.execute(text(f"ALTER TABLE {table.name} ADD COLUMN newer TEXT"))
        tx.execute(text("CREATE TABLE newest (id TEXT)"))
        tx.execute(text("UPDATE alembic_version SET version_num = '20991231_from_the_future'"))
    try:
        writer.write(Batch("log", 60, len(events), events[60:]))
        with ledger.read() as read:
            assert audit(read).clean
            assert len(bill(read, None)) > 1
        assert rebuild(ledger).parted == ()
        assert export_month(ledger, "2026-11", tmp_path / "exports").change == "new"
        with pytest.raises(LedgerUnavailable, match="newer version of Tollbook"):
            open_ledger(ledger._engine.url.render_as_string(False))
    finally:
        with ledger.write() as tx:
            for table in tables.metadata.sorted_tables:
                tx.execute(text(f"ALTER TABLE {table.name} DROP COLUMN newer"))
            tx.execute(text("DROP TABLE newest"))
            tx.execute(text(f"UPDATE alembic_version SET version_num = '{migrate.HEAD}'"))


def test_two_writers_that_bring_the_same_events_count_each_once(
    ledger: Ledger, make_ledger: Make, tmp_path: Path, seed: int
) -> None:
    """At the same time, in other orders and other batches, each from a log of its own."""
    events = story(seed)
    dice = random.Random(seed)

    def bring(log: str, order: list[Event], size: int) -> None:
        writer = LedgerWriter(ledger, SystemClock())
        for start in range(0, len(order), size):
            part = order[start : start + size]
            writer.write(Batch(log, start, start + len(part), part))

    orders = [(name, dice.sample(events, len(events)), dice.randint(5, 40)) for name in "abc"]
    threads = [threading.Thread(target=bring, args=work) for work in orders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with make_ledger(tmp_path, "alone") as alone:
        LedgerWriter(alone, SystemClock()).write(Batch("log", 0, len(events), events))
        with alone.read() as one, ledger.read() as many:
            assert projection_hash(one) == projection_hash(many)
            assert bill(one, None) == bill(many, None)
            assert audit(many).clean
