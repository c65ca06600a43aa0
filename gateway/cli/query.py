"""`tollbook query`: one SQL question over the ledger and its exports, answered by DuckDB."""

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal

import click
import msgspec

from gateway.cli.data import current_ledger
from gateway.cli.options import csv_option, json_option, one_format
from gateway.cli.output import Cell, Column, Table, json_text, show
from gateway.cli.place import Place, place_option

NUMBERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "DECIMAL", "DOUBLE", "FLOAT", "U")
"""How the types begin that stand to the right in a table. U: the unsigned ones, and UHUGEINT."""


@click.command("query", short_help="Answer a SELECT over ledger and exports.")
@click.argument("sql")
@csv_option
@json_option
@place_option
def command(sql: str, as_csv: bool, as_json: bool, place: Place) -> None:
    """Answer a SELECT over the ledger (requests, attempts, bill, usage_hourly, events, keys,
    prices, counters, conservation, sources, names) and the exported months (exports,
    exported_requests, exported_bill). Nothing can be changed by it."""
    one_format(as_json, as_csv)
    from ledger.export.query import run_query
    from streams.local.layout import Layout

    with current_ledger(place) as ledger:
        result = run_query(ledger, Layout(place.data).exports, sql)
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


def plain(value: object) -> Cell:
    """A value of DuckDB as a cell: nested ones become JSON. Pure."""
    if value is None or isinstance(value, str | bool | int | float | Decimal | datetime | date):
        return value
    if isinstance(value, Mapping | Sequence):
        return msgspec.json.encode(value).decode()
    return str(value)
