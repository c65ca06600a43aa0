"""`tollbook books`: how the books are kept: the zone of their months, the rounding of invoices."""

from typing import Final, get_args

import click

from gateway.cli.account_facts import books_set
from gateway.cli.data import change_registry, for_writing, registry
from gateway.cli.keys import NAME_LENGTH_MAX
from gateway.cli.options import Parsed, json_option
from gateway.cli.output import json_text, pairs_text
from gateway.cli.place import Place, place_option
from ledger.clock import SystemClock
from ledger.events.money import Rounding
from ledger.folds.money import Period, Rules

ROUNDINGS: Final = get_args(Rounding)


def parse_zone(text: str) -> str:
    """A time zone by its name. Raises `ValueError` with the nearest one."""
    from ledger.errors import BadZone
    from ledger.zones import zone_of

    try:
        zone_of(text)
    except BadZone as wrong:
        raise ValueError(str(wrong)) from wrong
    return text


def parse_issuer(text: str) -> str:
    """Who makes out invoices, in one line; empty for nobody. Raises `ValueError` with words."""
    name = text.strip()
    if len(name) > NAME_LENGTH_MAX or not name.isprintable():
        raise ValueError(f"{text!r} is not one line of up to {NAME_LENGTH_MAX} characters")
    return name


@click.group("books", no_args_is_help=True)
def command() -> None:
    """How the books are kept: the zone of their months, the rounding of invoices, who issues."""


@command.command("show")
@place_option
@json_option
def show_books(place: Place, as_json: bool) -> None:
    """Show how the books are kept, and up to which month they are closed."""
    book = registry(place)
    _say(book.rules, book.periods, as_json)


@command.command("set")
@click.option(
    "--zone",
    type=Parsed("zone", parse_zone),
    metavar="NAME",
    help="Months and days begin at midnight there, such as Europe/Berlin. Default: UTC. It cannot "
    "be changed once a month is closed; open months are cut anew.",
)
@click.option(
    "--rounding",
    type=click.Choice(ROUNDINGS),
    help="How an invoice is rounded, once. Default: half_even.",
)
@click.option(
    "--issuer",
    type=Parsed("text", parse_issuer),
    metavar="TEXT",
    help="Who makes out invoices: a firm or a lab, and no person, since it is kept for ever. "
    "Empty: nobody.",
)
@place_option
@json_option
def set_books(
    zone: str | None,
    rounding: Rounding | None,
    issuer: str | None,
    place: Place,
    as_json: bool,
) -> None:
    """Set how the books are kept. What is not given stays."""
    if zone is None and rounding is None and issuer is None:
        raise click.UsageError("nothing is given; give --zone, --rounding or --issuer")
    if place.embedded:
        for_writing(place.data)
    now = SystemClock().now()
    book = change_registry(place, lambda book: books_set(book, zone, rounding, issuer, now))
    _say(book.rules, book.periods, as_json)


def _say(rules: Rules, periods: tuple[Period, ...], as_json: bool) -> None:
    closed = periods[-1].month if periods else None
    if as_json:
        said = {"zone": rules.zone, "rounding": rules.rounding, "issuer": rules.issuer}
        click.echo(json_text({**said, "version": rules.version, "closed_up_to": closed}))
        return
    click.echo(
        pairs_text(
            [
                ("zone", rules.zone),
                ("rounding", rules.rounding),
                ("issuer", rules.issuer),
                ("closed up to", closed or "no month yet"),
            ]
        )
    )
