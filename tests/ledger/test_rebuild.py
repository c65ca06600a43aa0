"""Rebuild: dropped and replayed, the projections are what they were, or what the events say."""

import random
import threading
from datetime import timedelta

import pytest
from sqlalchemy import Table, delete, insert, select, update

from ledger.audit import audit
from ledger.errors import LedgerUnavailable
from ledger.events import Event
from ledger.sql import rebuild as module
from ledger.sql import tables
from ledger.sql.bill import bill
from ledger.sql.hashes import projection_hash
from ledger.sql.projections import MAIN, request_rows
from ledger.sql.rebuild import rebuild
from ledger.sql.session import Ledger
from tests.ledger.closings import close
from tests.ledger.ledgers import Feeder, count, scribed
from tests.support import events as say
from tests.support.events import SOURCE, START, Scribe

RUNNER = "/runner/test/0193a0000000700080000000000000c3"


def story(requests: int = 40) -> list[Event]:
    """A gateway's requests, finished, open and abandoned, with its marks and its closing."""
    scribe, runner = Scribe(), Scribe(RUNNER)
    stored = scribe.write_all(say.mark(SOURCE, 1, START, {}))
    for n in range(requests):
        at = START + timedelta(minutes=7 * n)
        begin = [say.accepted(f"r{n:04}", at), say.attempted(f"r{n:04}", 1, at)]
        if n % 5 == 0:
            begin.append(say.attempted(f"r{n:04}", 2, at, backend_id="b-2", after="refused"))
        begin.append(say.delivered(f"r{n:04}", 1, at=at))
        begin.append(say.counted("b-1", n, at, {"vllm:prompt_tokens_total": 12 * n}))
        stored += scribe.write_all(*begin)
        if n % 3 == 0:
            stored.append(scribe.write(say.finished(f"r{n:04}", at)))
        elif n % 3 == 1:
            stored.append(runner.write(say.abandoned(f"r{n:04}", at)))
    stored.append(runner.write(say.closed(SOURCE, say.after(9999), dict(scribe.last), RUNNER)))
    return stored


def registry() -> list[Event]:
    drafts = [
        say.key_issued("key-1"),
        say.price("p1", {"uncached_in": "1.25", "other_out": "0.000001"}, start=say.after(-9)),
        say.key_issued("key-2", models=["m", "ü"]),
        say.key_revoked("key-1"),
        say.price("p2", {"uncached_in": "0", "cached_in": "100"}, base=1, start=say.after(4000)),
        say.price("stale", {"uncached_in": "7"}, base=1, start=say.after(5000)),
    ]
    return [scribed([draft], f"/cli/{n}")[0] for n, draft in enumerate(drafts)]


def filled(ledger: Ledger) -> None:
    Feeder(ledger, "registry").feed(registry())
    feeder, told = Feeder(ledger), story()
    feeder.feed(told[:120])
    # What the gateway and the runner told behind this came late.
    close(ledger, without=[SOURCE])
    feeder.feed(told[120:])


def everything(ledger: Ledger) -> dict[str, list[tuple[object, ...]]]:
    """Every row of every table."""
    with ledger.read() as read:
        return {
            table.name: [
                tuple(row) for row in read.rows(select(table).order_by(*table.primary_key))
            ]
            for table in tables.metadata.sorted_tables
        }


def test_it_changes_nothing_where_nothing_was_wrong(ledger: Ledger) -> None:
    filled(ledger)
    before = everything(ledger)
    told: list[tuple[int, int]] = []
    done = rebuild(ledger, progress=lambda *pair: told.append(pair))
    assert done.parted == ()
    assert done.before == done.after
    assert everything(ledger) == before  # the running totals of open requests too
    assert told[-1] == (done.events, done.events)
    assert done.events == count(ledger, tables.events)


def test_an_empty_ledger_is_rebuilt(ledger: Ledger) -> None:
    assert rebuild(ledger).parted == ()


@pytest.mark.parametrize("table", tables.PROJECTIONS, ids=lambda table: str(table.name))
def test_what_was_lost_comes_back(ledger: Ledger, table: Table) -> None:
    filled(ledger)
    before = everything(ledger)
    with ledger.write() as tx:
        tx.execute(delete(table).where(table.c[table.columns.keys()[-1]].is_not(None)))
        tx.execute(delete(table))
    done = rebuild(ledger)
    assert done.parted == (table.name,)
    if table.name == "source_topics":
        # How far the running totals came is only told by events that are not kept.
        before[table.name] = [row for row in before[table.name] if row[1] != "tokens"]
    if table.name == "requests":
        before, now = ({**all_, "requests": []} for all_ in (before, everything(ledger)))
        assert now == before
        return
    assert everything(ledger) == before


