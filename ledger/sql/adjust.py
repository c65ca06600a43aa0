"""What lands in a month without having happened in it, and what it must not hold. It only reads.

A month that is closed holds what was known at its cut. The roll-up holds what is known now; for the
requests of `late` the difference is taken back here, and put where it belongs: into the first later
month whose cut holds it, or into the one that is open. Corrections by a person stand beside them.
"""

from collections.abc import Iterator, Sequence

import msgspec

from ledger.clock import to_us
from ledger.folds.book import Book
from ledger.folds.late import (
    Name,
    Step,
    Told,
    billing,
    corrected,
    holds,
    lands_at,
    late_end,
    period_at,
    steps,
)
from ledger.folds.money import Correction, Period
from ledger.folds.rating import Kind, Rated, Sheet, charged_only
from ledger.folds.requests import RequestRow, fold_request
from ledger.folds.usage import ZERO, Totals, contribution
from ledger.sql.late import LateRow, late_rows, told_of
from ledger.sql.projections import LOOKUP_MAX, MAIN, request_rows, runs
from ledger.sql.session import ReadSession
from ledger.zones import local, month_of, next_month


class Foreseen(Book, frozen=True, kw_only=True):
    """A book as it would be after one more closing; `late` are the rows that this would add."""

    late: tuple[LateRow, ...] = ()


def adjustments(read: ReadSession, book: Book, month: str) -> Iterator[Rated]:
    """What `month` holds beside the live usage of its requests, in no particular order.

    Lines of the kind `usage` take back what became known of its own requests behind its cut. Lines
    of the kinds `late` and `corrected` land there and name what they correct; their counts may be
    below zero. `start_us` is when the request was accepted.
    """
    for one in landed(read, book, month):
        yield from one.parts


class Landed(msgspec.Struct, frozen=True, kw_only=True):
    """Why a month holds one request otherwise than its live usage says.

    Of the kind `usage`: `before` is what became known behind the cut, `after` what the month holds.
    Of `late` and `corrected`: what was billed before this, and after it; null: nothing. `parts` are
    the lines that the difference comes to, none where it makes no line. `end` names the event that
    ended the request so, of `usage` and `late`; `correction` is what a person said.
    """

    request_id: str
    kind: Kind
    before: RequestRow | None
    after: RequestRow | None
    parts: tuple[Rated, ...]
    corrects: str | None = None
    end: Name | None = None
    correction: Correction | None = None


def landed(read: ReadSession, book: Book, month: str, *, of: str | None = None) -> Iterator[Landed]:
    """What makes the lines of `adjustments`, request by request; `of`: of that request alone."""
    rates, rows = _Rates(book), _late(read, book)
    rows = [row for row in rows if of in (None, row.request_id)]
    own = [row for row in rows if row.month == month]
    for request in _requests(read, book, own):
        now, held = request.steps[-1], request.steps[0].row
        assert now.row is not None, "a late request is one that its events tell of"
        yield Landed(
            request_id=now.row.request_id,
            kind="usage",
            before=now.row,
            after=held,
            parts=tuple(rates.difference(now.row, held, exact=True)),
            end=now.end,
        )
    if period_of(book, month) is not None or month == first_open(book):
        yield from _late_here(read, book, month, rates, rows)
    yield from _corrected_here(read, book, month, rates, of)


def corrections_of_all_time(read: ReadSession, book: Book) -> Iterator[Rated]:
    """What all corrections together change of the live usage of all time."""
    rates = _Rates(book)
    for request in _corrected(read, book):
        yield from rates.difference(
            request.now, request.after(-1), kind="corrected", corrects=request.made[-1].original
        )


def period_of(book: Book, month: str) -> Period | None:
    """The closed month called `month`; null if it is open."""
    return next((one for one in book.periods if one.month == month), None)


def open_month(book: Book, us: int) -> str:
    """The month in which what comes at `us` lands: its own, or the first that is not closed."""
    if book.periods and us < to_us(book.periods[-1].end):
        us = to_us(book.periods[-1].end)
    return month_of(us, book.rules.zone)


def first_open(book: Book) -> str | None:
    """The month behind the last that was closed; null if none was."""
    return next_month(book.periods[-1].month) if book.periods else None


class _Request(msgspec.Struct, frozen=True):
    """A late request: the index of its month, how it stood after each month from there on, last how
    it stands now, and its events."""

    own: int
    steps: list[Step]
    told: list[Told]

    @property
    def now(self) -> RequestRow | None:
        return self.steps[-1].row


class _Corrected(msgspec.Struct, frozen=True):
    """A request with its corrections, oldest first, and the index of the month of each. `base` is
    how it stood in the month of the first: what comes later changes no correction."""

    now: RequestRow
    base: RequestRow
    own: int
    made: list[Correction]
    at: list[int]

    def before(self, number: int) -> RequestRow | None:
        """What it was billed as ahead of one of its corrections."""
        return self.base if number == 0 else corrected(self.base, self.made[number - 1])

    def after(self, number: int) -> RequestRow | None:
        """What it is billed as after one of its corrections."""
        return corrected(self.base, self.made[number])


