"""`tollbook spool`: what is on disk before the ledger has it, record by record. Only reads."""

from pathlib import Path

import click
import msgspec

from gateway.cli.data import for_reading
from gateway.cli.failure import Stop
from gateway.cli.options import data_option, json_option
from gateway.cli.output import Column, Table, json_text, show
from ledger.events import Event
from ledger.words import counted
from streams.local.layout import Layout
from streams.log.lock import held
from streams.log.reader import BadRecord, Chunk, SpoolReader
from streams.log.spool import ADOPTED, LOCK

RECORDS_DEFAULT = 100


class SpoolState(msgspec.Struct, frozen=True, kw_only=True):
    """One spool as it stands. Sizes are in bytes; `waiting` is what the ledger has not taken."""

    incarnation: str
    source: str
    state: str
    bytes: int
    first_offset: int
    next_offset: int
    consumed: int
    waiting: int


class Listing(msgspec.Struct):
    """Records of a spool, and what stands in the way of reading further."""

    records: list[Event]
    poison: list[BadRecord]
    next_offset: int
    more: bool = False
    waiting: int = 0
    trouble: str | None = None


@click.group("spool", no_args_is_help=True)
def command() -> None:
    """The spools: what is recorded before the ledger has it."""


@command.command("list")
@data_option
@json_option
def list_spools(data: Path, as_json: bool) -> None:
    """List the spools: whose, alive or not, and how much of each the ledger has not taken."""
    states = [state_of(directory) for directory in Layout(for_reading(data)).spool_directories()]
    if as_json:
        click.echo(json_text({"spools": states}))
        return
    columns = ("incarnation", "source", "state", "bytes", "consumed", "waiting")
    rows = tuple(tuple(getattr(state, name) for name in columns) for state in states)
    numbers = {"bytes", "consumed", "waiting"}
    show(
        Table(tuple(Column(name, number=name in numbers) for name in columns), rows),
        empty="no spool yet; `tollbook serve` makes one",
    )


@command.command("show")
@click.argument("incarnation", required=False)
@click.option("--from", "offset", type=click.IntRange(0), metavar="OFFSET", help="Begin here.")
@click.option(
    "--limit",
    type=click.IntRange(0),
    default=RECORDS_DEFAULT,
    show_default=True,
    metavar="N",
    help="Show at most so many records; 0: all.",
)
@data_option
@json_option
def show_spool(
    incarnation: str | None, offset: int | None, limit: int, data: Path, as_json: bool
) -> int:
    """Show the records of a spool in their order. The first letters of INCARNATION are enough."""
    directory = choose(Layout(for_reading(data)).spool_directories(), incarnation)
    listing = read_records(SpoolReader(directory), offset, limit)
    if as_json:
        click.echo(
            json_text(
                {
                    "spool": directory.name,
                    "records": listing.records,
                    "poison": [
                        {"offset": bad.offset, "reason": bad.reason} for bad in listing.poison
                    ],
                    "more": listing.more,
                    "waiting": listing.waiting,
                    "trouble": listing.trouble,
                }
            )
        )
    else:
        show(records_table(listing), empty="no record here")
    return 0 if listing.trouble is None else 1


def choose(found: list[Path], incarnation: str | None) -> Path:
    """The spool that is meant. Raises `Stop` if it is none or not clear which."""
    if incarnation is None and len(found) == 1:
        return found[0]
    names = ", ".join(path.name for path in found) or "none"
    if incarnation is None:
        raise Stop(f"there are {len(found)} spools; name one of them: {names}")
    meant = [path for path in found if path.name.startswith(incarnation)]
    if len(meant) == 1:
        return meant[0]
    what = f"{len(meant)} spools begin with" if meant else "no spool begins with"
    raise Stop(f"{what} {incarnation!r}; there are: {names}")


def state_of(directory: Path) -> SpoolState:
    """How the spool in `directory` stands: `live`, `dead` (to be adopted) or `adopted`."""
    reader = SpoolReader(directory)
    segments = reader.segments()
    first = segments[0].start if segments else 0
    end = segments[-1].end if segments else 0
    consumed = reader.consumed()
    state = "adopted" if (directory / ADOPTED).exists() else "dead"
    return SpoolState(
        incarnation=directory.name,
        source=reader.source(),
        state="live" if held(directory / LOCK) else state,
        bytes=sum(segment.size for segment in segments),
        first_offset=first,
        next_offset=end,
        consumed=consumed,
        waiting=max(0, end - consumed),
    )


def read_records(reader: SpoolReader, offset: int | None, limit: int) -> Listing:
    """At most `limit` records (0: all) from `offset` (null: the first that is kept) on."""
    if offset is None:
        segments = reader.segments()
        offset = segments[0].start if segments else 0
    listing = Listing([], [], offset)
    while not limit or len(listing.records) < limit:
        chunk = reader.read(listing.next_offset)
        listing.records.extend(chunk.events)
        listing.poison.extend(chunk.poison)
        listing.waiting = chunk.waiting
        listing.trouble = _trouble(chunk)
        ended = chunk.next_offset == listing.next_offset
        listing.next_offset = chunk.next_offset
        if listing.trouble is not None or ended:
            break
    reader.close()
    if limit and len(listing.records) > limit:
        listing.more = True
        del listing.records[limit:]
    return listing


def _trouble(chunk: Chunk) -> str | None:
    if chunk.broken is not None:
        return str(chunk.broken)
    if chunk.missing is not None:
        return f"offsets {chunk.missing.start} to {chunk.missing.end} are in no file any more"
    if chunk.behind:
        return f"offset {chunk.next_offset} is beyond the end of this spool"
    return None


def records_table(listing: Listing) -> Table:
    """Records as a table, their data as it was written; what is wrong stands below."""
    columns = (
        Column("topic"),
        Column("sequence", number=True),
        Column("time"),
        Column("type"),
        Column("subject"),
        Column("data"),
    )
    notes = [f"poison at offset {bad.offset}: {bad.reason}" for bad in listing.poison]
    if listing.more:
        shown = counted(len(listing.records), "record")
        notes.append(f"more follow behind the {shown} shown; --limit 0 shows all")
    if listing.waiting:
        waiting = counted(listing.waiting, "byte at the end is", "bytes at the end are")
        notes.append(f"{waiting} no whole record (yet)")
    if listing.trouble is not None:
        notes.append(listing.trouble)
    return Table(
        columns,
        tuple(
            (
                event.topic,
                event.sequence,
                event.time,
                event.type.removeprefix("tollbook."),
                event.subject,
                bytes(event.data).decode(errors="replace"),
            )
            for event in listing.records
        ),
        tuple(notes),
    )
