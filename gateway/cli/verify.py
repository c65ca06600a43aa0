"""`tollbook verify`: an export proven by its own files, without a ledger and without a network."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gateway.cli.failure import EXIT_FAILED
from gateway.cli.options import json_option
from gateway.cli.output import json_text, printable
from gateway.cli.progress import progress
from ledger.words import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ledger.export.verify import Verified


class Root(click.ParamType):
    """A root hash: 64 hex digits."""

    name = "root"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        found = value.strip().lower()
        if re.fullmatch(r"[0-9a-f]{64}", found) is None:
            self.fail(
                f"{value!r} is no root: it has 64 hex digits, as `tollbook periods show` and the "
                "manifest of an export tell it",
                param,
                ctx,
            )
        return found


@click.command("verify", short_help="Prove an export from its own files, offline.")
@click.argument("place", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--root",
    type=Root(),
    metavar="HEX",
    help="The root of the month as it was noted elsewhere when it was closed.",
)
@click.option(
    "--from",
    "after",
    type=Root(),
    multiple=True,
    metavar="HEX",
    help="The root of a month whose archive is not here and need not be: the archive of the month "
    "after it goes on from there.",
)
@json_option
def command(place: Path, root: str | None, after: tuple[str, ...], as_json: bool) -> int:
    """Prove the export in DIR, or all that are below it, from its own files: hashes, the seal of
    the manifest, the root of the month from the heads of its chains, and with an archive every
    event. Needs no ledger and no network. Archives of several months must follow one another: one
    that is missing between them is found. Says what could not be proven; exit code 1 if anything
    was changed or is missing."""
    from ledger.export.verify import verify

    with progress("verifying") as tell:
        found = verify(place, root, after=after, progress=tell.step)
    clean = not any(one.findings for one in found)
    if as_json:
        click.echo(json_text({"clean": clean, "exports": [_plain(one) for one in found]}))
    else:
        click.echo(words_of(found))
    return 0 if clean else EXIT_FAILED


def words_of(found: "Sequence[Verified]") -> str:
    """What was proven and what was not, for a person. Pure."""
    lines = []
    for one in found:
        what = f"{one.month}, {one.kind}" if one.month is not None else "no readable manifest"
        lines.append(f"{one.directory} ({what})")
        if one.root is not None:
            lines.append(f"  root        {one.root}")
        lines += [f"  WRONG       {words}" for words in one.findings]
        lines += [f"  proven      {words}" for words in one.proven]
        lines += [f"  not proven  {words}" for words in one.unproven]
    wrong = sum(bool(one.findings) for one in found)
    exports = counted(len(found), "export")
    lines.append(f"WRONG: {wrong} of {exports}" if wrong else f"unchanged: {exports}")
    return "\n".join(printable(line) for line in lines)


def _plain(one: "Verified") -> dict[str, object]:
    return {
        "directory": str(one.directory),
        "kind": one.kind,
        "month": one.month,
        "root": one.root,
        "previous_root": one.previous_root,
        "events": one.events,
        "findings": one.findings,
        "proven": one.proven,
        "unproven": one.unproven,
    }