def _late(read: ReadSession, book: Book) -> list[LateRow]:
    rows = {row.request_id: row for row in late_rows(read)}
    if isinstance(book, Foreseen):
        rows |= {row.request_id: row for row in book.late}
    return [rows[name] for name in sorted(rows)]


def _requests(read: ReadSession, book: Book, rows: Sequence[LateRow]) -> Iterator[_Request]:
    for some in runs(rows, LOOKUP_MAX):
        for told in told_of(read, [row.request_id for row in some]).values():
            late = late_end(book.periods, told)
            if late is not None:
                yield _Request(late[0], steps(book.periods, late[0], told), told)


def landings_of(read: ReadSession, book: Book, request_id: str) -> list[tuple[str, Landed]]:
    """All that `landed` has of one request, each with its month, in the order of the months."""
    row = request_rows(read, MAIN, [request_id]).get(request_id)
    if row is None or row.accepted_at is None:
        return []
    months = [period.month for period in book.periods]
    months.append(open_month(book, to_us(row.accepted_at)))
    own = month_of(to_us(row.accepted_at), book.rules.zone)
    # A month before the first that was closed is none of these.
    return [
        (month, one)
        for month in ([] if own in months else [own]) + months
        for one in landed(read, book, month, of=request_id)
    ]


def _late_here(
    read: ReadSession, book: Book, month: str, rates: "_Rates", late: Sequence[LateRow]
) -> Iterator[Landed]:
    """The differences of `late` that land in `month`."""
    at = _index(book, month)
    final = _corrected_at(book)
    # Whatever ended it within an earlier cut was settled there.
    rows = [row for row in late if row.month < month and not holds(book.periods[:at], [row.end])]
    for request in _requests(read, book, rows):
        if request.own >= at:
            continue
        before, after = request.steps[at - request.own - 1], request.steps[at - request.own]
        row = after.row
        if row is None or billing(before.row) == billing(row):
            # Also where a beginning came with this month, and the end with a later one.
            continue
        landed = final.get(row.request_id)
        if landed is not None and max(request.own, landed) < at:
            # A person has said since what it really used, and nothing that comes later is truer.
            continue
        original = before.end or after.end
        assert original is not None, "a row that a bill tells of has an end"
        name = f"{original[0]}:{original[2]}"
        yield Landed(
            request_id=row.request_id,
            kind="late",
            before=before.row,
            after=row,
            parts=tuple(rates.difference(before.row, row, kind="late", corrects=name)),
            corrects=name,
            end=after.end,
        )


def _corrected_at(book: Book) -> dict[str, int]:
    """The index of the first month that a correction of a request may land in, by the request."""
    found: dict[str, int] = {}
    for one in book.corrections:
        found.setdefault(one.request_id, min(one.periods, len(book.periods)))
    return found


def _corrected_here(
    read: ReadSession, book: Book, month: str, rates: "_Rates", of: str | None
) -> Iterator[Landed]:
    """The corrections that land in `month`."""
    for request in _corrected(read, book, of):
        for number, (made, at) in enumerate(zip(request.made, request.at, strict=True)):
            if _month_at(book, at, request.now) != month:
                continue
            before, after, name = request.before(number), request.after(number), made.original
            yield Landed(
                request_id=made.request_id,
                kind="corrected",
                before=before,
                after=after,
                parts=tuple(rates.difference(before, after, kind="corrected", corrects=name)),
                corrects=name,
                correction=made,
            )


def _corrected(read: ReadSession, book: Book, of: str | None = None) -> Iterator[_Corrected]:
    made: dict[str, list[Correction]] = {}
    for one in book.corrections:
        if of in (None, one.request_id):
            made.setdefault(one.request_id, []).append(one)
    if not made:
        return
    late = {row.request_id: row for row in _late(read, book)}
    for ids in runs(sorted(made), LOOKUP_MAX):
        rows = request_rows(read, MAIN, ids)
        behind = [late[name] for name in ids if name in late]
        stood = {
            one.now.request_id: one for one in _requests(read, book, behind) if one.now is not None
        }
        for request_id in ids:
            row = rows.get(request_id)
            if row is None or row.accepted_at is None or row.key_id is None or row.model is None:
                # Nothing but the correction tells of it, so there is nobody to bill.
                continue
            yield _with_steps(book, row, made[request_id], stood.get(request_id))


def _with_steps(
    book: Book, row: RequestRow, made: list[Correction], late: _Request | None
) -> _Corrected:
    assert row.accepted_at is not None, "the caller has looked"
    own = period_at(book.periods, row.accepted_at)
    at = [lands_at(book.periods, own, one) for one in made]
    base = row if late is None else late.steps[at[0] - late.own].row
    if base is None or base.key_id is None or base.model is None or base.accepted_at is None:
        base = _unbilled(row, [] if late is None else late.told, made[0].original)
    return _Corrected(row, base, own, made, at)


