"""What `tollbook explain --line` says of a line of the bill, for a person and as JSON. Pure."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from gateway.cli.bill import charge_text, line_json
from gateway.cli.explain_words import (
    Places,
    cost_words,
    event_json,
    instant,
    money,
    place_of,
    priced_table,
    rate_words,
    row_json,
)
from gateway.cli.output import Cell, Column, Table, pairs_text, table_text
from ledger.events import BUCKETS, Event
from ledger.folds.cost import cost_of_rated
from ledger.folds.rating import Kind
from ledger.words import counted

if TYPE_CHECKING:
    from ledger.folds.rating import Rated
    from ledger.folds.requests import RequestRow
    from ledger.sql.lines import Landing, LineOf, UnderLine

WHY: Final[Mapping[Kind, str]] = {
    "usage": "its end became known behind the month's cut: the month holds what was known at it",
    "late": "it was told behind the cut of its own month, so it counts here",
    "corrected": "a person said what it really used",
}
"""Why something stands on a line that no request of the month put there."""


def line_text(wanted: "LineOf", under: "UnderLine", places: Places, skip: int) -> str:
    """The events under a line, what they add up to, and what the bill says."""
    shown, whole = len(under.requests), under.total + under.total_landings
    parts: list[str] = []
    if under.requests:
        title = f"Ends of requests {skip + 1:,} to {skip + shown:,} of {under.total:,}"
        parts.append(f"{title}\n{table_text(_requests(under, places))}")
    elif not under.total:
        parts.append("No request counts in this line as it happened")
    if under.total_landings:
        parts.append(
            f"{counted(under.total_landings, 'entry', 'entries')} of what was told late or "
            "corrected"
        )
    first = max(skip - under.total, 0) + 1
    parts += [
        _landing_text(one, places, f"{number:,} of {under.total_landings:,}")
        for number, one in enumerate(under.landings, first)
    ]
    seen = skip + shown + len(under.landings)
    if seen < whole:
        parts.append(f"--skip {seen} shows the next")
    parts.append(f"What the bill says, and what its events add up to\n{table_text(_sides(under))}")
    parts.append(
        "equal" if under.equal else "NOT EQUAL: `tollbook audit` names what parts from what"
    )
    return "\n\n".join(parts)


def line_as_json(
    wanted: "LineOf", under: "UnderLine", places: Places, names: Mapping[str, str], skip: int
) -> dict[str, object]:
    """The same for programs."""
    return {
        "line": wanted,
        "equal": under.equal,
        "bill": [line_json(line, wanted.by) for line in under.said],
        "sums": [line_json(line, wanted.by) for line in under.added],
        "total": under.total,
        "total_corrections": under.total_landings,
        "skip": skip,
        "requests": [
            {
                **row_json(one.request, names),
                "counts": dict(zip(BUCKETS, one.request.usage.counts(), strict=True)),
                "cost": money(one.cost),
                "currency": one.cost.currency,
                "ended": None if one.ended is None else event_json(one.ended, places),
            }
            for one in under.requests
        ],
        "corrections": [_landing_json(one, places) for one in under.landings],
    }


def events_under(under: "UnderLine") -> list[Event]:
    """All events that are named, to look up where they stand."""
    found = [one.ended for one in under.requests]
    found += [event for one in under.landings for event in (one.original, one.made)]
    return [event for event in found if event is not None]


def _requests(under: "UnderLine", places: Places) -> Table:
    words = ("event", "place", "accepted", "request", "basis")
    columns = [Column(name) for name in words]
    columns += [Column(name, number=True) for name in (*BUCKETS, "cost")]
    rows = tuple(
        (
            None if one.ended is None else one.ended.name,
            place_of(one.ended, places),
            instant(one.request.accepted_at),
            one.request.request_id,
            one.request.basis,
            *one.request.usage.counts(),
            money(one.cost),
        )
        for one in under.requests
    )
    return Table(tuple(columns), rows)


def _landing_text(one: "Landing", places: Places, number: str) -> str:
    landed = one.landed
    pairs: list[tuple[str, Cell]] = [
        (landed.kind, f"{number}: {WHY[landed.kind]}"),
        ("request", landed.request_id),
    ]
    if one.original is not None:
        pairs += _event_pairs("corrects", one.original, places)
    if one.made is not None and one.made != one.original:
        pairs += _event_pairs("made by", one.made, places)
    if landed.correction is not None:
        pairs.append(("reason", landed.correction.reason))
    before, after = _billed(landed.before), _billed(landed.after)
    rows = [
        (name, None if before is None else before[name], None if after is None else after[name])
        for name in BUCKETS
    ]
    counts = Table(
        (Column("bucket"), Column("before", number=True), Column("after", number=True)),
        tuple(rows),
        tuple(
            f"{which} it was on no bill"
            for which, row in (("before", before), ("after", after))
            if row is None
        ),
    )
    parts = [pairs_text(pairs), table_text(counts)]
    parts += [
        f"On this line: {counted(part.totals.requests, 'request')}\n" + table_text(_part(part))
        for part in one.parts
    ]
    return "\n\n".join(parts)


def _event_pairs(name: str, event: Event, places: Places) -> Iterator[tuple[str, Cell]]:
    yield name, f"{event.name} ({event.id.partition('/')[2]}), at {instant(event.time)}"
    if (place := place_of(event, places)) is not None:
        yield "place", place


def _part(part: "Rated") -> Table:
    """What one line of a difference counts and costs; its counts may be below zero."""
    units = {} if part.rate is None else part.rate.pico
    cost = cost_of_rated(part)
    words = [] if part.rate is None else list(rate_words(part.rate))
    return priced_table(part.used, units, cost, [*words, *cost_words(cost)])


def _landing_json(one: "Landing", places: Places) -> dict[str, object]:
    landed = one.landed
    return {
        "kind": landed.kind,
        "request_id": landed.request_id,
        "corrects": landed.corrects,
        "original": None if one.original is None else event_json(one.original, places),
        "made_by": None if one.made is None else event_json(one.made, places),
        "reason": None if landed.correction is None else landed.correction.reason,
        "before": _billed(landed.before),
        "after": _billed(landed.after),
        "parts": [_part_json(part) for part in one.parts],
    }


def _part_json(part: "Rated") -> dict[str, object]:
    cost, rate = cost_of_rated(part), part.rate
    units = {} if rate is None else rate.pico
    used = part.used
    return {
        "requests": part.totals.requests,
        "basis": part.basis,
        "counts": {name: used[name] for name in BUCKETS},
        "charges": {
            name: None if count is None else charge_text(name, count)
            for name, count in used.items()
            if name not in BUCKETS and name in units
        },
        "price": None if rate is None else rate.price.price_id,
        "price_version": None if rate is None else rate.price.version,
        "band": None if rate is None else rate.band,
        "discount": None if rate is None or rate.discount is None else rate.discount.price_id,
        "cost": money(cost),
        "currency": cost.currency,
        "unpriced": cost.unpriced,
    }


def _billed(row: "RequestRow | None") -> dict[str, int | None] | None:
    """The counts of a request that is on a bill; null: it is on none."""
    if row is None or not row.billed:
        return None
    return dict(zip(BUCKETS, row.usage.counts(), strict=True))


def _sides(under: "UnderLine") -> Table:
    columns = [Column("side"), Column("kind"), Column("basis"), Column("requests", number=True)]
    columns += [Column(name, number=True) for name in (*BUCKETS, "cost")]
    columns.append(Column("currency"))
    sides = (("bill", under.said), ("events", under.added))
    rows = tuple(
        (
            side,
            line.kind,
            line.basis,
            line.requests,
            *(getattr(line, name) for name in BUCKETS),
            line.cost,
            line.currency,
        )
        for side, lines in sides
        for line in lines
    )
    return Table(tuple(columns), rows)
