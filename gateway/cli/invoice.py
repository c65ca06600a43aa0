"""`tollbook invoice`: a readable statement for each project of a month, as HTML and PDF."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from gateway.cli.account_facts import Names, find
from gateway.cli.data import current_ledger
from gateway.cli.invoice_drafts import drop_drafts
from gateway.cli.invoice_words import file_name, lost_in_pdf
from gateway.cli.options import MONTH, json_option
from gateway.cli.output import Column, Table, json_text, show
from gateway.cli.period_words import standing_json, standing_words
from gateway.cli.place import Place, place_option
from gateway.cli.progress import progress
from ledger.folds.months import Standing, standing_of
from ledger.words import counted

if TYPE_CHECKING:
    from ledger.export.statement import Statement
    from ledger.folds.book import Book

FORMATS: Final = ("html", "pdf")


@click.command("invoice", short_help="Write a month's statement for each project.")
@click.argument("month", type=MONTH, metavar="MONTH")
@click.option(
    "--project",
    "projects",
    multiple=True,
    metavar="PROJECT",
    help="A project by id or name; may be given again. Default: every project, and what belongs to "
    "none.",
)
@click.option(
    "--format",
    "formats",
    type=click.Choice(FORMATS),
    multiple=True,
    default=FORMATS,
    show_default=True,
    help="What is written; may be given again.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where the files go. Default: invoices in the data directory.",
)
@json_option
@place_option
def command(
    month: str,
    projects: tuple[str, ...],
    formats: tuple[str, ...],
    out: Path | None,
    as_json: bool,
    place: Place,
) -> None:
    """Write the statement of MONTH for each project and currency: lines with exact amounts, one
    rounding, and cost by day. Of a month that is open it is a draft; drafts of MONTH that hold no
    longer are removed, and no other file is touched."""
    from ledger.export.statement import statements
    from ledger.sql.names import names_of
    from ledger.sql.replay import load_book
    from ledger.sql.unpriced import unpriced_requests

    with current_ledger(place) as ledger, ledger.read() as read:
        book = load_book(read)
        named = {kind: names_of(read, kind) for kind in ("project", "organization")}
        wanted = _wanted(book, named, projects)
        found = list(statements(read, book, month, named, wanted))
        lacking = unpriced_requests(read, book, month)
    unpriced = sum(n for project, n in lacking.items() if wanted is None or project in wanted)
    standing = standing_of(book.periods, month)
    directory = out or place.data / "invoices"
    with progress(f"writing the statements of {month}") as tell:
        files: list[tuple[Path, ...]] = []
        for number, one in enumerate(found):
            files.append(_write(one, directory, formats))
            tell(number + 1, len(found))
    whose = (None, *book.projects) if wanted is None else wanted
    written = [path for paths in files for path in paths]
    is_open = standing.state == "open"
    removed = drop_drafts(directory, month, whose, written, is_open=is_open)
    if as_json:
        rows = [
            {"files": [str(path) for path in paths], "statement": one}
            for one, paths in zip(found, files, strict=True)
        ]
        said = {
            **standing_json(standing),
            "unpriced": unpriced,
            "statements": rows,
            "removed": [str(path) for path in removed],
        }
        click.echo(json_text(said))
        return
    yet = " yet" if is_open else ""
    show(
        _table(standing, found, files, unpriced, removed),
        empty=f"nothing of {month} has a line on a statement{yet}",
    )


def _wanted(book: "Book", names: Names, projects: tuple[str, ...]) -> frozenset[str | None] | None:
    """The ids that `projects` name; null for all. Raises `Stop`."""
    if not projects:
        return None
    return frozenset(find(book, names, which, ("project",))[1] for which in projects)


def _write(one: "Statement", directory: Path, formats: tuple[str, ...]) -> tuple[Path, ...]:
    """Write each file whole or not at all."""
    from gateway.cli.invoice_html import html
    from gateway.cli.invoice_pdf import pdf

    directory.mkdir(parents=True, exist_ok=True)
    made = {"html": html, "pdf": pdf}
    paths = []
    for kind in dict.fromkeys(formats):
        path = directory / f"{file_name(one)}.{kind}"
        unborn = path.with_name(f".{path.name}.new")
        try:
            unborn.write_bytes(made[kind](one))
            unborn.replace(path)
        finally:
            unborn.unlink(missing_ok=True)
        paths.append(path)
    return tuple(paths)


def _table(
    standing: Standing,
    found: "list[Statement]",
    files: list[tuple[Path, ...]],
    unpriced: int,
    removed: list[Path],
) -> Table:
    month = standing.month
    said = []
    if standing.state == "open":
        what = "these are drafts" if found else "there may be more"
        said.append(f"{month} is open: {what}; `tollbook close {month}` freezes it")
    elif standing.own is None:
        said.append(standing_words(standing))
    tokens = sum(one.tokens_unpriced for one in found)
    if tokens or unpriced:
        # What lands here of an earlier month is of none of this month's own requests.
        of = f" of {counted(unpriced, 'request')}" if unpriced else ""
        said.append(f"without a price and in no sum: {counted(tokens, 'token')}{of}")
    if removed:
        said.append(
            f"removed {counted(len(removed), 'draft')} of {month} that no longer held: "
            f"{', '.join(path.name for path in removed)}"
        )
    if any(path.suffix == ".pdf" for paths in files for path in paths) and any(
        lost_in_pdf(one) for one in found
    ):
        said.append("PDF shows ? for letters that its fonts lack; the HTML has every one of them")
    return Table(
        (
            Column("project"),
            Column("name"),
            Column("lines", number=True),
            Column("exact", number=True),
            Column("total", number=True),
            Column("currency"),
            Column("files"),
        ),
        tuple(
            (
                one.project_id or "(none)",
                one.project,
                len(one.lines),
                one.exact,
                one.total,
                one.currency,
                ", ".join(str(path) for path in paths),
            )
            for one, paths in zip(found, files, strict=True)
        ),
        tuple(said),
    )
