"""`tollbook explain`: why a number is what it is, from a bill line down to an offset in a log."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import click

from gateway.cli.data import current_ledger
from gateway.cli.explain_words import (
    Places,
    request_json,
    request_text,
    requests_json,
    requests_table,
)
from gateway.cli.failure import EXIT_FAILED, Stop
from gateway.cli.line_words import WHY, events_under, line_as_json, line_text
from gateway.cli.options import json_option, parse_instant, parse_month
from gateway.cli.output import json_text, show
from gateway.cli.place import Place, place_option
from gateway.http.client_ids import client_request_of
from gateway.secrets import known_hash_key
from ledger.clock import SystemClock, to_us
from ledger.events import Event
from ledger.zones import month_of

if TYPE_CHECKING:
    from ledger.sql.explain import Explained
    from ledger.sql.lines import LineOf
    from ledger.sql.session import ReadSession

LIMIT_DEFAULT: Final = 100

PARTS: Final = (
    "project",
    "key",
    "model",
    "day",
    "basis",
    "price",
    "month",
    "kind",
    "corrects",
)
"""What `--line` may name. A part begins behind a comma, so that a model's name may hold one."""

_PART: Final = re.compile(rf"(?:^|,)\s*({'|'.join(PARTS)})=")


@click.command("explain", short_help="Show why a request or a bill line counts as it does.")
@click.argument("request_id", required=False)
@click.option(
    "--client",
    metavar="ID",
    help="The requests to which a client gave this id, by the data directory that hashed it.",
)
@click.option(
    "--line",
    "line",
    metavar="PARTS",
    help="The events under a line of the bill: project=ID|NAME,key=ID|NAME,model=M,"
    "day=2026-11-29,basis=B,price=ID,month=2026-11, and of what was told late or corrected "
    "kind=late|corrected,corrects=EVENT; each may be left out. Default month: that of the day, "
    "else the current one.",
)
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=LIMIT_DEFAULT,
    show_default=True,
    metavar="N",
    help="With --line: show at most so many requests.",
)
@click.option(
    "--skip",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="With --line: begin behind so many.",
)
@place_option
@json_option
def command(
    request_id: str | None,
    client: str | None,
    line: str | None,
    limit: int,
    skip: int,
    place: Place,
    as_json: bool,
) -> int:
    """Show why a request or a bill line counts as it does: the events with their offsets in the
    logs, attempts, timing, price, and the rows that it counts in.

    REQUEST_ID is what a gateway gives back as x-request-id.
    """
    if [request_id, client, line].count(None) != 2:
        raise click.UsageError("give a request's id, or --client ID, or --line PARTS")
    if line is not None:
        return _explain_line(place, line, skip, limit, as_json)
    if client is not None:
        return _explain_client(place, client, as_json)
    assert request_id is not None, "one of the three was given"
    return _explain_request(place, request_id, as_json)


def _explain_request(place: Place, request_id: str, as_json: bool) -> int:
    from ledger.sql.explain import explain
    from ledger.sql.names import key_names

    with current_ledger(place) as ledger, ledger.read() as read:
        found = explain(read, request_id)
        if found is None:
            raise Stop(_unknown(read, request_id))
        names = key_names(read)
    places = places_of(place, _all_events(found))
    if as_json:
        click.echo(json_text(request_json(found, places, names)))
    else:
        click.echo(request_text(found, places, names))
    return 0


def _explain_client(place: Place, client: str, as_json: bool) -> int:
    from ledger.sql.explain import requests_of_client
    from ledger.sql.names import key_names

    key = known_hash_key(place.data)
    if key is None:
        raise Stop(
            f"clients' ids are kept as hashes, and {place.data} has no key for them; give the data "
            "directory of the gateway that was called by --data"
        )
    with current_ledger(place) as ledger, ledger.read() as read:
        rows = requests_of_client(read, client_request_of(client.encode(), key))
        names = key_names(read)
    if as_json:
        click.echo(json_text({"requests": requests_json(rows, names)}))
    else:
        show(
            requests_table(rows, names),
            empty="no request with this id of a client; it counts only by the data directory of "
            "the gateway that was called",
        )
    return 0


def _explain_line(place: Place, text: str, skip: int, limit: int, as_json: bool) -> int:
    from ledger.sql.lines import under_line
    from ledger.sql.names import key_names, names_of
    from ledger.sql.replay import load_book

    try:
        parts = parse_line(text)
    except ValueError as wrong:
        raise click.BadParameter(str(wrong), param_hint="'--line'") from None
    with current_ledger(place) as ledger, ledger.read() as read:
        names = key_names(read)
        zone = load_book(read).rules.zone
        wanted = line_of(parts, names, names_of(read, "project"), zone)
        under = under_line(read, wanted, skip=skip, limit=limit)
    if not under.total and not under.total_landings and not under.said:
        by = ",".join(wanted.by) or "key,model"
        raise Stop(
            f"no request counts in this line; `tollbook bill --month {wanted.month} --by {by}` "
            "shows the lines that there are"
        )
    places = places_of(place, events_under(under))
    if as_json:
        click.echo(json_text(line_as_json(wanted, under, places, names, skip)))
    else:
        click.echo(line_text(wanted, under, places, skip))
    return 0 if under.equal else EXIT_FAILED


