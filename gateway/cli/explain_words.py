"""What `tollbook explain` says of a request, for a person and as JSON. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from gateway.cli.bill import BASIS_WORDS, charge_text, line_json
from gateway.cli.output import Cell, Column, Table, cell_text, pairs_text, printable, table_text
from ledger.events import BUCKETS, Event, RequestAccepted, RequestAttempted, payload_of
from ledger.folds.prices import CHARGES
from ledger.words import counted

if TYPE_CHECKING:
    from ledger.folds.cost import Cost
    from ledger.folds.rating import Rate
    from ledger.folds.requests import RequestRow
    from ledger.sql.adjust import Landed
    from ledger.sql.bill import BillLine
    from ledger.sql.explain import Explained

Places = Mapping[tuple[str, str, int], str] | None
"""Source, topic and sequence of an event to where it stands in a log; null if none can be read."""

GONE: Final = "no longer in the log"
"""The place of an event that retention has taken from its log; the ledger keeps the event."""

BASIS_SAID: Final = {
    "reported": "reported: the engine's own final count",
    **BASIS_WORDS,
}
"""How a count was obtained, in words."""


def place_of(event: Event | None, places: Places) -> str | None:
    """Where `event` stands, or that it does not any more; null if there is nothing to say."""
    if event is None or places is None:
        return None
    return places.get((event.source, event.topic, event.sequence), GONE)


def instant(moment: datetime | None) -> str | None:
    """`moment` in UTC with all of its digits."""
    if moment is None:
        return None
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def millis(microseconds: int | None) -> str | None:
    """A duration in milliseconds, exactly."""
    return (
        None if microseconds is None else f"{microseconds // 1000:,}.{microseconds % 1000:03d} ms"
    )


def request_text(found: "Explained", places: Places, names: Mapping[str, str]) -> str:
    """All that is known of one request, part by part."""
    row, routes = found.request, _routes(found.events)
    parts = [pairs_text(_facts(found, names))]
    if found.attempts:
        parts.append("Attempts\n" + table_text(_attempts(found, routes)))
    parts.append("Events\n" + table_text(_events(found, places)))
    parts += [f"set aside: {printable(f'{name}: {reason}')}" for name, reason in found.aside]
    if row.billed:
        parts.append(
            f"Tokens, {BASIS_SAID.get(row.basis, row.basis)}\n" + table_text(_priced(found))
        )
        parts.append("Counts in\n" + "\n".join(_counts_in(found)))
    else:
        parts.append("It is open: it counts on no bill before it has an end")
    if found.retries:
        parts.append("Same id of the client\n" + table_text(requests_table(found.retries, names)))
    return "\n\n".join(parts)


def request_json(found: "Explained", places: Places, names: Mapping[str, str]) -> dict[str, object]:
    """The same for programs. Durations are in microseconds, money is exact text."""
    row, routes = found.request, _routes(found.events)
    return {
        "request": row_json(row, names),
        "asked_model": _asked_model(found),
        "attempts": [
            {
                "attempt": one.attempt,
                "backend_id": one.backend_id,
                "started_at": one.started_at,
                "failed": one.failed,
                "score": _route(routes, one.attempt)[0],
                "reasons": _route(routes, one.attempt)[1],
                "cost": money(cost),
            }
            for one, cost in zip(found.attempts, found.attempt_costs, strict=True)
        ],
        "events": [event_json(event, places) for event in found.events],
        "aside": [{"event": name, "reason": reason} for name, reason in found.aside],
        "counts": dict(zip(BUCKETS, row.usage.counts(), strict=True)),
        "basis": row.basis,
        "basis_said": BASIS_SAID.get(row.basis, row.basis) if row.billed else None,
        "charges": {
            name: None if count is None else charge_text(name, count)
            for name, count in _charged(found)
            if name in _units(found)
        },
        "project": found.project_id,
        "price": _price_json(found, places),
        "late": [
            {"month": month, "original": one.corrects, "line": landing_option(month, one)}
            for month, one in found.landings
            if one.kind == "late"
        ],
        "corrections": [
            {
                "id": one.correction.correction_id,
                "made_at": one.correction.made_at,
                "reason": one.correction.reason,
                "original": one.correction.original,
                "usage": None
                if one.correction.usage is None
                else dict(zip(BUCKETS, one.correction.usage.counts(), strict=True)),
                "month": month,
                "line": landing_option(month, one),
            }
            for month, one in found.landings
            if one.correction is not None
        ],
        "cost": money(found.cost),
        "currency": found.cost.currency,
        "unpriced": found.cost.unpriced,
        "usage_hourly": _cell_json(found),
        "bill_line": None if found.line is None else line_json(found.line, ("key", "model", "day")),
        "line": line_option(found.line),
        "same_client_id": [row_json(other, names) for other in found.retries],
    }


def requests_table(rows: Sequence["RequestRow"], names: Mapping[str, str]) -> Table:
    """Requests side by side, as the tries of one client are looked at."""
    columns = ("request", "accepted", "retry", "key", "model", "state", "status", "basis")
    numbers = {"retry", "status"}
    return Table(
        columns=(
            *(Column(name, number=name in numbers) for name in columns),
            *(Column(name, number=True) for name in BUCKETS),
        ),
        rows=tuple(
            (
                row.request_id,
                instant(row.accepted_at),
                row.client_retry,
                names.get(row.key_id or "", row.key_id),
                row.model,
                row.outcome or row.state,
                row.status,
                row.basis,
                *row.usage.counts(),
            )
            for row in rows
        ),
    )


def requests_json(rows: Sequence["RequestRow"], names: Mapping[str, str]) -> list[object]:
    """The same for programs."""
    return [row_json(row, names) for row in rows]


def line_option(line: "BillLine | None") -> str | None:
    """What `--line` takes to show the requests under `line`, a line by key, model and day."""
    if line is None:
        return None
    price = "" if line.price_id is None else f",price={line.price_id}"
    return f"key={line.key_id},model={line.model},day={line.day},basis={line.basis}{price}"


def _asked_model(found: "Explained") -> str | None:
    """The model that was asked for, if another one answered and is billed; else null."""
    said = [payload_of(event) for event in found.events if event.type == RequestAccepted.TYPE]
    asked = next((one.model for one in said if isinstance(one, RequestAccepted)), None)
    return None if asked == found.request.model else asked


def _facts(found: "Explained", names: Mapping[str, str]) -> Iterator[tuple[str, Cell]]:
    row = found.request
    key = row.key_id
    yield "request", row.request_id
    name = None if key is None else names.get(key)
    yield "key", key if name is None else f"{key} ({name})"
    yield "project", found.project_id
    yield "model", row.model
    if (asked := _asked_model(found)) is not None:
        yield "asked for", asked
    yield "endpoint", f"{row.endpoint}{', streamed' if row.stream else ''}"
    yield "gateway", row.source
    yield "backend", row.backend_id
    yield "accepted", instant(row.accepted_at)
    yield "state", row.state
    if row.billed:
        yield "outcome", row.outcome
        yield "status", row.status
        yield "reason", row.reason
    yield "first token", millis(row.first_token_us)
    yield "duration", millis(row.duration_us)
    yield "in the gateway", millis(row.overhead_us)
    yield "chunks", row.chunks
    if row.client_request is not None:
        yield "client's id", f"{row.client_request} (a keyed hash)"
        yield "client's retry", row.client_retry


def _routes(events: Sequence[Event]) -> dict[int, RequestAttempted]:
    """What the attempts' own events say, by the number of the attempt."""
    said = [payload_of(event) for event in events if event.type == RequestAttempted.TYPE]
    return {one.attempt: one for one in said if isinstance(one, RequestAttempted)}


