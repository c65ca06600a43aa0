"""The projection `late`: requests that are billed otherwise than their closed month holds them.

A row follows from the events of its request and from the list of closed months. It is made when
such an event comes, when a month is closed, and by a rebuild: always by the same function.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec
from sqlalchemy import bindparam, delete, select

from ledger.clock import to_us
from ledger.events import Event, RequestAbandoned, RequestAccepted, RequestFinished, payload_of
from ledger.folds.late import Name, Told, late_end, outside, period_at
from ledger.folds.money import Period
from ledger.folds.requests import REQUEST_TYPES
from ledger.sql import tables
from ledger.sql.projections import LOOKUP_MAX, Fact, Projection, runs
from ledger.sql.rows import EVENT_COLUMNS, event_of
from ledger.sql.session import ReadSession, WriteSession
from ledger.sql.upsert import upsert
from ledger.zones import month_of

TOPIC = RequestAccepted.TOPIC
RUN = 5000


class LateRow(msgspec.Struct, frozen=True):
    """A request of the closed `month` that is billed otherwise by now, and the event that ended it
    so."""

    request_id: str
    month: str
    source: str
    sequence: int

    @property
    def end(self) -> Name:
        """The event that ended it."""
        return self.source, TOPIC, self.sequence


def project_late(
    tx: WriteSession,
    to: Projection,
    before: Sequence[Period],
    periods: Sequence[Period],
    facts: Iterable[Fact],
    renamed: Iterable[Event] = (),
) -> None:
    """Bring `late` up to what the events say, after `facts` came and `before` became `periods`.

    `renamed` are events that came again under another name, which may be within a cut.
    """
    if not periods:
        return
    touched: set[str] = set()
    within: set[str] = set()
    for fact in facts:
        said = outside(periods, fact.event, fact.payload)
        if said is not None and isinstance(fact.payload, REQUEST_TYPES):
            (touched if said else within).add(fact.payload.request_id)
    within |= {event.id.partition("/")[0] for event in renamed if event.topic == TOPIC}
    touched |= _known(tx, to, within - touched)
    if len(periods) > len(before):
        touched |= behind_cuts(tx, periods, len(before))
    store_late(tx, to, periods, touched)


def ended_late(periods: Sequence[Period], facts: Iterable[Fact]) -> set[str]:
    """The requests that one of `facts` ended outside the cut of their month."""
    return {
        fact.payload.request_id
        for fact in facts
        if outside(periods, fact.event, fact.payload)
        and isinstance(fact.payload, RequestFinished | RequestAbandoned)
    }


def store_late(
    tx: WriteSession, to: Projection, periods: Sequence[Period], request_ids: Collection[str]
) -> None:
    """Make the rows of these requests anew; one that is not late has none."""
    for ids in runs(sorted(request_ids), LOOKUP_MAX):
        rows = late_rows_of(tx, periods, ids)
        gone = sorted(set(ids) - rows.keys())
        if gone:
            _forget(tx, to, gone)
        if rows:
            params = [msgspec.structs.asdict(row) for row in rows.values()]
            tx.insert(upsert(tx.dialect, to.late), params)


def late_rows_of(
    read: ReadSession, periods: Sequence[Period], request_ids: Sequence[str]
) -> dict[str, LateRow]:
    """Those of the requests that are late, by id, as their events say."""
    found: dict[str, LateRow] = {}
    for request_id, told in told_of(read, request_ids).items():
        late = late_end(periods, told)
        if late is None:
            continue
        own, (source, _, sequence) = late
        month = _own_month(periods, own, told)
        found[request_id] = LateRow(request_id, month, source, sequence)
    return found


def _own_month(periods: Sequence[Period], own: int, told: Sequence[Told]) -> str:
    """The month of acceptance; before the first that was closed there may be older ones."""
    for one in told:
        said = one.payload
        if own == 0 and isinstance(said, RequestFinished | RequestAbandoned):
            if said.accepted_at < periods[0].start:
                return month_of(to_us(said.accepted_at), periods[0].zone)
            break
    return periods[own].month


def behind_cuts(read: ReadSession, periods: Sequence[Period], closed_before: int) -> set[str]:
    """The requests of the months behind the first `closed_before` with an end outside their cut."""
    reached = tables.source_topics
    of_requests = select(reached.c.source, reached.c.last_sequence).where(reached.c.topic == TOPIC)
    found: set[str] = set()
    for source, last in read.rows(of_requests.order_by(reached.c.source)):
        cut = _cut_upto(periods, source, closed_before)
        if last > cut:
            found |= set(_ended_behind(read, periods, source, cut, closed_before))
    return found


def _cut_upto(periods: Sequence[Period], source: str, at: int) -> int:
    """The last sequence of a source that a month or one before it holds."""
    return max(period.cut.get(source, {}).get(TOPIC, 0) for period in periods[: at + 1])


def _ended_behind(
    read: ReadSession, periods: Sequence[Period], source: str, low: int, first: int
) -> Iterator[str]:
    table = tables.events
    ends = (RequestFinished.TYPE, RequestAbandoned.TYPE)
    statement = select(*EVENT_COLUMNS).where(
        table.c.source == source,
        table.c.topic == TOPIC,
        table.c.sequence > low,
        table.c.type.in_(ends),
    )
    for part in read.stream(statement, size=RUN):
        for row in part:
            event = event_of(row)
            payload = payload_of(event)
            if not isinstance(payload, RequestFinished | RequestAbandoned):
                continue
            if not outside(periods, event, payload):
                continue
            if period_at(periods, payload.accepted_at) >= first:
                yield payload.request_id


def told_of(read: ReadSession, request_ids: Iterable[str]) -> dict[str, list[Told]]:
    """The stored events of each request, with every name under which they came."""
    table, renamed = tables.events, tables.duplicates
    within = select(*EVENT_COLUMNS).where(
        table.c.topic == TOPIC, table.c.id > bindparam("low"), table.c.id < bindparam("high")
    )
    events: dict[str, list[Event]] = {}
    for request_id in request_ids:
        # `0` comes behind `/`: all ids that begin with the request's own and a slash.
        span = {"low": f"{request_id}/", "high": f"{request_id}0"}
        events[request_id] = [event_of(row) for row in read.rows(within, span)]
    names: dict[str, list[Name]] = {}
    every = sorted(event.id for found in events.values() for event in found)
    again = select(*renamed.columns).where(renamed.c.id.in_(bindparam("ids", expanding=True)))
    for ids in runs(every, LOOKUP_MAX):
        for source, topic, sequence, event_id in read.rows(again, {"ids": ids}):
            names.setdefault(event_id, []).append((source, topic, sequence))
    return {
        request_id: [
            Told(event, payload, _names(event, names))
            for event in found
            if isinstance(payload := payload_of(event), REQUEST_TYPES)
        ]
        for request_id, found in events.items()
    }


def _names(event: Event, again: Mapping[str, Sequence[Name]]) -> tuple[Name, ...]:
    own = (event.source, event.topic, event.sequence)
    return tuple(sorted([own, *again.get(event.id, ())]))


def late_rows(read: ReadSession, *, months: Collection[str] | None = None) -> list[LateRow]:
    """The rows of the projection, by request; only those of some months."""
    table = tables.late
    statement = select(*table.columns).order_by(table.c.request_id)
    if months is not None:
        statement = statement.where(table.c.month.in_(sorted(months)))
    return [LateRow(*row) for part in read.stream(statement) for row in part]


def _known(read: ReadSession, of: Projection, request_ids: Collection[str]) -> set[str]:
    wanted = select(of.late.c.request_id).where(
        of.late.c.request_id.in_(bindparam("ids", expanding=True))
    )
    return {
        row[0]
        for ids in runs(sorted(request_ids), LOOKUP_MAX)
        for row in read.rows(wanted, {"ids": ids})
    }


def _forget(tx: WriteSession, to: Projection, request_ids: Sequence[str]) -> None:
    gone = delete(to.late).where(to.late.c.request_id == bindparam("gone"))
    tx.execute(gone, [{"gone": request_id} for request_id in request_ids])
