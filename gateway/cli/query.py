"""`tollbook query`: one SQL question over the ledger and its exports, answered by DuckDB."""

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import click
import msgspec

from gateway.cli.data import current_ledger
from gateway.cli.options import csv_option, json_option, one_format
from gateway.cli.output import Cell, Column, Table, json_text, show
from gateway.cli.place import Place, place_option

NUMBERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "DECIMAL", "DOUBLE", "FLOAT", "U")
"""How the types begin that stand to the right in a table. U: the unsigned ones, and UHUGEINT."""


@click.command("query", short_help="Answer a SELECT over ledger and exports.")
@click.argument("sql", required=False)
@click.option(
    "--save",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Instead of an answer: write the ledger's views into a DuckDB database for other tools.",
)
@csv_option
@json_option
@place_option
def command(sql: str | None, save: Path | None, as_csv: bool, as_json: bool, place: Place) -> None:
    """Answer a SELECT over the views of the ledger (bill, charges, requests, usage_hourly, rates,
    projects, memberships, credits, periods, corrections and more) and of the exported months
    (exported_bill, exported_requests, focus_1_2 and more): docs/views.md has all of them with
    their columns, and "SHOW TABLES" lists them. Nothing can be changed by it."""
    one_format(as_json, as_csv)
    if (sql is None) == (save is None):
        raise click.UsageError(
            "give one SELECT, such as 'SELECT * FROM bill', or --save FILE, and not both"
        )
    if save is not None:
        _save(place, save, as_json=as_json, as_csv=as_csv)
        return
    from ledger.export.query import run_query
    from streams.local.layout import Layout

    with current_ledger(place) as ledger:
        result = run_query(ledger, Layout(place.data).exports, sql or "")
    if as_json:
        rows = [dict(zip(result.columns, row, strict=True)) for row in result.rows]
        click.echo(json_text({"columns": result.columns, "rows": rows}))
        return
    columns = tuple(
        Column(name, number=kind.startswith(NUMBERS))
        for name, kind in zip(result.columns, result.types, strict=True)
    )
    rows_text = tuple(tuple(plain(cell) for cell in row) for row in result.rows)
    show(Table(columns, rows_text), as_csv=as_csv, empty="no rows")


def _save(place: Place, path: Path, *, as_json: bool, as_csv: bool) -> None:
    """Write the views to `path`, and say how many rows each has."""
    from ledger.export.query import save_views
    from streams.local.layout import Layout

    with current_ledger(place) as ledger:
        saved = save_views(ledger, Layout(place.data).exports, path)
    if as_json:
        click.echo(json_text({"file": str(path), "rows": saved}))
        return
    columns = (Column("view"), Column("rows", number=True))
    show(Table(columns, tuple(saved.items())), as_csv=as_csv, empty="no views")


def plain(value: object) -> Cell:
    """A value of DuckDB as a cell: nested ones become JSON. Pure."""
    if value is None or isinstance(value, str | bool | int | float | Decimal | datetime | date):
        return value
    if isinstance(value, Mapping | Sequence):
        return msgspec.json.encode(value).decode()
    return str(value)
