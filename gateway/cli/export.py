"""`tollbook export`: one month as files with a manifest that says what they add up to."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from gateway.cli.data import current_ledger
from gateway.cli.options import MONTH, json_option
from gateway.cli.output import Column, Table, json_text, show
from gateway.cli.place import Place, place_option
from gateway.cli.progress import progress
from ledger.clock import SystemClock
from ledger.words import counted

if TYPE_CHECKING:
    from ledger.export.manifest import Manifest
    from ledger.export.month import Exported

FORMATS: Final = ("parquet", "csv", "focus-1.2", "focus-1.3", "focus-1.4", "archive")
"""The formats of `ledger.export.formats`, which this module does not load before it needs it."""

CHANGES = {
    "new": "written",
    "same": "unchanged: the same bytes as before",
    "replaced": "replaced: since the last export the ledger has changed, or what writes the files",
}


@click.command("export", short_help="Export a month as Parquet, CSV or FOCUS with a manifest.")
@click.option(
    "--month",
    type=MONTH,
    metavar="YYYY-MM",
    help="A month in the zone of the books. Default: the current one.",
)
@click.option(
    "--format",
    "kind",
    type=click.Choice(FORMATS),
    default="parquet",
    show_default=True,
    help="What files to write: requests and bill as Parquet or CSV, charges as FOCUS, or the "
    "events of a closed month, which prove it.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where FORMAT/billing_period=YYYY-MM goes. Default: exports in the data directory.",
)
@place_option
@json_option
def command(month: str | None, kind: str, out: Path | None, place: Place, as_json: bool) -> None:
    """Export a month as files with a manifest: counts, sums and SHA-256. A second run of the same
    facts gives the same bytes, and no format touches the files of another."""
    from ledger.export.facts import current_month
    from ledger.export.month import export_month
    from streams.local.layout import Layout

    with current_ledger(place) as ledger:
        if month is None:
            with ledger.read() as read:
                month = current_month(read, SystemClock().now())
        with progress(f"exporting {month}") as tell:
            out_dir = out or Layout(place.data).exports
            done = export_month(ledger, month, out_dir, kind=kind, progress=tell)
    if as_json:
        click.echo(
            json_text(
                {
                    "directory": str(done.directory),
                    "change": done.change,
                    "period": done.manifest.period,
                    "manifest": done.manifest,
                }
            )
        )
        return
    show(files_table(done))


def files_table(done: "Exported") -> Table:
    """The files of an export as a table, with what it holds below. Pure."""
    manifest = done.manifest
    return Table(
        (
            Column("file"),
            Column("rows", number=True),
            Column("bytes", number=True),
            Column("sha256"),
        ),
        tuple((file.name, file.rows, file.bytes, file.sha256) for file in manifest.files),
        (f"{done.directory}: {CHANGES[done.change]}", *_said(manifest)),
    )


def _said(manifest: "Manifest") -> list[str]:
    said = []
    if manifest.period == "open":
        said.append(
            f"{manifest.month} is open: what it adds up to can still change, until "
            f"`tollbook close {manifest.month}` freezes it"
        )
    elif manifest.period == "settled":
        said.append(
            f"{manifest.month} was settled with the first month that was closed, which is later: "
            "it changes no more"
        )
    else:
        said.append(f"{manifest.month} is closed; root {manifest.root}")
    said.append(f"it holds {counted(manifest.requests, 'request')} with an end")
    if manifest.corrections:
        said.append(f"corrections of others: {counted(manifest.corrections, 'line')} of its bill")
    if manifest.open:
        again = "; export it again later" if manifest.period == "open" else ""
        said.append(
            f"it does not hold {counted(manifest.open, 'open request')} of the month{again}"
        )
    if manifest.unpriced:
        said.append(f"without a price: tokens of {counted(manifest.unpriced, 'request')}")
    left = manifest.left_out
    if left is not None and left.unpriced_tokens:
        said.append(f"FOCUS has no row for tokens that have no price: {left.unpriced_tokens:,}")
    if left is not None and left.unknown_requests:
        unknown = f"{left.unknown_requests:,}"
        said.append(f"FOCUS has no row for requests whose use nobody knows: {unknown}")
    return said