def test_what_was_made_up_goes(ledger: Ledger) -> None:
    filled(ledger)
    with ledger.write() as tx:
        invented = {"state": "open", "attempts": 1, "chunks": 0, "basis": "none"}
        tx.execute(insert(tables.requests), {"request_id": "invented", **invented})
        tx.execute(update(tables.usage_hourly).values(other_out=10**6))
        tx.execute(update(tables.prices).values(uncached_in_per_million="0.01"))
    done = rebuild(ledger)
    assert done.parted == ("requests", "usage_hourly", "prices")
    with ledger.read() as read:
        assert request_rows(read, MAIN, ["invented"]) == {}
        assert audit(read).clean


def test_running_totals_of_open_requests_are_kept(ledger: Ledger) -> None:
    """Also where they came before the request itself, as they may from another topic."""
    feeder = Feeder(ledger)
    first, early = scribed([say.delivered("r1", chunks=5), say.delivered("r2", chunks=6)])
    feeder.feed([early, *scribed([say.accepted("r1")]), first])
    rebuild(ledger)
    with ledger.read() as read:
        rows = request_rows(read, MAIN, ["r1", "r2"])
    assert {name: row.chunks for name, row in rows.items()} == {"r1": 5, "r2": 6}
    feeder.feed(scribed([say.delivered("r1"), say.delivered("r2"), say.delivered("r1", 2, 9)]))
    with ledger.read() as read:
        assert request_rows(read, MAIN, ["r1"])["r1"].chunks == 9


def test_the_hash_tells_what_is_kept_and_nothing_else(ledger: Ledger) -> None:
    filled(ledger)
    with ledger.read() as read:
        before = projection_hash(read)
    open_ones = tables.requests.c.state == "open"
    with ledger.write() as tx:
        tx.execute(update(tables.requests).where(open_ones).values(chunks=77, other_out=1))
    with ledger.read() as read:
        assert projection_hash(read) == before
    with ledger.write() as tx:
        tx.execute(update(tables.requests).where(~open_ones).values(chunks=77))
    with ledger.read() as read:
        after = projection_hash(read)
    assert [name for name in after if after[name] != before[name]] == ["requests"]


def test_a_rebuild_that_fails_leaves_everything(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(ledger)
    before = everything(ledger)

    def fail(*_: object) -> None:
        raise LedgerUnavailable("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(module, "projection_hash", fail)
        with pytest.raises(LedgerUnavailable):
            rebuild(ledger)
        patched.undo()
        patched.setattr(module, "_swap", fail)
        with pytest.raises(LedgerUnavailable):
            rebuild(ledger)
    assert everything(ledger) == before
    assert rebuild(ledger).parted == ()


def test_a_live_runner_waits_and_loses_nothing(ledger: Ledger, seed: int) -> None:
    """One thread writes batches while another rebuilds, over and over."""
    dice, stored = random.Random(seed), story(400)
    feeder = Feeder(ledger)
    ended = threading.Event()
    parted: list[tuple[str, ...]] = []

    def rebuilding() -> None:
        while True:
            parted.append(rebuild(ledger).parted)
            # SQLite hands its lock to whoever asks at the right moment: leave the writer some.
            if ended.wait(0.05):
                break

    other = threading.Thread(target=rebuilding)
    other.start()
    try:
        while stored:
            size = dice.randrange(1, 60)
            feeder.feed(stored[:size])
            del stored[:size]
    finally:
        ended.set()
        other.join()
    assert set(parted) == {()}
    with ledger.read() as read:
        assert audit(read).clean
        assert sum(line.requests for line in bill(read, None)) == 400 - 400 // 3


def test_a_reader_sees_one_moment_while_the_rows_change_places(ledger: Ledger) -> None:
    filled(ledger)
    with ledger.read() as read:
        before = bill(read, None)
        assert rebuild(ledger).parted == ()
        Feeder(ledger, "more").feed(scribed(say.life("later"), "/gateway/other/1"))
        assert bill(read, None) == before
    with ledger.read() as read:
        assert bill(read, None) != before
