"""Reads what a reconciliation needs, and makes it: windows of each backend, and what is lacking.

Requests that ran within a window and are known exactly are added up by the database; only the
others, which widen a bound, are looked at one by one.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, Select, and_, case, func, literal, or_, select

from ledger.clock import from_us, to_us
from ledger.events import BUCKETS, RequestAccepted, Usage
from ledger.events.requests import SYSTEM_KEY_ID
from ledger.folds.counters import (
    INPUT,
    LINGERS,
    NEAR,
    OUTPUT,
    Reading,
    Span,
    counting_of,
    in_line,
    moved,
    spans,
)
from ledger.folds.reconcile import EDGE, Checked, Ran, Several, Whole, Window, checked, reckon
from ledger.sql import tables
from ledger.sql.projections import LOOKUP_MAX, runs
from ledger.sql.session import ReadSession

LATEST: Final = timedelta(hours=2)
"""What a metric looks back on, and the hour that is under way."""

LONGEST_REQUEST: Final = timedelta(hours=24)
"""A request that began earlier is not looked for."""

AT_ONCE: Final = timedelta(days=31)
"""Readings of so long are in memory at a time."""

SILENT: Final = timedelta(minutes=10)
"""A source that marked nothing for so long is not waited for: it is dead, or its machine is."""

SHORT: Final = timedelta(minutes=10)
"""Over less time a verdict says little: what runs across the edges outweighs the rest."""

BEGIN: Final = datetime(2, 1, 1, tzinfo=UTC)
END: Final = datetime(9999, 1, 1, tzinfo=UTC)
"""A clock may say anything. What is beyond these is not compared, since no date has neighbours
there."""

_SLACK_US: Final = to_us(from_us(0) + EDGE) + 1_000_000
_NONE: Final = 0


class Unread(msgspec.Struct, frozen=True):
    """A backend that requests went to, and whose counters nobody could read; `why` in words."""

    backend_id: str
    requests: int
    why: str


def reconcile(
    read: ReadSession, since: datetime, until: datetime, backend_id: str | None = None
) -> Iterator[Window]:
    """Every window between `since` and `until`, by backend and then by time.

    One ends where every source has told all (`heard_until`), so that what is over gets its verdict
    at once and keeps it.
    """
    told, span = heard_until(read), _read_span(read)
    if span is None:
        return
    since, until = max(since, span[0], BEGIN), min(until, span[1], END)
    for backend in _read_backends(read, since, until, backend_id):
        begun = since
        while begun < until:
            end = min(begun + AT_ONCE, until)
            yield from _windows(read, backend, begun, end, told)
            begun = end


def unread(
    read: ReadSession, since: datetime, until: datetime, backend_id: str | None = None
) -> list[Unread]:
    """The backends that served requests in that time and cannot be compared at all."""
    table = tables.requests
    within = (table.c.accepted_us >= to_us(since), table.c.accepted_us < to_us(until))
    served = select(table.c.backend_id, func.count()).where(
        *within, table.c.backend_id.is_not(None)
    )
    found = []
    for backend, count in read.rows(served.group_by(table.c.backend_id)):
        if backend_id not in (None, backend):
            continue
        readings = _readings(read, backend, since, until)
        if len(in_line(readings)) < 2:
            found.append(Unread(backend, count, _why_unread(readings)))
    return sorted(found, key=lambda one: one.backend_id)


def _why_unread(readings: Sequence[Reading]) -> str:
    faults = [one.fault for one in readings if one.fault is not None]
    if faults:
        return f"its counters could not be read: {faults[-1]}"
    if readings and not in_line(readings):
        return "it shows no counters of an engine that is known here"
    return "its counters were read less than twice"


def heard_until(read: ReadSession) -> datetime | None:
    """Up to when every source that lives has told all; null if none has said anything."""
    table = tables.sources
    rows = read.rows(select(table.c.last_mark_us, table.c.closed_us))
    said = [max(mark or 0, closed or 0) for mark, closed in rows]
    if not said:
        return None
    newest = max(said)
    quiet = newest - to_us(from_us(0) + SILENT)
    living = [mark for mark, closed in rows if closed is None and mark is not None and mark > quiet]
    return max(BEGIN, min(END, from_us(min(living, default=newest))))


def fell_silent(read: ReadSession) -> list[tuple[str, datetime]]:
    """Sources that were never closed and are waited for no more, with when each last told all: what
    they served behind that may be on a disk that nobody reads."""
    table, heard = tables.sources, heard_until(read)
    if heard is None:
        return []
    unclosed = select(table.c.source, table.c.last_mark_us).where(
        table.c.closed_us.is_(None),
        table.c.last_mark_us.is_not(None),
        table.c.last_mark_us < to_us(heard),
    )
    return [(source, from_us(at)) for source, at in read.rows(unclosed.order_by(table.c.source))]


def first_reading(read: ReadSession) -> datetime | None:
    """When a counter was read for the first time; null if none ever was."""
    span = _read_span(read)
    return None if span is None else span[0]


def _read_span(read: ReadSession) -> tuple[datetime, datetime] | None:
    """When counters were read for the first time and for the last."""
    at = tables.counters.c.at_us
    ((first, last),) = read.rows(select(func.min(at), func.max(at)))
    return None if first is None else (from_us(first), from_us(last))


def latest(read: ReadSession, now: datetime) -> Checked | None:
    """The outcome of the last hours; null if no engine was ever read."""
    heard = heard_until(read)
    if heard is None or first_reading(read) is None:
        return None
    hour = heard.replace(minute=0, second=0, microsecond=0)
    return checked(settled(reconcile(read, hour - LATEST, heard), heard), now)


def settled(windows: Iterator[Window], heard: datetime | None) -> Iterator[Window]:
    """Those that are over and long enough for a verdict."""
    for window in windows:
        long = window.end - window.start >= SHORT
        if long and heard is not None and window.end <= heard:
            yield window


def _read_backends(
    read: ReadSession, since: datetime, until: datetime, backend_id: str | None
) -> list[str]:
    table = tables.counters
    within = table.c.at_us.between(to_us(since - NEAR), to_us(until + NEAR))
    names = read.rows(select(table.c.backend_id).where(within).distinct())
    return sorted(name for (name,) in names if backend_id in (None, name))


def _readings(read: ReadSession, backend: str, since: datetime, until: datetime) -> list[Reading]:
    table = tables.counters
    columns = [table.c.at_us, table.c.gateway, table.c.source, table.c.counters]
    columns += [table.c.process_started_us, table.c.fault]
    within = table.c.at_us.between(to_us(since - NEAR), to_us(until + NEAR))
    found = read.rows(
        select(*columns).where(table.c.backend_id == backend, within).order_by(table.c.at_us)
    )
    return [
        Reading(
            at=from_us(at_us),
            gateway=f"{gateway} {source}",
            counters=msgspec.json.decode(counters, type=dict[str, int]),
            process_started=None if started is None else from_us(started),
            fault=fault,
        )
        for at_us, gateway, source, counters, started, fault in found
    ]


def _windows(
    read: ReadSession, backend: str, since: datetime, until: datetime, told: datetime | None
) -> Iterator[Window]:
    readings = _readings(read, backend, since, until)
    faults = [one for one in readings if one.fault is not None]
    traffic = _Traffic(read, backend, since, until)
    for span in spans(in_line(readings), since, until, told):
        if len(span.line) > 1:
            window = _window(traffic, span, faults)
            if window is not None:
                yield window


def _window(traffic: "_Traffic", span: Span, faults: Sequence[Reading]) -> Window | None:
    start, end = span.line[0].at, span.line[-1].at
    failed = [one for one in faults if start <= one.at <= end]
    whole = None
    if not moved(span.line).restarts:
        whole = _exactly(traffic.backend, start, end, _needed(span))
    known = Whole() if whole is None else _added_up(traffic.read, whole)
    ran = list(traffic.within(start, end, whole))
    window = reckon(traffic.backend, span, known, ran, failed)
    if window is None or whole is None or all(side.beyond <= 0 for side in window.sides):
        return window
    # Only where something is to be explained: it takes a look at the events of all requests.
    known = msgspec.structs.replace(known, several=_several(traffic.read, whole))
    return reckon(traffic.backend, span, known, ran, failed)


class _Traffic:
    """What one backend did between `since` and `until`, as far as it cannot be added up."""

    def __init__(self, read: ReadSession, backend: str, since: datetime, until: datetime) -> None:
        self.read, self.backend = read, backend
        row = tables.requests.c
        mine = (
            row.backend_id == backend,
            row.accepted_us.between(to_us(since - LONGEST_REQUEST), to_us(until + NEAR)),
        )
        longest = read.value(select(func.max(row.duration_us)).where(*mine))
        # No window looks farther back than the longest request goes, for each is a scan.
        self._back = min(LONGEST_REQUEST, from_us(longest or 0) - from_us(0)) + LINGERS + EDGE
        endless = select(*tables.requests.columns).where(*mine, row.duration_us.is_(None))
        self._always = [*_rans(read, endless), *_failed(read, backend, mine[1])]

    def within(
        self, start: datetime, end: datetime, whole: ColumnElement[bool] | None
    ) -> Iterator[Ran]:
        """All attempts that may be in a window, but those that `whole` adds up."""
        yield from self._always
        row = tables.requests.c
        over = row.accepted_us + row.duration_us
        unsure = or_(row.basis != "reported", row.state != "finished")
        conditions = [
            row.backend_id == self.backend,
            row.accepted_us.between(to_us(start - self._back), to_us(end + EDGE)),
            or_(
                over >= to_us(start) - _SLACK_US,
                and_(unsure, over >= to_us(start - LINGERS - EDGE)),
            ),
        ]
        if whole is not None:
            # What comes out null is not true, and its opposite neither: so it is asked like this.
            conditions.append(case((whole, 1), else_=_NONE) == _NONE)
        yield from _rans(self.read, select(*tables.requests.columns).where(*conditions))


def _needed(span: Span) -> tuple[str, ...]:
    """Buckets that must be known of a request whose tokens are exact for the engine of `span`.

    Where a counter holds the whole prompt it does not matter how much of it was cached, which
    vLLM does not tell unless it is asked to.
    """
    counting = counting_of(span.line[-1].counters)
    binding = [] if counting is None else [m.buckets for m in counting.measures if m.binds]
    return ("uncached_in", "other_out") if set(binding) == {INPUT, OUTPUT} else BUCKETS


def _exactly(
    backend: str, start: datetime, end: datetime, needed: Sequence[str]
) -> ColumnElement[bool]:
    """True of requests within a window that the engine gave its final word of, in the buckets that
    are `needed`."""
    row = tables.requests.c
    return and_(
        row.backend_id == backend,
        row.accepted_us.between(to_us(start) + _SLACK_US, to_us(end)),
        row.accepted_us + row.duration_us <= to_us(end) - _SLACK_US,
        row.state == "finished",
        row.basis == "reported",
        *(row[name].is_not(None) for name in needed),
    )


def _added_up(read: ReadSession, whole: ColumnElement[bool]) -> Whole:
    row = tables.requests.c
    probes = func.sum(case((row.key_id == SYSTEM_KEY_ID, 1), else_=_NONE))
    sums = [func.sum(row[name]) for name in BUCKETS]
    (found,) = read.rows(select(func.count(), probes, *sums).where(whole))
    requests, probed, *tokens = (int(value or 0) for value in found)
    return Whole(requests, dict(zip(BUCKETS, tokens, strict=True)), probed)


def _several(read: ReadSession, whole: ColumnElement[bool]) -> Several:
    """Those of the exactly known requests that asked for several answers."""
    row, event = tables.requests.c, tables.events.c
    joined = tables.requests.join(tables.events, event.id == row.request_id + "/accepted")
    prompt = sum((func.coalesce(row[name], _NONE) for name in INPUT), literal(_NONE))
    statement = select(prompt, event.data).select_from(joined)
    requests = prompts = times = 0
    for part in read.stream(statement.where(whole, event.data.contains('"answers":'))):
        for tokens, data in part:
            said = msgspec.json.decode(data, type=RequestAccepted)
            requests, prompts = requests + 1, prompts + tokens
            times += tokens * (said.answers or 1)
    return Several(requests, prompts, times)


def _rans(read: ReadSession, statement: Select[Any]) -> Iterator[Ran]:
    """The requests that `statement` selects, as they ran at the backend that served them last."""
    for part in read.stream(statement):
        rows = [found._asdict() for found in part]
        held = _held(read, [r["request_id"] for r in rows])
        given_up = _given_up(read, [r["request_id"] for r in rows if r["state"] == "abandoned"])
        for one in rows:
            yield _ran_of(one, held, given_up.get(one["request_id"]))


Held = dict[str, RequestAccepted]


def _ran_of(row: dict[str, Any], held: Held, given_up: datetime | None) -> Ran:
    started = from_us(row["accepted_us"])
    ended = given_up
    if row["duration_us"] is not None:
        ended = from_us(row["accepted_us"] + row["duration_us"])
    first = row["first_token_us"]
    accepted = held.get(row["request_id"])
    return Ran(
        request_id=row["request_id"],
        key_id=row["key_id"],
        endpoint=row["endpoint"],
        stream=row["stream"] is not False,
        state=row["state"],
        outcome=row["outcome"],
        status=row["status"],
        reason=row["reason"],
        basis=row["basis"],
        usage=Usage(**{name: row[name] for name in BUCKETS}),
        started=started,
        ended=ended,
        first_token=None if first is None else from_us(row["accepted_us"] + first),
        held_in=accepted.held_in if accepted else None,
        held_out=accepted.held_out if accepted else None,
        answers=(accepted.answers if accepted else None) or 1,
    )


def _failed(read: ReadSession, backend: str, when: ColumnElement[bool]) -> Iterator[Ran]:
    """Attempts that failed at this backend before another one was made."""
    row, tried, after = tables.requests.c, tables.attempts, tables.attempts.alias()
    following = and_(
        after.c.request_id == tried.c.request_id, after.c.attempt == tried.c.attempt + 1
    )
    joined = tables.requests.join(tried, tried.c.request_id == row.request_id)
    statement = (
        select(tried.c.started_us, tried.c.failed, after.c.started_us, *tables.requests.columns)
        .select_from(joined.outerjoin(after, following))
        .where(tried.c.backend_id == backend, tried.c.failed.is_not(None), row.attempts > 1, when)
    )
    for part in read.stream(statement):
        names = [column.name for column in tables.requests.columns]
        held = _held(read, [found[3 + names.index("request_id")] for found in part])
        for began, failed, ended, *rest in part:
            known = _ran_of(dict(zip(names, rest, strict=True)), held, None)
            yield msgspec.structs.replace(
                known,
                failed=failed,
                started=known.started if began is None else from_us(began),
                ended=known.ended if ended is None else from_us(ended),
                first_token=None,
            )


def _held(read: ReadSession, request_ids: Sequence[str]) -> Held:
    """What was said of each request when it was accepted, by its id."""
    found: Held = {}
    table = tables.events
    for ids in runs(request_ids, LOOKUP_MAX):
        names = [f"{request_id}/accepted" for request_id in ids]
        for (data,) in read.rows(select(table.c.data).where(table.c.id.in_(names))):
            said = msgspec.json.decode(data, type=RequestAccepted)
            found[said.request_id] = said
    return found


def _given_up(read: ReadSession, request_ids: Sequence[str]) -> dict[str, datetime]:
    """When each abandoned request was given up: it was over by then."""
    found: dict[str, datetime] = {}
    table = tables.events
    for ids in runs(request_ids, LOOKUP_MAX):
        names = [f"{request_id}/abandoned" for request_id in ids]
        wanted = select(table.c.id, table.c.time_us).where(table.c.id.in_(names))
        for event_id, time_us in read.rows(wanted):
            found[event_id.removesuffix("/abandoned")] = from_us(time_us)
    return found
