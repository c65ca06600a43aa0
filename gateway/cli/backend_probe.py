"""`tollbook backends probe`: every rung between this machine and a token of each backend."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import click

from gateway.cli.backend_known import no_such, registry_or_none
from gateway.cli.failure import EXIT_FAILED, Stop
from gateway.cli.options import json_option
from gateway.cli.output import Cell, Column, Table, json_text, show
from gateway.cli.place import Place, place_option
from gateway.cli.progress import progress
from ledger.clock import SystemClock
from ledger.folds.book import Book

if TYPE_CHECKING:
    from gateway.backends.ladder import Step

_HOLDS: Final = {True: "holds", False: "FAILS", None: None}
_COLUMNS: Final = (
    Column("backend"),
    Column("rung"),
    Column("state"),
    Column("ms", number=True),
    Column("why"),
)


@click.command("probe")
@click.argument("name", required=False)
@click.option(
    "--token-seconds",
    type=click.FloatRange(0.1),
    default=30.0,
    metavar="N",
    help="For the token, which a busy server makes when its turn comes.",
)
@click.option("--no-token", is_flag=True, help="Ask for no token; it is billed as one of ours.")
@place_option
@json_option
def command(
    name: str | None, token_seconds: float, no_token: bool, place: Place, as_json: bool
) -> int:
    """Say what holds between this machine and the backend NAME, or every one, and what does not.

    In this order: its name resolves, its port accepts, TLS is agreed on, its key is taken, its
    models are listed, those that are set are among them, and it makes one real token, which is a
    request of key_system in the ledger. Where a port refuses, a model server is looked for close
    by. Exit code 1: some rung does not hold.
    """
    book = registry_or_none(place)
    with progress("probing") as tell:
        done = 0

        def say(backend_id: str, step: "Step") -> None:
            nonlocal done
            done += 1
            tell.step(f"{backend_id}: {step.rung}", done)

        seconds = None if no_token else token_seconds
        found = asyncio.run(_climb(place, book, name, seconds, say))
    failed = any(step.holds is False for steps in found.values() for step in steps)
    if as_json:
        click.echo(json_text({"backends": [_as_json(one, found[one]) for one in found]}))
    else:
        show(_table(found))
    return EXIT_FAILED if failed else 0


async def _climb(
    place: Place,
    book: Book,
    name: str | None,
    token_seconds: float | None,
    say: Callable[[str, "Step"], None],
) -> dict[str, list["Step"]]:
    # Only here: most commands need no HTTP client.
    from gateway.probing import Probing

    data = place.data if token_seconds is not None and place.data.exists() else None
    probing = Probing(place.settings, book, data, SystemClock(), token_seconds or 0)
    try:
        return await probing.climb(_names(place, book, name, sorted(probing.pool.backends)), say)
    finally:
        await probing.close()


def _names(place: Place, book: Book, name: str | None, known: list[str]) -> list[str]:
    if name is not None and name not in known:
        raise no_such(place, book, name)
    if not known:
        raise Stop(
            "no backend is known here; write [[backends]] into the configuration file, or run "
            "`tollbook backends add`"
        )
    return known if name is None else [name]


def _table(found: dict[str, list["Step"]]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for backend_id, steps in found.items():
        for step in steps:
            took = None if step.holds is None else round(step.seconds * 1000)
            rows.append((backend_id, step.rung, _HOLDS[step.holds], took, step.words))
    return Table(_COLUMNS, tuple(rows))


def _as_json(backend_id: str, steps: list["Step"]) -> dict[str, object]:
    return {
        "id": backend_id,
        "holds": not any(step.holds is False for step in steps),
        "steps": [
            {
                "rung": step.rung,
                "holds": step.holds,
                "words": step.words,
                "milliseconds": round(step.seconds * 1000),
            }
            for step in steps
        ],
    }
