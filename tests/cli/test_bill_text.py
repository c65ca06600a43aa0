"""The bill as JSON and as a table: exact money, and a dash for what nobody knows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cli.bill import bill_table, line_json, notes
from gateway.cli.output import csv_text, json_text, table_text
from ledger.amounts import decimal_text, pico_of
from ledger.sql.bill import BillLine


def line(**changed: object) -> BillLine:
    values: dict[str, object] = {
        "key_id": "k1",
        "name": "alice",
        "model": "m",
        "day": None,
        "basis": "reported",
        "requests": 2,
        "uncached_in": 1000,
        "cached_in": 0,
        "cache_write_in": None,
        "reasoning_out": None,
        "other_out": 50,
        "currency": "USD",
        "cost": "0.0000045",
    }
    return BillLine(**{**values, **changed})  # type: ignore[arg-type]


def test_a_line_for_json() -> None:
    shown = line_json(line(), ("key", "model"))
    assert list(shown) == [
        "key",
        "name",
        "model",
        "uncached_in",
        "cached_in",
        "cache_write_in",
        "reasoning_out",
        "other_out",
        "requests",
        "basis",
        "charges",
        "cost",
        "currency",
        "unpriced",
        "price",
        "price_version",
        "band",
        "discount",
        "kind",
        "corrects",
    ]
    assert (shown["key"], shown["cost"], shown["cache_write_in"]) == ("k1", "0.0000045", None)
    assert '"cost": "0.0000045"' in json_text(shown)
    assert line_json(line(day="2026-11-29"), ("day",))["day"] == "2026-11-29"


def test_a_table_shows_what_it_is_grouped_by() -> None:
    by_model = bill_table([line(key_id=None, name=None)], ("model",))
    assert by_model.columns[0].header == "model"
    by_all = bill_table([line(day="2026-11-29")], ("key", "model", "day"))
    assert [column.header for column in by_all.columns][:4] == ["key", "name", "model", "day"]


def test_what_nobody_knows_is_a_dash_and_what_is_zero_is_zero() -> None:
    text = table_text(bill_table([line()], ("key", "model")))
    cells = text.splitlines()[2].split()
    assert cells == [
        "k1",
        "alice",
        "m",
        "1,000",
        "0",
        "–",
        "–",
        "50",
        "2",
        "reported",
        "0.0000045",
        "USD",
        "–",
    ]
    assert csv_text(bill_table([line()], ("model",))).splitlines()[1] == (
        "m,1000,0,,,50,2,reported,0.0000045,USD,"
    )


def test_totals_are_exact_and_by_currency() -> None:
    lines = [line(), line(cost="0.1"), line(cost="2", currency="EUR")]
    assert list(notes(lines)) == ["Total: 2 EUR, 0.1000045 USD"]


def test_what_has_no_price_is_said_and_in_no_total() -> None:
    lines = [line(), line(cost=None, unpriced=("other_out",), basis="counted")]
    said = list(notes(lines))
    assert said[0] == "Total: 0.0000045 USD"
    assert said[1].startswith("1 of 2 lines has no price for other_out and is in no total")
    assert said[2].startswith("counted: ")


def test_nothing_is_said_of_nothing() -> None:
    assert list(notes([])) == []


@given(st.integers(min_value=-(10**20), max_value=10**20))
def test_costs_add_up_exactly(pico: int) -> None:
    assert pico_of(decimal_text(pico)) == pico


@pytest.mark.parametrize("basis", ["running", "tokenized", "counted", "none"])
def test_every_basis_but_the_best_is_explained(basis: str) -> None:
    assert any(note.startswith(f"{basis}: ") for note in notes([line(basis=basis)]))
