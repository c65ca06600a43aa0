"""`tollbook move`: an embedded data directory becomes an installation with Kafka and Postgres."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from gateway.cli.data import KEEP_EVERYTHING, for_reading
from gateway.cli.failure import EXIT_FAILED, Stop
from gateway.cli.options import json_option
from gateway.cli.output import Column, Table, json_text, show
from gateway.cli.place import Place, place_option
from gateway.cli.progress import progress
from ledger.clock import SystemClock
from ledger.words import counted
from streams.local.layout import Layout
from streams.log.lock import FileLock, held
from streams.log.spool import LOCK

if TYPE_CHECKING:
    from streams.kafka.move import Moved

SHOWN_DIGITS = 16


@click.command("move", short_help="Carry a data directory over to Kafka and Postgres.")
@click.option("--to-kafka", is_flag=True, required=True, help="The only way there is.")
@place_option
@json_option
def command(to_kafka: bool, place: Place, as_json: bool) -> int:
    """Carry keys, prices, backends, every event and the names of a data directory to the Kafka and
    the ledger that are set. Both must be new.

    Stop the gateway first. It may be interrupted and repeated: it goes on where it stopped, and
    nothing counts twice. At the end both ledgers are compared, and exit code 1 says that they
    differ. The data directory stays as it was; begin with another one.
    """
    from ledger.sql import carry
    from ledger.sql.session import open_ledger

    access = place.need_kafka()
    if not place.shared_ledger:
        raise Stop("give the ledger that gateways will share by --ledger postgresql+psycopg://…")
    layout = Layout(for_reading(place.data))
    with (
        _alone(layout),
        open_ledger(layout.ledger, readonly=True) as source,
        progress("carrying events") as tell,
    ):
        with source.read() as read:
            _, unfinished = carry.counted(read)
        if unfinished:
            raise Stop(
                f"{counted(unfinished, 'request')} of {place.data} stayed without an end, because "
                "the spool cannot be read to its own; `tollbook audit` says which, and nothing was "
                "changed"
            )

        async def run() -> "Moved":
            from streams.kafka.move import Mover

            def say(words: str) -> None:
                click.echo(f"tollbook move: {words}", err=True)

            mover = Mover(
                place.data, source, access, place.ledger_target, SystemClock(), say, tell.step
            )
            try:
                return await mover.run()
            finally:
                await mover.close()

        moved = asyncio.run(run())
    if as_json:
        click.echo(
            json_text(
                {
                    "events": moved.events,
                    "parted": moved.parted,
                    "before": moved.before,
                    "after": moved.after,
                }
            )
        )
    else:
        show(hashes_table(moved))
    return EXIT_FAILED if moved.parted else 0


def hashes_table(moved: "Moved") -> Table:
    """The hash of each projection in both ledgers, and what that means. Pure."""
    events = counted(moved.events, "event is", "events are")
    said = [f"{events} in Kafka and in the new ledger"]
    if moved.parted:
        said.append(
            f"{', '.join(moved.parted)} differ: something else writes to the new installation; "
            "stop it and repeat with a new kafka.prefix and a new ledger"
        )
    else:
        said.append(
            "every bill is what it was. Start gateways with another --data; keep this one as it is"
        )
    return Table(
        (Column("projection"), Column("before"), Column("after"), Column("same")),
        tuple(
            (name, was[:SHOWN_DIGITS], moved.after[name][:SHOWN_DIGITS], was == moved.after[name])
            for name, was in moved.before.items()
        ),
        tuple(said),
    )


@contextmanager
def _alone(layout: Layout) -> Iterator[None]:
    """Bring the ledger up to date, and keep gateways and runners away meanwhile."""
    from streams.local.runner import run_once

    _refuse_living(layout)
    if not layout.ledger.exists() and layout.has_identity():
        raise Stop(
            f"the books of {layout.root} are in a ledger at a URL, which this command cannot carry;"
            " its spools hold only the newest events, so nothing was begun"
        )
    with progress("bringing the ledger up to date") as tell:
        run_once(layout.root, keep_bytes=KEEP_EVERYTHING, progress=tell)
    lock = FileLock.take(layout.runner_lock)
    if lock is None:
        raise Stop(f"a gateway is at work in {layout.root}; stop it, then repeat the command")
    try:
        _refuse_living(layout)
        yield
    finally:
        lock.release()


def _refuse_living(layout: Layout) -> None:
    for directory in layout.spool_directories():
        if held(directory / LOCK):
            raise Stop(
                f"a gateway is at work in {layout.root} (spool {directory.name}); stop it, then "
                "repeat the command"
            )
