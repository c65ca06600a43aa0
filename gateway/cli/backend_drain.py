"""`tollbook backends drain`: nothing new, wait for what runs, then say that it is safe to stop."""

from collections.abc import Mapping
from typing import Final

import click
import msgspec

from gateway.cli.backend_facts import Said, changed
from gateway.cli.backend_known import is_known, no_such, registry_or_none
from gateway.cli.data import change_registry, make_ready
from gateway.cli.draining import Drained, drained, places
from gateway.cli.failure import EXIT_FAILED
from gateway.cli.looks import TOLD_SECONDS, looks
from gateway.cli.options import json_option
from gateway.cli.output import json_text
from gateway.cli.place import Place, place_option
from gateway.cli.progress import Progressing, progress
from gateway.cli.views import living, views_of
from ledger.clock import SystemClock
from ledger.words import counted

LOOK_SECONDS: Final = 0.5
MICROSECONDS: Final = 1_000_000


class Outcome(msgspec.Struct, frozen=True):
    """How a wait ended: the last that was seen, the bound at first, and how long it took."""

    seen: Drained
    grace_seconds: int
    waited_seconds: float


@click.command("drain")
@click.argument("name")
@click.option(
    "--wait-seconds",
    type=click.FloatRange(0),
    metavar="N",
    help="Wait at most so long, but up to three seconds for gateways to take note; 0: only look. "
    "Default: until it is safe.",
)
@click.option(
    "--without",
    multiple=True,
    metavar="GATEWAY",
    help="A gateway that is gone for good, so that nobody need wait to hear of it.",
)
@place_option
@json_option
def command(
    name: str,
    wait_seconds: float | None,
    without: tuple[str, ...],
    place: Place,
    as_json: bool,
) -> int:
    """Send the backend NAME nothing new, wait for what runs there, and say when it may be stopped.

    Exit code 0: it may be stopped. 1: it may not, or not yet. The longest wait is the largest
    number of tokens that a request there may still produce, times the time between two of them.
    """
    before = places(views_of(place).values(), name)
    _record(place, name)
    with progress(f"draining {name}") as tell:
        ended = _wait(place, name, before, without, wait_seconds, tell)
    if as_json:
        click.echo(json_text(_as_json(name, ended)))
    else:
        click.echo(_words(name, ended))
    return 0 if ended.seen.safe else EXIT_FAILED


def _record(place: Place, name: str) -> None:
    """Say in the registry that `name` is draining, unless that is said already."""
    book = registry_or_none(place)
    server = book.backends.get(name)
    configured = server is None and is_known(place, name)
    if server is None and not configured:
        raise no_such(place, book, name)
    if server is not None and server.draining and server.removed_at is None:
        return
    now = SystemClock().now()
    change_registry(
        make_ready(place),
        lambda book: changed(book, name, Said(draining=True), configured, now),
    )


def _wait(
    place: Place,
    name: str,
    before: Mapping[str, tuple[str, int]],
    without: tuple[str, ...],
    wait_seconds: float | None,
    tell: Progressing,
) -> Outcome:
    longest = 0
    for look in looks(place, LOOK_SECONDS):
        seen = drained(look.views.values(), name, before, look.now, without, living(place))
        waited = look.waited_seconds
        if seen.longest_us is not None:
            longest = max(longest, round(waited * MICROSECONDS) + seen.longest_us)
        least = TOLD_SECONDS if seen.unaware else 0.0
        late = wait_seconds is not None and waited >= max(wait_seconds, least)
        if seen.safe or late or (seen.silent and not (seen.running or seen.unaware)):
            break
        tell.step(_progress(name, seen), round(waited), -(-longest // MICROSECONDS))
    return Outcome(seen, -(-longest // MICROSECONDS), waited)


def _progress(name: str, seen: Drained) -> str:
    if seen.unaware:
        return f"draining {name}: waiting for {', '.join(seen.unaware)} to take note"
    left = "" if seen.longest_us is None else f", at most {-(-seen.longest_us // MICROSECONDS)} s"
    return f"draining {name}: {seen.running} running{left} (seconds)"


def _words(name: str, ended: Outcome) -> str:
    seen = ended.seen
    if seen.safe:
        return (
            f"backend {name} is drained; it is safe to stop\n"
            f"suggested termination grace: {ended.grace_seconds} s"
        )
    parts = []
    if seen.running:
        wait = (
            ""
            if seen.longest_us is None
            else f", for at most {-(-seen.longest_us // MICROSECONDS)} s"
        )
        run = counted(seen.running, "request still runs", "requests still run")
        parts.append(f"{run} there{wait}")
    if seen.unaware:
        parts.append(f"{', '.join(seen.unaware)} has not taken note yet")
    if seen.silent:
        parts.append(
            f"nothing is heard of {', '.join(seen.silent)}, which may still send requests; if it "
            f"is gone, say so by --without {seen.silent[0]}"
        )
    return f"backend {name} gets no new requests, and is not safe to stop yet: {'; '.join(parts)}"


def _as_json(name: str, ended: Outcome) -> dict[str, object]:
    seen = ended.seen
    return {
        "id": name,
        "safe": seen.safe,
        "running": seen.running,
        "unaware": seen.unaware,
        "silent": seen.silent,
        "waited_seconds": round(ended.waited_seconds, 3),
        "grace_seconds": ended.grace_seconds,
    }
