"""`tollbook reconcile`: the ledger against the engines' own counters, and why they part."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import click
import msgspec

from gateway.cli.data import current_ledger
from gateway.cli.failure import EXIT_FAILED
from gateway.cli.options import INSTANT, MONTH, json_option
from gateway.cli.output import Cell, Column, Table, json_text, show
from gateway.cli.place import Place, place_option
from gateway.cli.progress import progress
from ledger.clock import SystemClock, from_us
from ledger.words import counted
from ledger.zones import month_span

if TYPE_CHECKING:
    from ledger.folds.reconcile import Side, Window
    from ledger.sql.reconcile import Unread

HOURS: Final = 24
HOURS_MAX: Final = 10 * 366 * 24
EARLIEST: Final = datetime(1970, 1, 1, tzinfo=UTC)
LATEST: Final = datetime(9999, 1, 1, tzinfo=UTC)
"""A date is told apart from these by minutes and days, which must be dates, too."""

NOT_OVER: Final = "not over"

COLUMNS: Final = (
    Column("backend"),
    Column("from"),
    Column("to"),
    Column("side"),
    Column("engine", number=True),
    Column("ledger", number=True),
    Column("difference", number=True),
    Column("at least", number=True),
    Column("at most", number=True),
    Column("verdict"),
)


@click.command("reconcile", short_help="Compare the ledger with the engines' own counters.")
@click.option("--month", type=MONTH, metavar="YYYY-MM", help="A month in UTC.")
@click.option("--since", type=INSTANT, metavar="INSTANT", help="From here, with --until or to now.")
@click.option("--until", type=INSTANT, metavar="INSTANT", help="To here. Default: now.")
@click.option(
    "--hours",
    type=click.IntRange(1, HOURS_MAX),
    metavar="N",
    help=f"The last N hours. Default: {HOURS}.",
)
@click.option("--backend", metavar="ID", help="Only this backend.")
@json_option
@place_option
def command(
    month: str | None,
    since: datetime | None,
    until: datetime | None,
    hours: int | None,
    backend: str | None,
    as_json: bool,
    place: Place,
) -> int:
    """Compare the tokens in the ledger with the engines' own counters, by backend and hour, and
    name what explains a difference. Exit code 1 if one is beyond what the requests can explain."""
    start, end = span_of(month, since, until, hours, SystemClock().now())
    from ledger.sql.reconcile import heard_until, reconcile, unread

    with (
        current_ledger(place) as ledger,
        progress("comparing") as tell,
        ledger.read() as read,
    ):
        heard = heard_until(read)
        windows = []
        for window in reconcile(read, start, end, backend):
            windows.append(window)
            tell.step("windows", len(windows))
        lacking = unread(read, start, end, backend)
    over = [heard is not None and window.end <= heard for window in windows]
    if as_json:
        found = [window_json(*pair) for pair in zip(windows, over, strict=True)]
        click.echo(json_text({"since": start, "until": end, "windows": found, "unread": lacking}))
    else:
        table = reconcile_table(windows, over, lacking)
        which = "no engine" if backend is None else f"no engine of backend {backend}"
        show(table, empty=f"{which} was read twice from {start:%Y-%m-%d %H:%M} on")
    beyond = any(window.beyond for window, ended in zip(windows, over, strict=True) if ended)
    return EXIT_FAILED if beyond else 0


def span_of(
    month: str | None,
    since: datetime | None,
    until: datetime | None,
    hours: int | None,
    now: datetime,
) -> tuple[datetime, datetime]:
    """The time that the options ask for, at `now`. Raises `UsageError` if they contradict. Pure."""
    ways = [month is not None, since is not None or until is not None, hours is not None]
    if sum(ways) > 1:
        raise click.UsageError("--month, --since with --until, and --hours exclude each other")
    if month is not None:
        first, after = (from_us(us) for us in month_span(month, "UTC"))
        return first, min(after, max(now, first))
    if until is not None and since is None:
        raise click.UsageError("--until needs --since")
    if since is not None:
        if since >= (until or now):
            raise click.UsageError("--since must be before --until, and before now")
        return max(since, EARLIEST), min(until or now, LATEST)
    return now - timedelta(hours=hours or HOURS), now


def window_json(window: "Window", over: bool) -> dict[str, object]:
    """One window for JSON, its causes also in words. Pure."""
    from ledger.folds.causes import cause_words, verdict, window_words

    return {
        "backend": window.backend_id,
        "engine": window.engine,
        "from": window.start,
        "to": window.end,
        "over": over,
        "requests": window.requests,
        "readings": window.readings,
        "readings_failed": window.faults,
        "restarts": window.restarts,
        "notes": list(window_words(window)),
        "sides": [
            {
                "side": side.side,
                "counters": side.counters,
                "engine": side.engine,
                "ledger": side.ledger,
                "difference": side.difference,
                "at_least": side.low,
                "at_most": side.high,
                "beyond": side.beyond,
                "verdict": verdict(side),
                "causes": [
                    msgspec.to_builtins(cause) | {"says": cause_words(cause, side)}
                    for cause in side.causes
                ],
            }
            for side in window.sides
        ],
    }


def reconcile_table(
    windows: Sequence["Window"], over: Sequence[bool], lacking: Iterable["Unread"]
) -> Table:
    """Every side of every window as a row, and below what explains them. Pure."""
    rows: list[tuple[Cell, ...]] = []
    notes: list[str] = []
    for window, ended in zip(windows, over, strict=True):
        rows += [_row(window, side, ended) for side in window.sides]
        notes += _notes(window)
    notes += [
        f"{one.backend_id} is not compared, {counted(one.requests, 'request')} went there: "
        f"{one.why}"
        for one in lacking
    ]
    if any(str(row[-1]).endswith(NOT_OVER) for row in rows):
        notes.append(
            f"{NOT_OVER}: gateways have not yet told all of that time, so that a difference says "
            "nothing"
        )
    return Table(COLUMNS, tuple(rows), tuple(notes))


def _row(window: "Window", side: "Side", over: bool) -> tuple[Cell, ...]:
    from ledger.folds.causes import verdict

    when = (f"{window.start:%m-%d %H:%M:%S}", f"{window.end:%H:%M:%S}")
    sizes = (side.engine, side.ledger, side.difference, side.low, side.high)
    said = verdict(side)
    return (
        window.backend_id,
        *when,
        side.side,
        *sizes,
        said if over or said == "same" else f"{said}, {NOT_OVER}",
    )


def _notes(window: "Window") -> Iterator[str]:
    from ledger.folds.causes import side_words, window_words

    name = f"{window.backend_id} {window.start:%m-%d %H:%M} to {window.end:%H:%M}"
    yield from (f"{name}: {words}" for words in window_words(window))
    for side in window.sides:
        yield from (f"{name}, {words}" for words in side_words(side))
