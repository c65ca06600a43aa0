"""`tollbook sources`: which gateways wrote into the ledger, and closing one that never comes back.

A source that died with its disk left requests open, and keeps a month from being complete. Closing
it ends them with the last running totals that the ledger has, and says that it is closed and why.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

import click

from gateway.cli.data import catch_up, cli_source, current_ledger, for_writing
from gateway.cli.failure import Stop
from gateway.cli.options import json_option
from gateway.cli.output import Column, Table, json_text, show
from gateway.cli.place import Place, place_option
from gateway.setting_values import nearest
from ledger.clock import SystemClock
from ledger.events import Draft
from ledger.words import counted

if TYPE_CHECKING:
    from ledger.sql.session import ReadSession
    from ledger.sql.sources import SourceState

ALIVE: Final = timedelta(minutes=3)
"""A source marks each minute; one that has been silent for so long is not at work any more."""

REASON_LENGTH_MAX: Final = 200
DRAFTS_IN_ONE_APPEND: Final = 200


@click.group("sources", no_args_is_help=True)
def command() -> None:
    """Sources of events: every start of a gateway, a runner or a relay is one."""


@command.command("list")
@place_option
@json_option
def list_sources(place: Place, as_json: bool) -> None:
    """List the sources: their last mark, whether they are closed and by whom, what they left open.

    With Kafka this is what the ledger writer has brought so far.
    """
    from ledger.sql.sources import source_states

    with current_ledger(place) as ledger, ledger.read() as read:
        states = source_states(read)
    if as_json:
        click.echo(json_text({"sources": states}))
    else:
        show(sources_table(states), empty="no source yet; `tollbook serve` is one")


@command.command("close")
@click.argument("which", metavar="SOURCE")
@click.option("--reason", required=True, metavar="TEXT", help="Why it never comes back.")
@place_option
@json_option
def close_source(which: str, reason: str, place: Place, as_json: bool) -> None:
    """Close a source that never comes back: its disk is lost, its machine is gone.

    SOURCE is its whole name or its last part. Its open requests end as abandoned, with the last
    running totals. What it sends later does not count by itself.
    """
    reason = checked_reason(reason)
    clock = SystemClock()
    own = cli_source()
    with current_ledger(place) as ledger, ledger.read() as read:
        from ledger.sql.sources import source_states

        state = find_source(source_states(read), which)
        refuse(state, place, clock.now())
        drafts = closing(read, state, own, reason, clock.now())
    if place.embedded:
        _spool(place, own, drafts)
        catch_up(place)
        said = "the ledger has it, or its runner takes it within a second"
    else:
        from streams.kafka.send import numbered, send_events

        send_events(place.need_kafka(), numbered(drafts, own, clock))
        said = "the ledger writer takes it from Kafka"
    ended = len(drafts) - 1
    if as_json:
        click.echo(json_text({"source": state.source, "abandoned": ended, "reason": reason}))
    else:
        click.echo(
            f"closed {state.source} ({reason}); {counted(ended, 'open request')} ended; {said}"
        )


def checked_reason(text: str) -> str:
    """The reason as one line. Raises `UsageError`."""
    reason = " ".join(text.split())
    if not reason or len(reason) > REASON_LENGTH_MAX or not reason.isprintable():
        raise click.UsageError(
            f"a reason is one line of at most {REASON_LENGTH_MAX} characters, for whoever reads "
            "the books later"
        )
    return reason


def find_source(states: Sequence["SourceState"], which: str) -> "SourceState":
    """The source that is meant by its name or its last part. Raises `Stop`. Pure."""
    for state in states:
        if which in (state.source, state.source.rpartition("/")[2]):
            return state
    near = nearest(which, [state.source for state in states])
    hint = f"did you mean {near}?" if near else "`tollbook sources list` shows them"
    raise Stop(f"the ledger knows no source {which!r}; {hint}")


def refuse(state: "SourceState", place: Place, now: datetime) -> None:
    """Raises `Stop` for a source that is closed or seems to live."""
    if state.closed_by is not None:
        raise Stop(f"{state.source} is closed already, by {state.closed_by}; nothing was written")
    if place.embedded:
        from streams.local.layout import Layout
        from streams.log.lock import held
        from streams.log.spool import LOCK

        if held(Layout(place.data).spool(state.source.rpartition("/")[2]) / LOCK):
            raise Stop(f"{state.source} is alive, it holds its spool; stop that process instead")
    elif state.last_mark is not None and now - state.last_mark < ALIVE:
        seconds = round((now - state.last_mark).total_seconds())
        raise Stop(
            f"{state.source} wrote a mark {seconds} s ago, so it seems to be alive; stop it, which "
            f"closes it in order, or wait until it is silent for {ALIVE.seconds // 60} minutes"
        )


def closing(
    read: "ReadSession", state: "SourceState", own: str, reason: str, now: datetime
) -> list[Draft]:
    """The facts that close `state`'s source, told by the source `own`: its closing comes last."""
    from ledger.sql.sources import last_heard, open_requests
    from streams.adoption import OpenRequest, abandoned, closed

    name = own.rpartition("/")[2]
    time = last_heard(read, state.source) or state.last_mark or now
    rows = open_requests(read, state.source)
    requests = [OpenRequest(row, row.accepted_at or time, 0) for row in rows]
    drafts = abandoned(state.source, requests, name)
    drafts.append(closed(state.source, state.last, time, f"operator: {reason}", name))
    return drafts


def _spool(place: Place, own: str, drafts: Sequence[Draft]) -> None:
    """Write `drafts` into a spool of their own, which the runner takes as it takes every other."""
    from streams.local.layout import Layout
    from streams.local.spools import OWN_RESERVE_BYTES
    from streams.log.spool import SpoolWriter

    directory = Layout(for_writing(place.data)).spool(own.rpartition("/")[2])
    spool = SpoolWriter.create(
        directory, own, clock=SystemClock(), reserve_bytes=OWN_RESERVE_BYTES, durability="power"
    )
    try:
        for start in range(0, len(drafts), DRAFTS_IN_ONE_APPEND):
            spool.append(*drafts[start : start + DRAFTS_IN_ONE_APPEND])
        spool.sync()
    finally:
        spool.close()


def sources_table(states: Sequence["SourceState"]) -> Table:
    """Sources as a table. Pure."""
    return Table(
        (
            Column("source"),
            Column("last mark"),
            Column("closed"),
            Column("by"),
            Column("open", number=True),
        ),
        tuple(
            (state.source, state.last_mark, state.closed_at, state.closed_by, state.open)
            for state in states
        ),
    )
