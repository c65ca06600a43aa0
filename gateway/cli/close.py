"""`tollbook close`: a month is frozen, or refused with each source that has not told all of it."""

from threading import Event
from typing import TYPE_CHECKING, Final

import click

from gateway.cli.data import catch_up, change_registry, current_ledger
from gateway.cli.options import MONTH, json_option
from gateway.cli.output import json_text
from gateway.cli.period_words import period_pairs
from gateway.cli.place import Place, place_option
from gateway.cli.progress import progress
from gateway.cli.sources import checked_reason, find_source
from ledger.clock import SystemClock
from ledger.errors import LedgerUnavailable, NotClosable, RegistryRefused
from ledger.identity import mint_id
from ledger.words import counted

if TYPE_CHECKING:
    from ledger.sql.close import Closing

TRIES: Final = 3
WAIT_SECONDS: Final = 1.5
"""The ledger takes what the registry says within a second; then the totals are made again."""


@click.command("close", short_help="Freeze a month: totals, prices, cut and root hash.")
@click.argument("month", type=MONTH, metavar="MONTH")
@click.option(
    "--without",
    "missing",
    multiple=True,
    metavar="SOURCE",
    help="Close although this source has not told all of the month; may be given again. What it "
    "sends later lands in the month that is open then.",
)
@click.option("--reason", metavar="TEXT", help="Why it is closed without them; needed for that.")
@click.option("--dry-run", is_flag=True, help="Say what would be frozen, and write nothing.")
@json_option
@place_option
def command(
    month: str,
    missing: tuple[str, ...],
    reason: str | None,
    dry_run: bool,
    as_json: bool,
    place: Place,
) -> None:
    """Close MONTH, such as 2026-11: what its bill holds now it holds for ever.

    It refuses while a gateway that was at work in it has not told all up to its end, and names it.
    What comes later, and every correction, lands in the month that is open then, on lines that name
    what they correct. Closing cannot be taken back.
    """
    if bool(missing) != (reason is not None):
        raise click.UsageError("--without SOURCE and --reason TEXT need each other")
    without = dict.fromkeys(missing, "" if reason is None else checked_reason(reason))
    closing = _foresee(place, month, without)
    if not dry_run:
        for tries_left in reversed(range(TRIES)):
            try:
                _append(place, closing)
                break
            except (NotClosable, RegistryRefused):
                if not tries_left:
                    raise
                Event().wait(WAIT_SECONDS)
                closing = _foresee(place, month, without)
        if place.embedded:
            catch_up(place)
        _keep_heads(place, closing)
    payload = closing.payload
    if as_json:
        click.echo(json_text({"closed": not dry_run, "period": payload}))
        return
    click.echo(f"{month} would be closed so:" if dry_run else f"closed {month}")
    click.echo(period_pairs(payload))
    if payload.open:
        click.echo(
            f"{counted(payload.open, 'request')} of the month without an end yet: what comes of "
            "that lands in the month that is open then"
        )


def _foresee(place: Place, month: str, without: dict[str, str]) -> "Closing":
    from ledger.sql.close import foresee
    from ledger.sql.replay import load_book
    from ledger.sql.sources import source_states

    with current_ledger(place) as ledger, ledger.read() as read:
        states = source_states(read)
        named = {find_source(states, which).source: why for which, why in without.items()}
        with progress(f"adding {month} up"):
            return foresee(read, load_book(read), month, SystemClock().now(), named)


def _append(place: Place, closing: "Closing") -> None:
    from ledger.sql.close import draft

    now = SystemClock().now()
    change_registry(place, lambda newest: draft(closing, newest, now, mint_id()))


def _keep_heads(place: Place, closing: "Closing") -> None:
    """Note the heads of the chains at the cut, so that no export of this month walks them again."""
    from ledger.sql.chain import heads_at

    try:
        with current_ledger(place, readonly=False) as ledger, ledger.write() as tx:
            heads_at(tx, closing.payload.cut)
    except LedgerUnavailable:
        # The month is closed all the same, and the heads follow from the events at any time.
        return
