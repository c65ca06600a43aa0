"""The bulk-made ledger is the ledger that its own writer makes of the same events."""

from pathlib import Path

import msgspec
from sqlalchemy import Table, select

from ledger.audit import audit
from ledger.events import Event, payload_of
from ledger.sql import tables
from ledger.sql.hashes import projection_hash
from ledger.sql.rebuild import rebuild
from ledger.sql.replay import load_book
from ledger.sql.rows import event_of
from ledger.sql.session import Ledger, ReadSession
from tests.growth.fill import fill
from tests.growth.traffic import KEYS, MODELS, Traffic, months_of
from tests.ledger.ledgers import Feeder, Make

ROWS = 1500
SEED = 7


def told(ledger: Ledger) -> list[Event]:
    """The events of `ledger` in the order in which they were told: the registry's first."""
    table = tables.events
    with ledger.read() as read:
        columns = [c for c in table.columns if c.name != "place"]
        placed = table.c.place.is_(None)
        statement = select(*columns).order_by(placed, table.c.place, table.c.time_us, table.c.id)
        return [event_of(row) for row in read.rows(statement)]


def test_a_small_seed_is_what_the_writer_makes(make_ledger: Make, tmp_path: Path) -> None:
    months = months_of("2026-01", 3, ROWS)
    with make_ledger(tmp_path, "bulk") as bulk, make_ledger(tmp_path, "written") as written:
        fill(bulk, months, SEED)
        events = told(bulk)
        feeder = Feeder(written)
        for start in range(0, len(events), 1000):
            feeder.feed(events[start : start + 1000])
        with bulk.read() as one, written.read() as other:
            assert projection_hash(one) == projection_hash(other)
            assert rows(one, tables.events) == rows(other, tables.events)
            assert audit(one).findings == []
            book = load_book(one)
        assert len(book.prices) == len(MODELS) + 2
        assert len(book.keys) == len(book.members) == len(KEYS)
        assert rebuild(bulk).parted == ()


def rows(read: ReadSession, table: Table) -> list[tuple[object, ...]]:
    return [tuple(row) for row in read.rows(select(table).order_by(*table.primary_key.columns))]


def test_every_event_is_written_as_our_encoder_writes_it() -> None:
    """Else the sizes that are measured would be those of other events."""
    (month,) = months_of("2026-01", 1, ROWS)
    kinds = set()
    for made in Traffic(month, SEED):
        for _, _, _, _, kind, _, _, _, _, data in made.events:
            said = payload_of(shell(str(kind), str(data)))
            assert msgspec.json.encode(said).decode() == data
            kinds.add(kind)
    assert len(kinds) == 4


def shell(kind: str, data: str) -> Event:
    (month,) = months_of("2026-01", 1, 1)
    (made,) = Traffic(month, SEED)
    row = list(made.events[0])
    del row[8]
    row[4], row[-1] = kind, data
    return event_of(row)


def test_a_seed_is_a_seed() -> None:
    (month,) = months_of("2026-01", 1, 50)
    one, same, other = (list(Traffic(month, seed)) for seed in (1, 1, 2))
    assert one == same != other
    assert len({made.request[0] for made in one}) == 50