def _unbilled(row: RequestRow, told: Sequence[Told], original: str) -> RequestRow:
    """A request of which nothing was within the cut: as the corrected event told it, but without an
    end, since no month has billed it. What comes later must not change it."""
    for one in told:
        if any(f"{source}:{sequence}" == original for source, _, sequence in one.names):
            found = fold_request(None, one.event, one.payload)
            if found.accepted_at is not None:
                return msgspec.structs.replace(found, state="open")
    return RequestRow(
        request_id=row.request_id, key_id=row.key_id, model=row.model, accepted_at=row.accepted_at
    )


def _index(book: Book, month: str) -> int:
    """The index of a closed month; of an open one, that behind the last."""
    found = period_of(book, month)
    return len(book.periods) if found is None else found.number - 1


def _month_at(book: Book, at: int, row: RequestRow) -> str:
    """The month of an index; what is open has the request's own, but none that is closed."""
    if at < len(book.periods):
        return book.periods[at].month
    assert row.accepted_at is not None, "the caller has looked"
    return open_month(book, to_us(row.accepted_at))


class _Rates:
    """Prices requests by what held in their month: in a closed one, by what it was closed with."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._sheets: dict[int, Sheet] = {}

    def difference(
        self,
        before: RequestRow | None,
        after: RequestRow | None,
        *,
        kind: Kind = "usage",
        corrects: str | None = None,
        exact: bool = False,
    ) -> Iterator[Rated]:
        """What `after` comes to beyond `before`: one line, or one for each of them. `exact`: each
        counts as the roll-up counts it, to be added to its sums."""
        old, new = self._rated(before, kind, corrects), self._rated(after, kind, corrects)
        if exact:
            found = [] if old is None else [_negative(old)]
            found += [] if new is None else [new]
        elif old is None or new is None or _place(old) != _place(new):
            found = [] if old is None else [_seen(_negative(old))]
            found += [] if new is None else [_seen(new)]
        else:
            found = [_seen(_less(new, old))]
        yield from (one for one in found if exact or not _nothing(one))

    def _rated(self, row: RequestRow | None, kind: Kind, corrects: str | None) -> Rated | None:
        counted = contribution(row)
        if row is None or counted is None:
            return None
        cell, rolled = counted
        assert row.accepted_at is not None, "what counts was accepted"
        at_us = to_us(row.accepted_at)
        sheet = self._sheet(period_at(self._book.periods, row.accepted_at))
        one = Rated(
            key_id=cell.key_id,
            project_id=sheet.project(cell.key_id, at_us),
            model=cell.model,
            basis=cell.basis,
            start_us=at_us,
            totals=rolled.totals,
            failed_attempts=rolled.failed_attempts,
            busy_us=rolled.busy,
            rate=sheet.rate(cell.key_id, cell.model, at_us, _local),
            corrects=corrects,
            kind=kind,
        )
        return charged_only(one)

    def _sheet(self, own: int) -> Sheet:
        if own not in self._sheets:
            periods, prices = self._book.periods, self._book.prices
            if own < len(periods):
                prices = prices[: periods[own].prices]
            self._sheets[own] = Sheet(prices, self._book.members)
        return self._sheets[own]


def _local(zone: str, us: int) -> tuple[int, int]:
    return local(us, zone)


def _place(one: Rated) -> tuple[object, ...]:
    rate = None if one.rate is None else one.rate.name
    return one.key_id, one.project_id, one.model, one.basis, rate


def _negative(one: Rated) -> Rated:
    return msgspec.structs.replace(
        one,
        totals=ZERO.plus(one.totals, sign=-1),
        failed_attempts=-one.failed_attempts,
        busy_us=None if one.busy_us is None else -one.busy_us,
    )


def _less(new: Rated, old: Rated) -> Rated:
    busy = None
    if new.busy_us is not None or old.busy_us is not None:
        busy = (new.busy_us or 0) - (old.busy_us or 0)
    totals = new.totals.plus(old.totals, sign=-1)
    # A bucket that either of them knew is known in what is between them.
    a, b, c, d, e = (
        max(one, other) for one, other in zip(new.totals.known, old.totals.known, strict=True)
    )
    return msgspec.structs.replace(
        new,
        totals=Totals(totals.requests, totals.tokens, (a, b, c, d, e)),
        failed_attempts=new.failed_attempts - old.failed_attempts,
        busy_us=busy,
    )


def _seen(one: Rated) -> Rated:
    """`one`, whose buckets are known where a line that is taken back knew them."""
    a, b, c, d, e = (abs(count) for count in one.totals.known)
    totals = Totals(one.totals.requests, one.totals.tokens, (a, b, c, d, e))
    return msgspec.structs.replace(one, totals=totals)


def _nothing(one: Rated) -> bool:
    totals = one.totals
    counts = (totals.requests, *totals.tokens, one.failed_attempts, one.busy_us or 0)
    return not any(counts)
