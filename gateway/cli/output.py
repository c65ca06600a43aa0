"""Tables, CSV and JSON: how values become text. Pure but for `show`.

A missing value is shown as a dash in a table, as nothing in CSV and as null in JSON; it is never
shown as zero. A model's name may come from a stranger's request, so no control character of a value
reaches the terminal, and no cell of a CSV starts a formula in a spreadsheet.
"""

import csv
import io
import re
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Final

import click
import msgspec

NOTHING: Final = "–"
FOLDED_WIDTH_MIN: Final = 8
"""A column of text is folded to no less than this, so that a narrow terminal stays readable."""
_FORMULA: Final = ("=", "+", "-", "@")
_NUMBER: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?")

Cell = str | int | bool | float | Decimal | datetime | date | Sequence[str] | None


class Column(msgspec.Struct, frozen=True):
    """One column. A `number` stands to the right and is never folded over two lines."""

    header: str
    number: bool = False


class Table(msgspec.Struct, frozen=True):
    """Rows of equal length under their columns, and sentences to stand below."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()


def cell_text(cell: Cell) -> str:
    """`cell` for a person: thousands apart, instants in UTC, nothing unprintable."""
    if cell is None:
        return NOTHING
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int):
        return f"{cell:,}"
    return printable(_plain(cell))


def printable(text: str) -> str:
    """`text` with every control character written as an escape, so that a terminal obeys none."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def csv_text(table: Table) -> str:
    """`table` as CSV with a header line. Numbers are plain digits, a missing value is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([column.header for column in table.columns])
    for row in table.rows:
        writer.writerow([_csv_cell(cell) for cell in row])
    return out.getvalue().removesuffix("\n")


def json_text(value: object) -> str:
    """`value` as JSON with an indent of two. Decimals are text, instants are RFC 3339."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def table_text(table: Table, width: int | None = None, *, styled: bool = False) -> str:
    """`table` drawn for a person, not wider than `width` where its words allow it.

    A number is never cut: with too little room the lines are longer than the terminal.
    """
    from rich import box
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table as Drawn
    from rich.text import Text

    drawn = Drawn(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    texts = [[cell_text(cell) for cell in row] for row in table.rows]
    for index, column in enumerate(table.columns):
        widest = max([len(column.header), *(len(line[index]) for line in texts)])
        drawn.add_column(
            Text(column.header),
            justify="right" if column.number else "left",
            no_wrap=column.number,
            min_width=widest if column.number else min(widest, FOLDED_WIDTH_MIN),
            overflow="fold",
        )
    for line in texts:
        drawn.add_row(*(Text(text) for text in line))
    console = Console(
        file=io.StringIO(), width=width or 10_000, force_terminal=styled, no_color=not styled
    )
    roomy = console.options.update(max_width=10_000)
    least = Measurement.get(console, roomy, drawn).minimum
    console.width = max(console.width, least)
    with console.capture() as captured:
        console.print(drawn)
    lines = [line.rstrip() for line in captured.get().rstrip("\n").split("\n")]
    return "\n".join([*lines, *([""] if table.notes else []), *table.notes])


def show(table: Table, *, as_csv: bool = False, empty: str = "nothing to show") -> None:
    """Print `table`: CSV if asked, else drawn for the terminal; `empty` stands for no rows."""
    if as_csv:
        click.echo(csv_text(table))
        return
    if not table.rows:
        click.echo("\n".join([empty, *table.notes]))
        return
    if sys.stdout.isatty():
        import shutil

        click.echo(table_text(table, shutil.get_terminal_size().columns, styled=True))
    else:
        click.echo(table_text(table))


def pairs_text(pairs: Iterable[tuple[str, Cell]]) -> str:
    """Names and values of one thing, one a line, the values in one column."""
    lines = [(name, cell_text(value)) for name, value in pairs]
    wide = max((len(name) for name, _ in lines), default=0)
    return "\n".join(f"{name:<{wide}}  {value}" for name, value in lines)


def _plain(cell: Cell) -> str:
    if isinstance(cell, datetime):
        return cell.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    if isinstance(cell, date):
        return cell.isoformat()
    if isinstance(cell, str):
        return cell
    if isinstance(cell, Decimal):
        return format(cell, "f")
    if isinstance(cell, Sequence):
        return ", ".join(cell)
    return str(cell)


def _csv_cell(cell: Cell) -> str:
    if cell is None:
        return ""
    text = printable(_plain(cell))
    # A spreadsheet runs a cell that begins like this; an apostrophe makes it text again.
    runs = isinstance(cell, str) and text.startswith(_FORMULA) and not _NUMBER.fullmatch(text)
    return f"'{text}" if runs else text
