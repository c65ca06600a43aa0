"""The short way of many rows into the ledger: nothing converts them, so nothing may need it."""

import pytest
from sqlalchemy import insert, select
from sqlalchemy.exc import IntegrityError

from ledger.events import Event
from ledger.folds.requests import RequestRow
from ledger.sql import tables
from ledger.sql.rows import event_cells, request_of, request_params
from ledger.sql.session import Ledger
from ledger.sql.upsert import insert_missing, upsert
from tests.ledger.ledgers import count, scribed
from tests.support import events as say
from tests.support.events import START


def event_params(event: Event, data: str) -> dict[str, object]:
    return dict(zip(tables.events.columns.keys(), event_cells(event, data), strict=True))


ROW = RequestRow(request_id="r1", stream=True, accepted_at=START, source="s", client_request="c")


@pytest.mark.parametrize("stream", [True, False, None])
def test_rows_come_back_as_they_were_given(ledger: Ledger, stream: bool | None) -> None:
    given = request_params(ROW) | {"stream": stream}
    backwards = dict(reversed(given.items()))
    with ledger.write() as tx:
        tx.insert(upsert(tx.dialect, tables.requests), [backwards])
    with ledger.read() as read:
        (row,) = read.rows(select(tables.requests))
    assert row._asdict() == given and row.stream is stream
    assert request_of(row).accepted_at == START


def test_a_row_without_every_column_is_refused(ledger: Ledger) -> None:
    short = {name: value for name, value in request_params(ROW).items() if name != "reason"}
    with pytest.raises(KeyError, match="reason"), ledger.write() as tx:
        tx.insert(upsert(tx.dialect, tables.requests), [short])
    assert count(ledger, tables.requests) == 0


def test_a_table_whose_types_need_a_conversion_is_refused(ledger: Ledger) -> None:
    with pytest.raises(AssertionError, match=r"poison\.record"), ledger.write() as tx:
        tx.insert(insert(tables.poison), [])


def test_a_row_that_is_there_fails_as_any_insert_does(ledger: Ledger) -> None:
    (event,) = scribed([say.accepted("r1")])
    row = event_params(event, "{}")
    with ledger.write() as tx:
        tx.insert(insert(tables.events), [row])
        with pytest.raises(IntegrityError), tx.savepoint():
            tx.insert(insert(tables.events), [row | {"id": "new", "sequence": 9}, row])
    assert count(ledger, tables.events) == 1, "only the savepoint is undone"


def test_a_statement_is_built_once_for_its_dialect_and_table() -> None:
    for make in (upsert, insert_missing):
        one = make("sqlite", tables.requests)
        assert make("sqlite", tables.requests) is one
        assert make("postgresql", tables.requests) is not one
        assert make("sqlite", tables.usage_hourly) is not one


def test_values_of_every_kind_come_back(ledger: Ledger) -> None:
    """Postgres is sent all rows as one JSON text: nothing of it may be taken for anything else."""
    odd = [
        "",
        " ",
        "null",
        "{}",
        "\\",
        '"',
        "%s %",
        "'",
        "a\nb\tc",
        "\\u0000",
        "🧮",
        "\u2028",
        "\x7f",
    ]
    (event,) = scribed([say.accepted("r1")])
    rows = [
        event_params(event, text) | {"sequence": 2**53 - 1 - n, "id": f"{n}", "type": text}
        for n, text in enumerate(odd)
    ]
    with ledger.write() as tx:
        tx.insert(insert(tables.events), rows)
    with ledger.read() as read:
        found = read.rows(select(tables.events).order_by(tables.events.c.sequence.desc()))
    assert [row._asdict() for row in found] == rows
