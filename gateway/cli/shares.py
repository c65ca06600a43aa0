"""`tollbook shares`: what part of the requests each backend gets, and what it should."""

from pathlib import Path

import click

from gateway.cli.backend_known import registry_or_none
from gateway.cli.failure import EXIT_FAILED
from gateway.cli.options import json_option
from gateway.cli.output import json_text, show
from gateway.cli.place import Place, place_option
from gateway.cli.share_facts import off, shared, shares_drawing, shares_json, shares_table
from gateway.cli.views import views_of
from ledger.clock import SystemClock


@click.command("shares")
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.svg",
    help="Draw them into this file too.",
)
@click.option(
    "--ended", is_flag=True, help="Also gateways that ended or are not heard of, for one day."
)
@place_option
@json_option
def command(plot: Path | None, ended: bool, place: Place, as_json: bool) -> int:
    """Show what part of the requests each backend got in the last minute, and what it should.

    What it should is the sum of the odds that it had in each choice. Gateways check themselves all
    the time: whether their draws keep to these odds, and whether the first minute after a start is
    as the last before it, within 5 points. If somewhere a share is off, the exit code is 1.
    """
    views = {} if place.embedded and not place.data.exists() else views_of(place)
    now = SystemClock().now()
    book = registry_or_none(place).backends if views else {}
    gone = {name for name, one in book.items() if one.removed_at is not None}
    groups = shared(views.values(), now, ended=ended, gone=gone)
    if plot is not None:
        plot.write_text(shares_drawing(groups, now), encoding="utf-8")
    if as_json:
        click.echo(json_text(shares_json(groups)))
    else:
        show(shares_table(groups), empty="no gateway that runs tells of its shares")
    return EXIT_FAILED if off(groups) else 0
