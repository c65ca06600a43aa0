"""`tollbook bill`: what a month cost, by key, model and day, with how each count was obtained."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import click

from gateway.cli.data import current_ledger
from gateway.cli.options import (
    GROUPS,
    MONTH,
    csv_option,
    json_option,
    one_format,
)
from gateway.cli.output import Cell, Column, Table, json_text, show
from gateway.cli.place import Place, place_option
from ledger.clock import SystemClock
from ledger.events import BUCKETS

if TYPE_CHECKING:
    from ledger.sql.bill import BillLine

BASIS_WORDS: Final = {
    "running": "running: the engine's own count up to a cut",
    "tokenized": "tokenized: counted with the engine's tokenizer after a cut",
    "counted": "counted: chunks that were delivered, a lower bound",
    "none": "none: nothing is known of these requests' tokens, so neither of their cost",
}
"""What is said below a table of every basis in it that is not the engine's final word."""


@click.command("bill", short_help="Print the bill of a month.")
@click.option(
    "--month", type=MONTH, metavar="YYYY-MM", help="A month in UTC. Default: the current one."
)
@click.option(
    "--by",
    type=GROUPS,
    default="key,model",
    show_default=True,
    metavar="GROUPS",
    help="What lines are told apart by: key, model and day, with commas between.",
)
@csv_option
@json_option
@place_option
def command(
    month: str | None, by: tuple[str, ...], as_csv: bool, as_json: bool, place: Place
) -> None:
    """Print the bill of a month: tokens, requests and exact cost, a line for each basis."""
    one_format(as_json, as_csv)
    month = month or f"{SystemClock().now():%Y-%m}"
    with current_ledger(place) as ledger, ledger.read() as read:
        from ledger.sql.bill import bill

        lines = bill(read, month, by)
    if as_json:
        click.echo(json_text({"month": month, "rows": [line_json(line, by) for line in lines]}))
        return
    table = bill_table(lines, by)
    show(table, as_csv=as_csv, empty=f"no request of {month} has an end yet")


def line_json(line: "BillLine", by: Sequence[str]) -> dict[str, object]:
    """One line of the bill for JSON. What is unknown is null; the cost is exact text. Pure."""
    return {
        "key": line.key_id,
        "name": line.name,
        "model": line.model,
        **({"day": line.day} if "day" in by else {}),
        **{bucket: getattr(line, bucket) for bucket in BUCKETS},
        "requests": line.requests,
        "basis": line.basis,
        "cost": line.cost,
        "currency": line.currency,
        "unpriced": line.unpriced,
    }


def bill_table(lines: Sequence["BillLine"], by: Sequence[str]) -> Table:
    """The bill as a table: only the columns that it is grouped by. Pure."""
    columns: list[tuple[Column, str]] = []
    if "key" in by:
        columns += [(Column("key"), "key_id"), (Column("name"), "name")]
    columns += [(Column(group), group) for group in ("model", "day") if group in by]
    columns += [(Column(bucket, number=True), bucket) for bucket in BUCKETS]
    columns += [(Column("requests", number=True), "requests"), (Column("basis"), "basis")]
    columns += [(Column("cost", number=True), "cost"), (Column("currency"), "currency")]
    rows: list[tuple[Cell, ...]] = [
        tuple(getattr(line, field) for _, field in columns) for line in lines
    ]
    return Table(
        columns=tuple(column for column, _ in columns),
        rows=tuple(rows),
        notes=tuple(notes(lines)),
    )


def notes(lines: Iterable["BillLine"]) -> Iterable[str]:
    """What a reader of the bill must know: totals, what has no price, what a basis means. Pure."""
    lines = list(lines)
    totals: dict[str, int] = {}
    for line in lines:
        if line.cost is not None and line.currency is not None:
            totals[line.currency] = totals.get(line.currency, 0) + pico_of(line.cost)
    from ledger.amounts import decimal_text

    said = [f"{decimal_text(pico)} {currency}" for currency, pico in sorted(totals.items())]
    if said:
        yield f"Total: {', '.join(said)}"
    unpriced = [line for line in lines if line.lacks_price]
    if unpriced:
        buckets = {bucket for line in unpriced for bucket in line.unpriced}
        kinds = ", ".join(bucket for bucket in BUCKETS if bucket in buckets)
        yield (
            f"{len(unpriced)} of {len(lines)} lines have no price"
            f"{f' for {kinds}' if kinds else ''} and are in no total: "
            "`tollbook prices set MODEL --in P --out P --from DATE`"
        )
    found = {line.basis for line in lines}
    yield from (words for basis, words in BASIS_WORDS.items() if basis in found)


def pico_of(cost: str) -> int:
    """An exact decimal of a currency in 10^-12 of it: the inverse of `decimal_text`. Pure."""
    from ledger.amounts import PICO_PER_UNIT

    whole, _, part = cost.removeprefix("-").partition(".")
    pico = int(whole) * PICO_PER_UNIT + int((part or "0").ljust(12, "0"))
    return -pico if cost.startswith("-") else pico
