"""`tollbook dead-letters`: records that nobody could take, why, and how one goes back."""

import asyncio
from typing import TYPE_CHECKING

import click

from gateway.cli.data import cli_source
from gateway.cli.failure import Stop
from gateway.cli.options import json_option
from gateway.cli.output import Column, Table, json_text, pairs_text, printable, show
from gateway.cli.place import Place, place_option
from ledger.clock import SystemClock, from_us

if TYPE_CHECKING:
    from streams.kafka.deadletter import Filed


@click.group("dead-letters", no_args_is_help=True)
def command() -> None:
    """Records of Kafka that nobody could take, with the reason."""


@command.command("list")
@place_option
@json_option
def list_letters(place: Place, as_json: bool) -> None:
    """List the dead letters, oldest first."""
    found = _filed(place)
    if as_json:
        click.echo(json_text({"dead_letters": [summary(one) for one in found]}))
        return
    columns = tuple(Column(name) for name in ("place", "since", "by", "replayed as", "reason"))
    rows = tuple(
        (
            one.letter.place,
            from_us(one.since_us),
            one.letter.by,
            one.replayed,
            one.letter.reason,
        )
        for one in found
    )
    show(Table(columns, rows), empty="no dead letter")


@command.command("show")
@click.argument("letter", metavar="PLACE")
@place_option
@json_option
def show_letter(letter: str, place: Place, as_json: bool) -> None:
    """Show one whole record. PLACE is TOPIC/PARTITION/OFFSET, as the list names it."""
    one = _one(_filed(place), letter)
    value = one.letter.value
    text = None if value is None else value.decode(errors="backslashreplace")
    headers = {name: said.decode(errors="backslashreplace") for name, said in one.letter.headers}
    if as_json:
        click.echo(json_text(summary(one) | {"headers": headers, "value": text}))
        return
    pairs = [(name, said if isinstance(said, str) else None) for name, said in summary(one).items()]
    click.echo(pairs_text([*pairs, *headers.items(), ("value", text)]))


@command.command("replay")
@click.argument("letters", metavar="PLACE...", nargs=-1)
@click.option("--all", "every", is_flag=True, help="All that were not sent back yet.")
@place_option
@json_option
def replay_letters(letters: tuple[str, ...], every: bool, place: Place, as_json: bool) -> None:
    """Send records back after their reason is mended: as new records with the ids they had.

    Nothing is sent if one of them is still no event. A record that goes back twice counts once.
    """
    if bool(letters) == every:
        raise click.UsageError("name the letters to send back, or give --all")
    from streams.kafka.deadletter import replay

    access = place.need_kafka()
    found = _filed(place)
    meant = (
        [one for one in found if one.replayed is None]
        if every
        else [_one(found, name) for name in dict.fromkeys(letters)]
    )
    events = asyncio.run(replay(access, meant, cli_source(), SystemClock()))
    sent = [
        {"place": one.letter.place, "id": event.id, "sent_as": event.name}
        for one, event in zip(meant, events, strict=True)
    ]
    if as_json:
        click.echo(json_text({"replayed": sent}))
        return
    for line in sent:
        click.echo(printable(f"{line['place']} went back as {line['sent_as']}, id {line['id']}"))
    if not sent:
        click.echo("nothing to send back")


def summary(one: "Filed") -> dict[str, object]:
    """What a list says of a letter. Pure."""
    letter = one.letter
    return {
        "place": letter.place,
        "topic": letter.topic,
        "partition": letter.partition if letter.offset >= 0 else None,
        "offset": letter.offset if letter.offset >= 0 else None,
        "since": from_us(one.since_us).isoformat(),
        "by": letter.by,
        "replayed": one.replayed,
        "reason": letter.reason,
    }


def _filed(place: Place) -> list["Filed"]:
    from streams.kafka.deadletter import filed

    return asyncio.run(filed(place.need_kafka()))


def _one(found: list["Filed"], name: str) -> "Filed":
    for one in found:
        if one.letter.place == name:
            return one
    raise Stop(f"there is no dead letter {name!r}; `tollbook dead-letters list` shows them")
