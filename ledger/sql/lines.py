"""The requests under a line of the bill, added up anew: what makes a line checkable by hand.

The bill is made of the hourly roll-up wherever it can be; this goes through the single requests and
prices them by the same rule, so the two must say the same. What was told late or corrected stands
beside them, with the events that it was made of.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

import msgspec
from sqlalchemy import select

from ledger.clock import to_us
from ledger.events import Event
from ledger.folds.cost import Cost, cost_of_rated
from ledger.folds.late import Told
from ledger.folds.rating import Kind, Rated, Sheet
from ledger.folds.requests import RequestRow
from ledger.sql import tables
from ledger.sql.adjust import Landed, landed
from ledger.sql.bill import BillLine, bill, lines_of
from ledger.sql.checks import event_with_id
from ledger.sql.corrections import event_id
from ledger.sql.explain import events_of
from ledger.sql.late import told_of
from ledger.sql.rated import Frame, Step, cell_of, frame_of, merged, rated_request
from ledger.sql.replay import load_book
from ledger.sql.rows import request_of
from ledger.sql.session import ReadSession
from ledger.zones import local_day

RUN: Final = 5000
"""Requests held in memory at a time."""

NEAR_US: Final = 38 * 3_600_000_000
"""A local day begins no further than so from the midnight of its date in UTC, and ends so."""


class LineOf(msgspec.Struct, frozen=True, kw_only=True):
    """Which line of the bill of `month`; null: told apart by that no more than a bill without it.

    `day` is a date of the books' zone within the month, `2026-11-29`; `corrects` the name of the
    event that a line of another kind than `usage` corrects.
    """

    month: str
    project_id: str | None = None
    key_id: str | None = None
    model: str | None = None
    day: str | None = None
    basis: str | None = None
    price_id: str | None = None
    kind: Kind | None = None
    corrects: str | None = None

    @property
    def by(self) -> tuple[str, ...]:
        """What the bill is to be grouped by to have this line."""
        named = (
            ("project", self.project_id),
            ("key", self.key_id),
            ("model", self.model),
            ("day", self.day),
        )
        return tuple(group for group, value in named if value is not None)

    def has(self, line: BillLine) -> bool:
        """True if `line`, of a bill grouped by `by`, is this one."""
        return (
            (line.project_id, line.key_id, line.model, line.day)
            == (self.project_id, self.key_id, self.model, self.day)
            and self.basis in (None, line.basis)
            and self.price_id in (None, line.price_id)
            and self.kind in (None, line.kind)
            and self.corrects in (None, line.corrects)
        )

    def holds(self, part: Rated, zone: str) -> bool:
        """True if `part` is on this line."""
        day = None if self.day is None else local_day(part.start_us, zone)
        price = None if part.rate is None else part.rate.price.price_id
        return all(
            wanted in (None, found)
            for wanted, found in (
                (self.project_id, part.project_id),
                (self.key_id, part.key_id),
                (self.model, part.model),
                (self.day, day),
                (self.basis, part.basis),
                (self.price_id, price),
                (self.kind, part.kind),
                (self.corrects, part.corrects),
            )
        )


class Under(msgspec.Struct, frozen=True):
    """One request under a line: its row, its cost, and the event that put it there (null if the
    ledger does not hold it)."""

    request: RequestRow
    cost: Cost
    ended: Event | None


class Landing(msgspec.Struct, frozen=True):
    """What was told late or corrected under a line.

    `parts` are those of its lines that count there. `original` is the event that it corrects, and
    `made` the one that it was made by: a person's correction, or the end of the request that came
    late. Null: there is none, or the ledger does not hold it.
    """

    landed: Landed
    parts: list[Rated]
    original: Event | None
    made: Event | None


class UnderLine(msgspec.Struct, frozen=True):
    """`said` is what the bill says and `added` what the requests add up to, line by line, since a
    line splits by price, and where one is missing. `requests` are a page of `total`, and `landings`
    go on where they end: a page of `total_landings`."""

    said: list[BillLine]
    added: list[BillLine]
    requests: list[Under]
    total: int
    landings: list[Landing]
    total_landings: int

    @property
    def equal(self) -> bool:
        """True if both say the same."""
        return self.said == self.added


def under_line(read: ReadSession, wanted: LineOf, *, skip: int = 0, limit: int = 100) -> UnderLine:
    """The line `wanted`, its requests from the `skip`th on in the order of their acceptance, behind
    them what was told late or corrected, and the sums of all of it. Raises `BadQuery` for a month
    that is none."""
    book = load_book(read)
    frame = frame_of(book, wanted.month)
    sheet = Sheet(frame.book.prices, frame.book.members)
    page: list[tuple[RequestRow, Rated]] = []
    behind: list[tuple[Landed, list[Rated]]] = []
    total = total_landings = 0

    def parts() -> Iterator[Rated]:
        nonlocal total, total_landings
        for row in _rows(read, wanted, frame):
            part = rated_request(row, sheet)
            assert part is not None, "only ended ones are read"
            if not wanted.holds(part, frame.zone):
                continue
            if skip <= total < skip + limit:
                page.append((row, part))
            total += 1
            yield part
        for one in landed(read, book, wanted.month):
            here = [part for part in one.parts if wanted.holds(part, frame.zone)]
            if not here:
                continue
            if skip <= total + total_landings < skip + limit:
                behind.append((one, here))
            total_landings += 1
            yield from here

    step: Step = "span" if wanted.day is None else "day"
    cells = (
        msgspec.structs.replace(part, start_us=cell_of(part.start_us, frame, step))
        for part in parts()
    )
    added = lines_of(read, frame.book, merged(cells), wanted.by)
    return UnderLine(
        said=[line for line in bill(read, wanted.month, wanted.by, book=book) if wanted.has(line)],
        added=added,
        requests=[_under(read, row, part) for row, part in page],
        total=total,
        landings=[_landing(read, one, here) for one, here in behind],
        total_landings=total_landings,
    )


def _under(read: ReadSession, row: RequestRow, part: Rated) -> Under:
    ends = [e for e in events_of(read, row.request_id) if e.id.endswith(f"/{row.state}")]
    return Under(row, cost_of_rated(part), ends[-1] if ends else None)


def _landing(read: ReadSession, one: Landed, here: list[Rated]) -> Landing:
    told = told_of(read, [one.request_id])[one.request_id]
    if one.correction is not None:
        made = event_with_id(read, event_id(one.correction.correction_id))
    else:
        made = _called(told, None if one.end is None else f"{one.end[0]}:{one.end[2]}")
    return Landing(one, here, _called(told, one.corrects), made)


def _called(told: Sequence[Told], name: str | None) -> Event | None:
    """The event that came under a name, `source:sequence`, whether it was the first or not."""
    for one in told:
        if any(f"{source}:{sequence}" == name for source, _, sequence in one.names):
            return one.event
    return None


def _rows(read: ReadSession, wanted: LineOf, frame: Frame) -> Iterator[RequestRow]:
    if wanted.corrects is not None or wanted.kind not in (None, "usage"):
        return
    table = tables.requests
    first, after = frame.first_us, frame.after_us
    if wanted.day is not None:
        begins = to_us(datetime.fromisoformat(f"{wanted.day}T00:00:00Z"))
        first, after = max(first, begins - NEAR_US), min(after, begins + NEAR_US)
    where = [table.c.accepted_us >= first, table.c.accepted_us < after, table.c.state != "open"]
    for column, value in (
        (table.c.key_id, wanted.key_id),
        (table.c.model, wanted.model),
        (table.c.basis, wanted.basis),
    ):
        if value is not None:
            where.append(column == value)
    statement = select(*table.columns).where(*where)
    ordered = statement.order_by(table.c.accepted_us, table.c.request_id)
    for part in read.stream(ordered, size=RUN):
        yield from (request_of(row) for row in part)
