"""`tollbook export`: one month as Parquet files with a manifest that says what they add up to."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gateway.cli.data import current_ledger
from gateway.cli.options import MONTH, json_option
from gateway.cli.output import Column, Table, json_text, show
from gateway.cli.place import Place, place_option
from gateway.cli.progress import progress
from ledger.clock import SystemClock

if TYPE_CHECKING:
    from ledger.export.month import Exported

CHANGES = {
    "new": "written",
    "same": "unchanged: the same bytes as before",
    "replaced": "replaced: the ledger has changed since the last export",
}


@click.command("export", short_help="Export a month as Parquet with a manifest.")
@click.option(
    "--month", type=MONTH, metavar="YYYY-MM", help="A month in UTC. Default: the current one."
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where the month's directory goes. Default: exports in the data directory.",
)
@place_option
@json_option
def command(month: str | None, out: Path | None, place: Place, as_json: bool) -> None:
    """Export a month as Parquet with a manifest: counts, sums and SHA-256. A second run of the
    same facts gives the same bytes."""
    month = month or f"{SystemClock().now():%Y-%m}"
    from ledger.export.month import export_month
    from streams.local.layout import Layout

    with current_ledger(place) as ledger, progress(f"exporting {month}") as tell:
        done = export_month(ledger, month, out or Layout(place.data).exports, progress=tell)
    if as_json:
        click.echo(
            json_text(
                {"directory": str(done.directory), "change": done.change, "manifest": done.manifest}
            )
        )
        return
    show(files_table(done))


def files_table(done: "Exported") -> Table:
    """The files of an export as a table, with what it holds below. Pure."""
    manifest = done.manifest
    said = [f"{done.directory}: {CHANGES[done.change]}"]
    said.append(f"{manifest.requests:,} requests with an end are in it")
    if manifest.open:
        said.append(f"{manifest.open:,} open requests of the month are not; export it again later")
    if manifest.unpriced:
        said.append(f"{manifest.unpriced:,} lines of its bill have no price")
    return Table(
        (
            Column("file"),
            Column("rows", number=True),
            Column("bytes", number=True),
            Column("sha256"),
        ),
        tuple((file.name, file.rows, file.bytes, file.sha256) for file in manifest.files),
        tuple(said),
    )
