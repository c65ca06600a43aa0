"""`tollbook bill`: what a month cost, by project, key, model and day, at which price, and how each
count was obtained."""

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
from gateway.cli.period_words import nothing_words, standing_json, standing_words
from gateway.cli.place import Place, place_option
from ledger.amounts import decimal_text, pico_of
from ledger.clock import SystemClock, to_us
from ledger.events import BUCKETS
from ledger.folds.months import standing_of
from ledger.words import counted
from ledger.zones import month_of

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
    "--month",
    type=MONTH,
    metavar="YYYY-MM",
    help="A month in the zone of the books. Default: the current one.",
)
@click.option(
    "--by",
    type=GROUPS,
    default="key,model",
    show_default=True,
    metavar="GROUPS",
    help="What lines are told apart by: project, key, model and day, with commas between.",
)
@csv_option
@json_option
@place_option
def command(
    month: str | None, by: tuple[str, ...], as_csv: bool, as_json: bool, place: Place
) -> None:
    """Print the bill of a month: tokens, requests and exact cost, a line for each basis and price.

    A month is open until it is closed: what it says may still change, and the output says so.
    """
    one_format(as_json, as_csv)
    with current_ledger(place) as ledger, ledger.read() as read:
        from ledger.sql.bill import bill
        from ledger.sql.replay import load_book
        from ledger.sql.unpriced import unpriced_requests

        book = load_book(read)
        month = month or month_of(to_us(SystemClock().now()), book.rules.zone)
        lines = bill(read, month, by, book=book)
        lacking = any(line.lacks_price for line in lines)
        unpriced = unpriced_requests(read, book, month).total() if lacking else 0
    standing = standing_of(book.periods, month)
    own = standing.own
    if as_json:
        said = {
            **standing_json(standing),
            "zone": book.rules.zone if own is None else own.zone,
            "closed_at": None if own is None else own.closed_at,
            "root": None if own is None else own.root,
            "unpriced": unpriced,
            "rows": [line_json(line, by) for line in lines],
        }
        click.echo(json_text(said))
        return
    state = standing_words(standing)
    if as_csv:
        # A note in the file would be a row to whoever reads it.
        click.echo(f"tollbook: {state}", err=True)
    show(
        bill_table(lines, by, state, whole=as_csv, unpriced=unpriced),
        as_csv=as_csv,
        empty=nothing_words(standing),
    )


def line_json(line: "BillLine", by: Sequence[str]) -> dict[str, object]:
    """One line of the bill for JSON. What is unknown is null; the cost is exact text. Pure."""
    return {
        **({"project": line.project_id, "project_name": line.project} if "project" in by else {}),
        "key": line.key_id,
        "name": line.name,
        "model": line.model,
        **({"day": line.day} if "day" in by else {}),
        **{bucket: getattr(line, bucket) for bucket in BUCKETS},
        "requests": line.requests,
        "basis": line.basis,
        "charges": {name: charge_text(name, count) for name, count in line.charges.items()},
        "cost": line.cost,
        "currency": line.currency,
        "unpriced": line.unpriced,
        "price": line.price_id,
        "price_version": line.price_version,
        "band": line.band,
        "discount": line.discount_id,
        "kind": line.kind,
        "corrects": line.corrects,
    }


def charge_text(name: str, count: int) -> str:
    """How many of a charge: whole ones, or seconds as an exact decimal. Pure."""
    return decimal_text(count * MICROSECOND_PICO) if name == "gpu_second" else str(count)


MICROSECOND_PICO: Final = 1_000_000
"""A microsecond is so many times 10^-12 of a second, as an amount is kept."""


def bill_table(
    lines: Sequence["BillLine"],
    by: Sequence[str],
    state: str | None = None,
    *,
    whole: bool = False,
    unpriced: int = 0,
) -> Table:
    """The bill as a table: only the columns that it is grouped by, and those that say anything, or
    (`whole`) all that can. `state` says whether the month is open, `unpriced` how many requests
    have tokens without a price. Pure."""
    columns: list[tuple[Column, str]] = []
    if "project" in by:
        columns += [(Column("project"), "project_id"), (Column("project name"), "project")]
    if "key" in by:
        columns += [(Column("key"), "key_id"), (Column("name"), "name")]
    columns += [(Column(group), group) for group in ("model", "day") if group in by]
    columns += [(Column(bucket, number=True), bucket) for bucket in BUCKETS]
    columns += [(Column("requests", number=True), "requests"), (Column("basis"), "basis")]
    if whole or any(line.charges for line in lines):
        columns.append((Column("charges"), "charges"))
    columns += [(Column("cost", number=True), "cost"), (Column("currency"), "currency")]
    columns.append((Column("price"), "price_version"))
    if whole:
        columns += [(Column(name), name) for name in ("price_id", "discount_id", "kind")]
    if whole or any(line.corrects is not None for line in lines):
        columns.append((Column("corrects"), "corrects"))
    rows = [tuple(_cell(line, field) for _, field in columns) for line in lines]
    said = list(notes(lines, unpriced))
    return Table(
        columns=tuple(column for column, _ in columns),
        rows=tuple(rows),
        notes=(*said, *(() if state is None else (state,))),
    )


def _cell(line: "BillLine", field: str) -> Cell:
    if field == "charges":
        said = (f"{name} {charge_text(name, count)}" for name, count in line.charges.items())
        return ", ".join(said) or None
    if field == "price_version":
        if line.price_version is None:
            return None
        band = "" if line.band is None else f" {line.band}"
        return f"v{line.price_version}{band}{'' if line.discount_id is None else ' less discount'}"
    cell: Cell = getattr(line, field)
    return cell


def notes(lines: Iterable["BillLine"], unpriced: int = 0) -> Iterable[str]:
    """What a reader of the bill must know: totals, what has no price, what a basis means. Pure."""
    lines = list(lines)
    totals: dict[str, int] = {}
    for line in lines:
        if line.cost is not None and line.currency is not None:
            totals[line.currency] = totals.get(line.currency, 0) + pico_of(line.cost)
    said = [f"{decimal_text(pico)} {currency}" for currency, pico in sorted(totals.items())]
    if said:
        yield f"Total: {', '.join(said)}"
    lacking = [line for line in lines if line.lacks_price]
    if lacking:
        buckets = {bucket for line in lacking for bucket in line.unpriced}
        kinds = ", ".join(bucket for bucket in BUCKETS if bucket in buckets)
        has, is_ = ("has", "is") if len(lacking) == 1 else ("have", "are")
        of = f", with tokens of {counted(unpriced, 'request')}" if unpriced else ""
        yield (
            f"{len(lacking)} of {counted(len(lines), 'line')} {has} no price"
            f"{f' for {kinds}' if kinds else ''} and {is_} in no total{of}: "
            "`tollbook prices set MODEL --in P --out P --from DATE`"
        )
    found = {line.basis for line in lines}
    yield from (words for basis, words in BASIS_WORDS.items() if basis in found)