def _route(
    routes: Mapping[int, RequestAttempted], attempt: int
) -> tuple[str | None, list[str] | None]:
    """Score and reasons of one attempt; nulls for one that tells none."""
    said = routes.get(attempt)
    return (None, None) if said is None or said.score is None else (said.score, said.reasons)


def _attempts(found: "Explained", routes: Mapping[int, RequestAttempted]) -> Table:
    row = found.request
    lines: list[tuple[Cell, ...]] = []
    for one, cost in zip(found.attempts, found.attempt_costs, strict=True):
        said = (row.outcome or row.state) if one.attempt >= row.attempts else one.failed
        score, started = _route(routes, one.attempt)[0], instant(one.started_at)
        lines.append((one.attempt, one.backend_id, started, said, score, money(cost)))
    names = ("attempt", "backend", "started", "how it went", "score", "cost")
    numbers = {"attempt", "score", "cost"}
    why = tuple(
        printable(f"attempt {one.attempt} went to {one.backend_id} by: {', '.join(reasons)}")
        for one in found.attempts
        if (reasons := _route(routes, one.attempt)[1])
    )
    return Table(tuple(Column(name, number=name in numbers) for name in names), tuple(lines), why)


def _events(found: "Explained", places: Places) -> Table:
    columns = tuple(Column(name) for name in ("what", "event", "time", "place"))
    rows: list[tuple[Cell, ...]] = [
        (event.id.partition("/")[2], event.name, instant(event.time), place_of(event, places))
        for event in found.events
    ]
    return Table(columns, tuple(rows))


