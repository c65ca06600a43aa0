"""`tollbook rebuild`: everything that is derived, made again from the events."""

from typing import TYPE_CHECKING

import click

from gateway.cli.data import current_ledger
from gateway.cli.failure import EXIT_FAILED
from gateway.cli.options import json_option
from gateway.cli.output import Column, Table, json_text, show
from gateway.cli.place import Place, place_option
from gateway.cli.progress import progress
from ledger.words import counted

if TYPE_CHECKING:
    from ledger.sql.rebuild import Rebuilt

SHOWN_DIGITS = 16
"""Of a hash, in a table; --json has all of it."""


@click.command("rebuild", short_help="Make every projection again from the events.")
@place_option
@json_option
def command(place: Place, as_json: bool) -> int:
    """Drop every projection and replay the events: the hashes must be what they were.

    Works on a live gateway, whose runner waits meanwhile. Exit code 1 if a projection was not what
    the events say; it is then put right.
    """
    from ledger.sql.rebuild import rebuild

    with current_ledger(place, readonly=False) as ledger, progress("replaying events") as tell:
        done = rebuild(ledger, progress=tell)
    if as_json:
        click.echo(
            json_text(
                {
                    "events": done.events,
                    "parted": done.parted,
                    "before": done.before,
                    "after": done.after,
                }
            )
        )
    else:
        show(hashes_table(done))
    return EXIT_FAILED if done.parted else 0


def hashes_table(done: "Rebuilt") -> Table:
    """The hash of each projection before and after, and what that means. Pure."""
    said = [f"{counted(done.events, 'event was', 'events were')} replayed"]
    if done.parted:
        said.append(
            f"{', '.join(done.parted)} were not what the events say and have been put right; "
            "run `tollbook audit`, and look at bills and exports made before"
        )
    else:
        said.append("every projection is what it was")
    return Table(
        (Column("projection"), Column("before"), Column("after"), Column("same")),
        tuple(
            (name, done.before[name][:SHOWN_DIGITS], now[:SHOWN_DIGITS], done.before[name] == now)
            for name, now in done.after.items()
        ),
        tuple(said),
    )
