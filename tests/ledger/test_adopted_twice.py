"""A spool that was put back and adopted again: of two closings one stands, in any order."""

from itertools import permutations

import msgspec
from sqlalchemy import select

from ledger.events import Draft, payload_of
from ledger.folds.requests import RequestRow, fold_request
from ledger.sql import tables
from ledger.sql.session import Ledger
from tests.ledger.ledgers import Feeder, scribed
from tests.support import events
from tests.support.events import SOURCE, START, after, tokens


def under(draft: Draft, adopter: str) -> Draft:
    """`draft` as `adopter` writes it, under an id of its own."""
    return msgspec.structs.replace(draft, id=f"{draft.id}/{adopter}")


def test_the_adopter_that_had_more_of_the_spool_stands_in_any_order() -> None:
    said = [
        events.accepted("r1"),
        events.delivered("r1", 1, 2),
        under(events.abandoned("r1", chunks=2), "a1"),
        under(events.abandoned("r1", chunks=9), "a2"),
        under(events.abandoned("r1", chunks=9, usage=tokens(out=7)), "a3"),
    ]
    rows = set()
    for order in permutations(scribed(said)):
        row: RequestRow | None = None
        for event in order:
            row = fold_request(row, event, payload_of(event))
        rows.add(msgspec.json.encode(row))
    (only,) = rows
    row = msgspec.json.decode(only, type=RequestRow)
    assert (row.state, row.chunks, row.usage) == ("abandoned", 9, tokens(out=9))


def test_what_a_source_says_of_its_own_end_stands_in_any_order(ledger: Ledger) -> None:
    said = [
        under(events.closed(SOURCE, after(5), {"requests": 2}, "/relay/x/a1"), "a1"),
        under(events.closed(SOURCE, after(9), {"requests": 4}, "/relay/x/a2"), "a2"),
        events.closed(SOURCE, START, {"requests": 4}),
    ]
    for count, wanted in ((2, "/relay/x/a2"), (3, "itself")):
        for number, order in enumerate(permutations(scribed(said[:count]))):
            with ledger.write() as tx:
                for table in (tables.sources, tables.events, tables.source_topics):
                    tx.execute(table.delete())
            feeder = Feeder(ledger, f"log {count} {number}")
            for event in order:
                feeder.feed([event])
            with ledger.read() as read:
                assert read.value(select(tables.sources.c.closed_by)) == wanted