def parse_line(text: str) -> dict[str, str]:
    """The parts of a line by name. Pure. Raises `ValueError` with words."""
    found = list(_PART.finditer(text))
    if not found or found[0].start() != 0:
        raise ValueError(f"{text!r} names no line; write key=alice,model=m,day=2026-11-29")
    ends = [match.start() for match in found[1:]] + [len(text)]
    parts: dict[str, str] = {}
    for match, end in zip(found, ends, strict=True):
        name, value = match[1], text[match.end() : end].strip()
        if name in parts or not value:
            raise ValueError(f"{name} is {'empty' if not value else 'given twice'}")
        parts[name] = value
    if "month" in parts:
        parse_month(parts["month"])
    if parts.get("kind", "usage") not in WHY:
        raise ValueError(f"{parts['kind']!r} is no kind of line; it is one of {', '.join(WHY)}")
    if "day" in parts:
        day = parts["day"]
        if len(day) != len("2026-11-29"):
            raise ValueError(f"{day!r} is not a day; write it as 2026-11-29")
        parse_instant(day)
        if parts.setdefault("month", day[:7]) != day[:7]:
            raise ValueError(f"the day {day} is not in the month {parts['month']}")
    return parts


def line_of(
    parts: Mapping[str, str], names: Mapping[str, str], projects: Mapping[str, str], zone: str
) -> "LineOf":
    """The line that `parts` name; a key or a project may be told by its name. The month is the
    current one of `zone` if they name none. Raises `Stop`."""
    from ledger.sql.lines import LineOf

    return LineOf(
        month=parts.get("month") or month_of(to_us(SystemClock().now()), zone),
        project_id=_id_of("projects", parts.get("project"), projects),
        key_id=_id_of("keys", parts.get("key"), names),
        model=parts.get("model"),
        day=parts.get("day"),
        basis=parts.get("basis"),
        price_id=parts.get("price"),
        kind=next((kind for kind in WHY if kind == parts.get("kind")), None),
        corrects=parts.get("corrects"),
    )


def _id_of(what: str, said: str | None, names: Mapping[str, str]) -> str | None:
    if said is None or said in names:
        return said
    ids = sorted(one for one, name in names.items() if name == said)
    if len(ids) > 1:
        raise Stop(f"{len(ids)} {what} are named {said!r}; give the id: {', '.join(ids)}")
    return ids[0] if ids else said


def places_of(place: Place, events: Sequence[Event]) -> Places:
    """Where `events` stand in the logs; nothing for those that no log holds any more. Says on
    standard error why it cannot be known, where brokers are away."""
    access = place.kafka
    if access is None:
        from streams.local.find import find_on_disk
        from streams.local.layout import Layout

        return find_on_disk(Layout(place.data), events)
    from streams.errors import KafkaError, TopicsWrong
    from streams.kafka.find import SECONDS_MAX, find_on_kafka

    try:
        search = asyncio.run(find_on_kafka(access, events))
    except (KafkaError, TopicsWrong) as wrong:
        click.echo(f"tollbook: offsets are not known: {wrong}", err=True)
        return None
    if not search.whole:
        click.echo(
            f"tollbook: not all of the log was read within {SECONDS_MAX:.0f} s; an event without a "
            "place may still be in it",
            err=True,
        )
    return search.places


def _all_events(found: "Explained") -> list[Event]:
    return [*found.events, *([found.price_event] if found.price_event is not None else [])]


def _unknown(read: "ReadSession", request_id: str) -> str:
    from ledger.events import RequestRejected, payload_of
    from ledger.sql.explain import near, refusal_of

    refusal = refusal_of(read, request_id)
    if refusal is not None:
        said = payload_of(refusal)
        assert isinstance(said, RequestRejected), "that is what was looked for"
        return (
            f"request {request_id} was refused with {said.status} ({said.code}) at "
            f"{refusal.time:%Y-%m-%dT%H:%M:%SZ} before any backend was called, so it counts nowhere"
        )
    found = near(read, request_id) or near(read, f"req_{request_id}")
    hint = (
        f"did you mean {' or '.join(found)}?"
        if found
        else "an id is req_ and 32 letters and digits, in the header x-request-id of the answer; "
        '`tollbook query "SELECT request_id FROM requests ORDER BY accepted_at DESC LIMIT 10"` '
        "shows the newest"
    )
    return f"there is no request {request_id!r} in the ledger; {hint}"