def _priced(found: "Explained") -> Table:
    counts = dict(zip(BUCKETS, found.request.usage.counts(), strict=True))
    used = {**counts, **dict(_charged(found))}
    return priced_table(used, _units(found), found.cost, _price_words(found))


def priced_table(
    used: Mapping[str, int | None], units: Mapping[str, int], cost: "Cost", words: Iterable[str]
) -> Table:
    """What was used by bucket and charge, what a unit of it costs in pico, and what it comes to."""
    rows: list[tuple[Cell, ...]] = []
    for name, count in used.items():
        pico = units.get(name)
        if name in BUCKETS:
            price = None if pico is None else _per_million(pico)
            shown: Cell = count
        elif pico is None:
            continue
        else:
            price = f"{_per_charge(name, pico)} {'a second' if name == 'gpu_second' else 'each'}"
            shown = None if count is None else charge_text(name, count)
        part = None if count is None or (pico is None and count) else decimal(count * (pico or 0))
        rows.append((name, shown, price, part))
    rows.append(("all", None, None, money(cost)))
    columns = ("bucket", "count", "per million", "cost")
    return Table(
        tuple(Column(name, number=name != "bucket") for name in columns), tuple(rows), tuple(words)
    )


def _units(found: "Explained") -> Mapping[str, int]:
    return {} if found.rate is None else found.rate.pico


def _charged(found: "Explained") -> Iterator[tuple[str, int | None]]:
    """How many there are of what can be charged beside tokens, a price or none."""
    used = {} if found.rated is None else found.rated.used
    yield from ((name, used[name]) for name in CHARGES if name in used)


def _per_charge(name: str, pico: int) -> str:
    """The price of one request or attempt, or of a second: it is held for a microsecond."""
    return _per_million(pico) if name == "gpu_second" else decimal(pico)


def _price_json(found: "Explained", places: Places) -> dict[str, object] | None:
    rate = found.rate
    if rate is None:
        return None
    price = rate.price
    return {
        "price_id": price.price_id,
        "model": price.model,
        "version": price.version,
        "scope": price.scope,
        "currency": price.currency,
        "effective_from": price.effective_from,
        "band": rate.band,
        "discount_id": None if rate.discount is None else rate.discount.price_id,
        **_prices_json(rate.pico),
        "list": _prices_json(rate.list_pico),
        "event": None if found.price_event is None else event_json(found.price_event, places),
    }


def _prices_json(pico: Mapping[str, int]) -> dict[str, object]:
    return {
        "per_million": {name: _per_million(pico[name]) for name in BUCKETS if name in pico},
        "charges": {name: _per_charge(name, pico[name]) for name in CHARGES if name in pico},
    }


def _price_words(found: "Explained") -> Iterator[str]:
    rate = found.rate
    if rate is None:
        yield "no price holds for this model at that time: `tollbook prices set`"
        return
    yield from rate_words(rate, found.price_event)
    yield from cost_words(found.cost)


def _landing_words(month: str, one: "Landed") -> Iterator[str]:
    """What was told of it behind a cut or by a person, and where that counts."""
    if one.kind == "usage":
        return
    what = "its end came behind the cut of its own month"
    if (said := one.correction) is not None:
        used = "it counts as nothing"
        if said.usage is not None:
            counts = ((name, getattr(said.usage, name)) for name in BUCKETS)
            known = [f"{name} {count:,}" for name, count in counts if count is not None]
            used = f"it used {', '.join(known)}"
        what = f"on {instant(said.made_at)} it was said that {used} ({said.reason})"
    yield printable(f"{what}: this stands on a line of its own in {month}")
    if one.parts:
        yield printable(f"`tollbook explain --line '{landing_option(month, one)}'` shows it")


