"""`tollbook correct`: a person says what a request really used, and why."""

from typing import TYPE_CHECKING, Final

import click

from gateway.cli.data import catch_up, change_registry, current_ledger
from gateway.cli.options import json_option
from gateway.cli.output import json_text, pairs_text
from gateway.cli.place import Place, place_option
from gateway.cli.sources import checked_reason
from gateway.setting_values import nearest
from ledger.clock import SystemClock
from ledger.events import BUCKETS, Draft, Usage, UsageCorrected
from ledger.identity import mint_id

if TYPE_CHECKING:
    from ledger.folds.book import Book

COUNT_DIGITS_MAX: Final = 13


class _Count(click.ParamType):
    """`bucket=count`."""

    name = "BUCKET=N"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> object:
        if not isinstance(value, str):
            return value
        bucket, equals, count = value.partition("=")
        if bucket not in BUCKETS:
            near = nearest(bucket, BUCKETS)
            hint = f"did you mean {near}?" if near else f"it is one of {', '.join(BUCKETS)}"
            self.fail(f"there is no bucket {bucket!r}; {hint}", param, ctx)
        if not equals or not (count.isascii() and count.isdecimal()):
            self.fail(
                f"{value!r} is no count; write whole tokens, such as {bucket}=120", param, ctx
            )
        if len(count) > COUNT_DIGITS_MAX:
            self.fail(f"{count} tokens are more than any request has", param, ctx)
        return bucket, int(count)


@click.command("correct", short_help="Say what a request really used, with a reason.")
@click.argument("request_id", metavar="REQUEST_ID")
@click.option(
    "--set",
    "counts",
    type=_Count(),
    multiple=True,
    help="What a bucket really held; may be given again. Buckets that are not named stay.",
)
@click.option("--void", is_flag=True, help="It counts as nothing at all.")
@click.option("--reason", required=True, metavar="TEXT", help="Why, for whoever reads the books.")
@json_option
@place_option
def command(
    request_id: str,
    counts: tuple[tuple[str, int], ...],
    void: bool,
    reason: str,
    as_json: bool,
    place: Place,
) -> None:
    """Correct one request that has an end.

    Nothing that was told is changed: the difference lands as a line of its own in the month that is
    open, and names the event that ended the request.
    """
    if bool(counts) == void:
        raise click.UsageError("say --set BUCKET=N, or --void, and not both")
    if len(dict(counts)) < len(counts):
        raise click.UsageError("a bucket is set twice; say each --set BUCKET=N once")
    said = _correct(place, request_id, None if void else dict(counts), checked_reason(reason))
    month, before, payload = said
    if as_json:
        row = {"month": month, "before": before, "correction": payload}
        click.echo(json_text(row))
        return
    after = payload.usage
    pairs = [("request", request_id), ("corrects", payload.original), ("lands in", month)]
    pairs += [
        (name, f"{_shown(before, name)} -> {_shown(after, name)}")
        for name in BUCKETS
        if _shown(before, name) != _shown(after, name)
    ]
    if after is None:
        pairs.append(("counts as", "nothing at all"))
    click.echo(pairs_text([*pairs, ("reason", payload.reason)]))


def _correct(
    place: Place, request_id: str, counts: dict[str, int] | None, reason: str
) -> tuple[str, Usage | None, UsageCorrected]:
    """Append the correction; the month it lands in, what stood before, and what was said."""
    from ledger.sql.corrections import correctable, draft, month_of_correction, standing

    with current_ledger(place) as ledger, ledger.read() as read:
        found = correctable(read, request_id)
    now, correction_id = SystemClock().now(), mint_id()
    befores: list[Usage | None] = []
    payloads: list[UsageCorrected] = []

    def make(book: "Book") -> Draft:
        made = draft(book, found, counts, reason, now, correction_id)
        assert isinstance(made.payload, UsageCorrected), "a correction is what was asked for"
        befores.append(standing(book, found.row))
        payloads.append(made.payload)
        return made

    book = change_registry(place, make)
    if place.embedded:
        catch_up(place)
    return month_of_correction(book, found.row), befores[-1], payloads[-1]


def _shown(usage: Usage | None, name: str) -> str:
    if usage is None:
        return "0"
    count: int | None = getattr(usage, name)
    return "unknown" if count is None else f"{count:,}"
