"""Metered usage by time, project, key and model: what the usage API tells. It only reads.

Whole hours come from the hourly roll-up, parts of hours and minutes from the single requests, so
the sums are those of the bill. It is live: what ended late or was corrected by a person stands
here under the time of acceptance, whatever month it lands in on a bill.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, Literal

import msgspec
from sqlalchemy import BigInteger, ColumnElement, Table, func, literal_column, select

from ledger.clock import to_us
from ledger.errors import BadQuery
from ledger.events import BUCKETS
from ledger.folds.money import Member
from ledger.folds.usage import ZERO, Totals
from ledger.sql import tables
from ledger.sql.session import ReadSession

MINUTE_US: Final = 60_000_000
HOUR_US: Final = 60 * MINUTE_US
STEPS: Final = {"minute": MINUTE_US, "hour": HOUR_US, "day": 24 * HOUR_US}
Step = Literal["minute", "hour", "day"]

USED_MAX: Final = 50_000
"""Sums in one answer; more than that would be a file, which `tollbook export` makes."""

Members = Mapping[str, tuple[Member, ...]]


class UsageAsk(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked: a half-open span in microseconds UTC, cut at whole UTC minutes, hours or days,
    told apart by what `by` names (`project`, `key`, `model`). A filter that is null lets all pass.
    """

    first_us: int
    after_us: int
    step: Step
    by: frozenset[str] = frozenset()
    projects: frozenset[str] | None = None
    keys: frozenset[str] | None = None
    models: frozenset[str] | None = None

    @property
    def needs_projects(self) -> bool:
        """True if it matters which project a key belonged to."""
        return "project" in self.by or self.projects is not None


class Used(msgspec.Struct, frozen=True, order=True):
    """Whose usage: what it is not told apart by is empty, and so is a project that there is none
    of. `start_us` is the start of the part of the span."""

    start_us: int
    project_id: str
    key_id: str
    model: str


def usage(read: ReadSession, members: Members, ask: UsageAsk) -> dict[Used, Totals]:
    """The sums of all requests with an end that were accepted in the span, in order.

    `members` tells which project a key belonged to when. Raises `BadQuery` for more than `USED_MAX`
    sums.
    """
    found: dict[Used, Totals] = {}
    divided: dict[tuple[str, int], None] = {}
    for start, key_id, model, totals in _all(read, ask):
        if ask.needs_projects and _moved_within(members.get(key_id, ()), start, _end(ask, start)):
            divided[key_id, start] = None
        else:
            _add(found, ask, members, start, start, key_id, model, totals)
    for key_id, start in divided:
        alone = msgspec.structs.replace(ask, keys=frozenset((key_id,)))
        end = _end(ask, start)
        cuts = [start, *_moves(members[key_id], start, end), end]
        for at, until in pairwise(cuts):
            part = msgspec.structs.replace(alone, first_us=at, after_us=until)
            for _, _, model, totals in _all(read, part):
                _add(found, ask, members, start, at, key_id, model, totals)
    return dict(sorted(found.items()))


def _add(
    found: dict[Used, Totals],
    ask: UsageAsk,
    members: Members,
    start: int,
    at: int,
    key_id: str,
    model: str,
    totals: Totals,
) -> None:
    project = ""
    if ask.needs_projects:
        project = _project(members.get(key_id, ()), at) or ""
        if ask.projects is not None and project not in ask.projects:
            return
    used = Used(
        start,
        project if "project" in ask.by else "",
        key_id if "key" in ask.by else "",
        model if "model" in ask.by else "",
    )
    found[used] = found.get(used, ZERO).plus(totals)
    if len(found) > USED_MAX:
        raise BadQuery(
            f"the answer would hold more than {USED_MAX} sums; ask for a shorter time, for fewer "
            "keys or models, or group by less"
        )


def _project(members: Sequence[Member], at: int) -> str | None:
    begun = [one for one in members if to_us(one.since) <= at]
    return begun[-1].project_id if begun else None


def _moves(members: Sequence[Member], start: int, end: int) -> list[int]:
    return sorted({at for one in members if start < (at := to_us(one.since)) < end})


def _moved_within(members: Sequence[Member], start: int, end: int) -> bool:
    return bool(members) and bool(_moves(members, start, end))


def _end(ask: UsageAsk, start: int) -> int:
    step = STEPS[ask.step]
    return min(ask.after_us, start - start % step + step)


Row = tuple[int, str, str, Totals]
"""Start, key, model, and what was used; the last two texts are empty where nobody asks for them."""


def _all(read: ReadSession, ask: UsageAsk) -> Iterator[Row]:
    """The sums of the span: whole hours rolled up, everything else by request."""
    first, after = ask.first_us, ask.after_us
    first_hour = -(-first // HOUR_US) * HOUR_US
    last_hour = after // HOUR_US * HOUR_US
    if ask.step == "minute" or first_hour >= last_hour:
        yield from _from_requests(read, ask, first, after)
        return
    if first < first_hour:
        yield from _from_requests(read, ask, first, first_hour)
    yield from _from_hours(read, ask, first_hour, last_hour)
    if last_hour < after:
        yield from _from_requests(read, ask, last_hour, after)


def _from_hours(read: ReadSession, ask: UsageAsk, start: int, end: int) -> Iterator[Row]:
    table = tables.usage_hourly
    sums = [table.c.requests, *(table.c[name] for name in BUCKETS)]
    sums += [table.c[f"{name}_known"] for name in BUCKETS]
    return _summed(read, ask, table, table.c.hour_us, [func.sum(c) for c in sums], start, end)


def _from_requests(read: ReadSession, ask: UsageAsk, start: int, end: int) -> Iterator[Row]:
    table = tables.requests
    counts = [func.count(), *(func.sum(table.c[name]) for name in BUCKETS)]
    counts += [func.count(table.c[name]) for name in BUCKETS]
    ended = table.c.state != "open"
    return _summed(read, ask, table, table.c.accepted_us, counts, start, end, ended)


def _summed(
    read: ReadSession,
    ask: UsageAsk,
    table: Table,
    when: ColumnElement[int],
    sums: Sequence[ColumnElement[int]],
    start: int,
    end: int,
    *conditions: ColumnElement[bool],
) -> Iterator[Row]:
    # A literal: with a parameter Postgres would not see that it groups by what is selected.
    start_us = when - when % literal_column(str(STEPS[ask.step]), BigInteger)
    by_key = ask.needs_projects or "key" in ask.by
    by_model = "model" in ask.by
    group: list[ColumnElement[Any]] = [start_us]
    group += [table.c.key_id] if by_key else []
    group += [table.c.model] if by_model else []
    where = [when >= start, when < end, *conditions]
    where += [] if ask.keys is None else [table.c.key_id.in_(sorted(ask.keys))]
    where += [] if ask.models is None else [table.c.model.in_(sorted(ask.models))]
    statement = select(*group, *sums).where(*where).group_by(*group)
    for row in read.rows(statement):
        values = list(row)
        at = max(int(values.pop(0)), ask.first_us)
        key_id = values.pop(0) if by_key else ""
        model = values.pop(0) if by_model else ""
        # Postgres sums to a decimal, and to null where every value is null.
        requests, a, b, c, d, e, *known = (int(value or 0) for value in values)
        ka, kb, kc, kd, ke = known
        yield at, key_id, model, Totals(requests, (a, b, c, d, e), (ka, kb, kc, kd, ke))
