"""Tables, CSV and JSON: what is missing is never a zero, and a stranger's text does nothing."""

import csv
import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cli.output import (
    NOTHING,
    Cell,
    Column,
    Table,
    cell_text,
    csv_text,
    json_text,
    pairs_text,
    printable,
    table_text,
)

LONG = "9" * 30


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (None, NOTHING),
        (0, "0"),
        (1234567, "1,234,567"),
        (True, "yes"),
        (False, "no"),
        ("m", "m"),
        (("a", "b"), "a, b"),
        (Decimal("0.10"), "0.10"),
        (Decimal("1E+3"), "1000"),
        (1.5, "1.5"),
        (datetime(2026, 11, 29, 8, tzinfo=UTC), "2026-11-29T08:00:00Z"),
        (date(2026, 11, 29), "2026-11-29"),
    ],
)
def test_a_cell_as_text(cell: Cell, text: str) -> None:
    assert cell_text(cell) == text


def test_a_number_is_never_cut_and_a_missing_one_is_a_dash() -> None:
    table = Table(
        (Column("model"), Column("tokens", number=True)),
        (("a rather long name of a model", int(LONG)), ("b", None)),
        ("below",),
    )
    for width in (5, 20, 80, 1000):
        lines = table_text(table, width).splitlines()
        assert any(f"{int(LONG):,}" in line for line in lines), width
        assert any(line.startswith("b") and line.endswith(NOTHING) for line in lines), width
        assert lines[-1] == "below"


def test_a_table_is_folded_to_its_width_where_it_can_be() -> None:
    table = Table((Column("text"),), (("word " * 40,),))
    assert max(map(len, table_text(table, 40).splitlines())) <= 40


def test_styles_only_on_a_terminal() -> None:
    table = Table((Column("a"),), (("[bold]x[/]",),))
    assert "\x1b" in table_text(table, 40, styled=True)
    plain = table_text(table)
    assert "\x1b" not in plain and "[bold]x[/]" in plain


def test_csv_has_plain_numbers_and_no_formulas() -> None:
    table = Table(
        tuple(Column(name) for name in "abcdefg"),
        (("=1+1", -5, "-0.5", Decimal("-1.50"), None, "a,b", "@x"),),
    )
    assert csv_text(table) == "a,b,c,d,e,f,g\n'=1+1,-5,-0.5,-1.50,,\"a,b\",'@x"


def test_json_is_exact() -> None:
    value = {"cost": Decimal("0.10"), "when": datetime(2026, 11, 29, tzinfo=UTC), "none": None}
    assert json.loads(json_text(value)) == {
        "cost": "0.10",
        "when": "2026-11-29T00:00:00Z",
        "none": None,
    }


def test_pairs_stand_in_columns() -> None:
    assert pairs_text([("id", "x"), ("models", None)]) == f"id      x\nmodels  {NOTHING}"
    assert pairs_text([]) == ""


@given(st.text())
def test_no_text_reaches_the_terminal_as_a_command(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    table = Table((Column("a"),), ((text,),))
    assert all(c.isprintable() or c == "\n" for c in table_text(table))
    assert all(c.isprintable() or c == "\n" for c in csv_text(table))


@given(st.lists(st.tuples(st.integers() | st.none(), st.text("abc,\"'=\n", max_size=5))))
def test_csv_reads_back(rows: list[tuple[int | None, str]]) -> None:
    text = csv_text(Table((Column("n"), Column("t")), tuple(rows)))
    found = list(csv.reader(io.StringIO(text + "\n")))
    assert found[0] == ["n", "t"]
    assert [row[0] for row in found[1:]] == ["" if n is None else str(n) for n, _ in rows]
    assert [row[1].removeprefix("'") for row in found[1:]] == [
        printable(t).removeprefix("'") for _, t in rows
    ]