def landing_option(month: str, one: "Landed") -> str | None:
    """What `--line` takes to show what landed in a month; null: it made no line there."""
    if not one.parts:
        return None
    key_id = one.parts[0].key_id
    return f"key={key_id},month={month},kind={one.kind},corrects={one.corrects}"


def rate_words(rate: "Rate", event: Event | None = None) -> Iterator[str]:
    """The price and the discount that a rate is made of; `event` published the price."""
    price = rate.price
    scope = "" if price.scope is None else f" for {price.scope}"
    band = "" if rate.band is None else f", in its band {rate.band}"
    yield printable(
        f"price: version {price.version} of {price.model}{scope}, in {price.currency}, from "
        f"{instant(price.effective_from)}{band}{f', event {event.name}' if event else ''}"
    )
    if rate.discount is not None:
        off = rate.discount
        percent = decimal((off.discount or 0) * 10**10)
        yield printable(
            f"discount: {percent} % by version {off.version} of {off.model}"
            f"{'' if off.scope is None else f' for {off.scope}'}"
        )


def cost_words(cost: "Cost") -> Iterator[str]:
    """Why a cost is not known."""
    if cost.unpriced:
        yield f"no price for {', '.join(cost.unpriced)}, so the cost is not known"
    elif cost.pico is None:
        yield "nothing is known of its tokens, so neither of its cost"


def _counts_in(found: "Explained") -> Iterator[str]:
    if found.cell is not None:
        cell, totals = found.cell[0], found.cell[1].totals
        tokens = ", ".join(
            f"{name} {count:,}" for name, count in zip(BUCKETS, totals.tokens, strict=True)
        )
        yield printable(
            f"the hour {instant(cell.hour)} of {cell.key_id}, {cell.model}, {cell.basis}: "
            f"{counted(totals.requests, 'request')}, {tokens}"
        )
    line = found.line
    if line is None:
        yield "no line of its own month, whose cut has no end of it"
    else:
        yield printable(
            f"the bill line {line_option(line)}: {counted(line.requests, 'request')}, "
            f"{cell_text(line.cost)} {line.currency or ''}".rstrip()
        )
        yield printable(f"`tollbook explain --line '{line_option(line)}'` shows what else is in it")
    for month, one in found.landings:
        yield from _landing_words(month, one)


def row_json(row: "RequestRow", names: Mapping[str, str]) -> dict[str, object]:
    """A row of requests, without its counts."""
    said = {
        name: getattr(row, name)
        for name in row.__struct_fields__
        if name not in ("usage", "key_id", "model")
    }
    return {
        "request_id": said.pop("request_id"),
        "key": row.key_id,
        "name": names.get(row.key_id or ""),
        "model": row.model,
        **said,
    }


def event_json(event: Event, places: Places) -> dict[str, object]:
    """An event, and where it stands."""
    return {
        "id": event.id,
        "name": event.name,
        "type": event.type,
        "time": event.time,
        "recorded": event.recordedtime,
        "topic": event.topic,
        "place": (places or {}).get((event.source, event.topic, event.sequence)),
    }


def _cell_json(found: "Explained") -> dict[str, object] | None:
    if found.cell is None:
        return None
    cell, rolled = found.cell
    return {
        "hour": cell.hour,
        "key": cell.key_id,
        "model": cell.model,
        "basis": cell.basis,
        "requests": rolled.totals.requests,
        **dict(zip(BUCKETS, rolled.totals.tokens, strict=True)),
        "failed_attempts": rolled.failed_attempts,
        "busy_us": rolled.busy,
    }


def money(cost: "Cost") -> str | None:
    """A cost as exact decimal text; null if it is not known."""
    return None if cost.pico is None else decimal(cost.pico)


def decimal(pico: int) -> str:
    """Pico of a currency as exact decimal text."""
    from ledger.amounts import decimal_text

    return decimal_text(pico)


def _per_million(pico: int) -> str:
    return decimal(pico * 1_000_000)
