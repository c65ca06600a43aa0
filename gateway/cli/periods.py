"""`tollbook periods`: the months that are closed, and what was frozen in each."""

from typing import TYPE_CHECKING

import click

from gateway.cli.data import registry
from gateway.cli.failure import Stop
from gateway.cli.options import MONTH, csv_option, json_option, one_format
from gateway.cli.output import Column, Table, csv_text, json_text, show
from gateway.cli.period_words import period_pairs
from gateway.cli.place import Place, place_option
from ledger.folds.months import Standing, standing_of
from ledger.zones import next_month

if TYPE_CHECKING:
    from ledger.folds.book import Book


@click.group("periods", no_args_is_help=True)
def command() -> None:
    """Closed months."""


@command.command("list")
@json_option
@csv_option
@place_option
def list_periods(as_json: bool, as_csv: bool, place: Place) -> None:
    """List the closed months, oldest first."""
    one_format(as_json, as_csv)
    book = registry(place)
    if as_json:
        click.echo(json_text({"zone": book.rules.zone, "periods": book.periods}))
        return
    table = periods_table(book)
    if as_csv:
        click.echo(csv_text(table), nl=False)
    else:
        show(table, empty="no month is closed; `tollbook close MONTH` closes one")


@command.command("show")
@click.argument("month", type=MONTH, metavar="MONTH")
@json_option
@place_option
def show_period(month: str, as_json: bool, place: Place) -> None:
    """Show what was frozen when MONTH was closed."""
    book = registry(place)
    standing = standing_of(book.periods, month)
    if standing.own is None:
        raise Stop(_not_closed(book, standing))
    if as_json:
        click.echo(json_text({"period": standing.own}))
        return
    click.echo(period_pairs(standing.own))


def _not_closed(book: "Book", standing: Standing) -> str:
    month = standing.month
    if standing.settled_with is not None:
        return (
            f"{month} is before {standing.settled_with}, the first month that was closed, and was "
            "settled with it; what is told of it now lands in the month that is open"
        )
    if not book.periods:
        return f"{month} is open, as no month is closed; `tollbook close {month}` closes it"
    last = book.periods[-1].month
    following = next_month(last)
    return (
        f"{month} is open, the last closed month is {last}; `tollbook close {following}` closes "
        f"{'it' if month == following else 'the next'}"
    )


def periods_table(book: "Book") -> Table:
    """Closed months as a table. Pure."""
    return Table(
        (
            Column("month"),
            Column("requests", number=True),
            Column("without price", number=True),
            Column("without end", number=True),
            Column("cost"),
            Column("closed"),
            Column("without"),
            Column("root"),
        ),
        tuple(
            (
                one.month,
                one.requests,
                one.unpriced,
                one.open,
                ", ".join(f"{cost} {currency}" for currency, cost in sorted(one.totals.items())),
                one.closed_at,
                ", ".join(source for source, _ in one.without) or None,
                one.root[:16],
            )
            for one in book.periods
        ),
        (f"months begin and end in the zone {book.rules.zone}",),
    )
