"""Closing a month: whether it can be closed, and what is frozen. It reads, and writes nothing.

The closing is an event of the registry. Its fold refuses one that was made from an older state of
prices, corrections or closed months, so that what is frozen here is what the registry freezes.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec
from sqlalchemy import func, select

from ledger.clock import from_us, to_us
from ledger.errors import NotClosable
from ledger.events import Draft, PeriodClosed, Without
from ledger.folds.book import Book
from ledger.folds.late import steps
from ledger.folds.money import Period
from ledger.folds.months import standing_of
from ledger.sql import tables
from ledger.sql.adjust import Foreseen, first_open, period_of
from ledger.sql.chain import root_at
from ledger.sql.cuts import Blocker, Cut, blockers, cut_of, shown, unknown, whole
from ledger.sql.late import LateRow, behind_cuts, late_rows_of, told_of
from ledger.sql.periods import month_sums
from ledger.sql.projections import LOOKUP_MAX, runs
from ledger.sql.session import ReadSession
from ledger.zones import month_of, month_span, tzdata_version

CUT_MAX = 5000
"""Sources in one cut. A record of the registry ends at 1 MiB, and each source takes 150 bytes."""


class Closing(msgspec.Struct, frozen=True):
    """A month as it would be closed, and the book that it was made from."""

    payload: PeriodClosed
    book: Book


def foresee(
    read: ReadSession,
    book: Book,
    month: str,
    now: datetime,
    without: Mapping[str, str] | None = None,
) -> Closing:
    """What closing `month` freezes. `without` maps a source that may be missing to the reason.

    Raises `NotClosable`, naming each source that has not told all of the month, and `BadQuery` for
    a month that is none.
    """
    without = without or {}
    start_us, end_us = _span(book, month)
    _in_turn(read, book, month, start_us, end_us, now)
    strangers = unknown(read, without)
    if strangers:
        raise NotClosable(
            f"no gateway called {', '.join(strangers)} is known; `tollbook sources list` shows them"
        )
    known = whole(read)
    standing = [one for one in blockers(read, end_us, known) if one.source not in without]
    if standing:
        raise NotClosable(refusal(month, standing))
    cut = cut_of(read, book.periods, start_us, known)
    if len(cut) > CUT_MAX:
        raise NotClosable(
            f"{len(cut)} sources told of {month}, and a closing holds {CUT_MAX}; close the months "
            "one by one, and start gateways less often"
        )
    return Closing(_frozen(read, book, month, (start_us, end_us), cut, without), book)


def refusal(month: str, standing: Sequence[Blocker]) -> str:
    """Why a month cannot be closed, each source on a line of its own."""
    lines = [f"{month} cannot be closed yet, nothing was written:"]
    lines += [f"  {one.source}: {one.words}" for one in standing]
    lines.append(
        "to close without a source say --without SOURCE --reason TEXT; what it sends later lands "
        "in the month that is open then"
    )
    return "\n".join(lines)


def draft(closing: Closing, newest: Book, now: datetime, closing_id: str) -> Draft:
    """The event of a closing, told at `now` into a registry that says `newest`.

    Raises `NotClosable` if that is not what the closing was made from: the totals may be others.
    """
    for name in ("prices", "corrections", "periods", "members", "rules"):
        if getattr(newest, name) != getattr(closing.book, name):
            raise NotClosable(
                f"the registry has other {name} by now than the ledger had when the totals of "
                f"{closing.payload.month} were made; nothing was written, repeat the command"
            )
    month = closing.payload.month
    return Draft(f"period/{month}/{closing_id}", f"period/{month}", now, closing.payload)


def _span(book: Book, month: str) -> tuple[int, int]:
    start_us, end_us = month_span(month, book.rules.zone)
    # Rules of zones change; a month begins where the one before it was closed.
    if book.periods and first_open(book) == month:
        start_us = to_us(book.periods[-1].end)
    return start_us, end_us


def _in_turn(
    read: ReadSession, book: Book, month: str, start_us: int, end_us: int, now: datetime
) -> None:
    if period_of(book, month) is not None:
        raise NotClosable(f"{month} is closed already; `tollbook periods show {month}` shows it")
    if (settled_with := standing_of(book.periods, month).settled_with) is not None:
        raise NotClosable(
            f"{month} is before {settled_with}, the first month that was closed, and was settled "
            "with it; what is told of it now lands in the month that is open"
        )
    following = first_open(book)
    if following is not None and following != month:
        raise NotClosable(
            f"months are closed one after another, and the next is {following}, not {month}"
        )
    if to_us(now) < end_us:
        raise NotClosable(
            f"{month} ends at {shown(end_us)} (zone {book.rules.zone}), which is still to come"
        )
    if following is None:
        _begins(read, month, (start_us, end_us), book.rules.zone)


def _begins(read: ReadSession, month: str, span: tuple[int, int], zone: str) -> None:
    """Raises `NotClosable` if `month` cannot be the first that is closed."""
    oldest = read.value(select(func.min(tables.requests.c.accepted_us)))
    if oldest is not None and oldest < span[0]:
        raise NotClosable(
            "months are closed one after another, and the first with requests is "
            f"{month_of(int(oldest), zone)}; close that before {month}"
        )
    # A wrong year would else force the closing of every month from there to now.
    if oldest is not None and oldest >= span[1]:
        raise NotClosable(
            f"{month} is before the first month with requests; begin with that, "
            f"{month_of(int(oldest), zone)}"
        )
    if oldest is not None:
        return
    began = read.value(select(func.min(tables.events.c.time_us)))
    if began is None:
        raise NotClosable(
            f"the ledger holds nothing yet, so there is nothing in {month} to close; nothing was "
            "written"
        )
    if began >= span[1]:
        raise NotClosable(
            f"{month} is before {month_of(int(began), zone)}, in which this ledger's first event "
            "is; nothing was there to close, and nothing was written"
        )


def _frozen(
    read: ReadSession,
    book: Book,
    month: str,
    span: tuple[int, int],
    cut: Cut,
    without: Mapping[str, str],
) -> PeriodClosed:
    root = root_at(read, cut)
    payload = PeriodClosed(
        month=month,
        zone=book.rules.zone,
        start=from_us(span[0]),
        end=from_us(span[1]),
        base=len(book.periods),
        version=len(book.periods) + 1,
        prices=len(book.prices),
        corrections=len(book.corrections),
        cut=cut,
        requests=0,
        open=0,
        unpriced=0,
        tokens={},
        totals={},
        lines="",
        root=root,
        tzdata=tzdata_version(),
        without=[Without(source=name, reason=without[name]) for name in sorted(without)],
    )
    periods = (*book.periods, _period(payload))
    late = _late(read, periods)
    then = Foreseen(
        **{name: getattr(book, name) for name in Book.__struct_fields__ if name != "periods"},
        periods=periods,
        late=tuple(late),
    )
    sums = month_sums(read, then, month)
    return msgspec.structs.replace(
        payload,
        requests=sums.requests,
        open=_open(read, span, periods, late),
        unpriced=sums.unpriced,
        tokens=sums.tokens,
        totals=sums.totals,
        lines=sums.lines,
    )


def _period(said: PeriodClosed) -> Period:
    return Period(
        month=said.month,
        zone=said.zone,
        start=said.start,
        end=said.end,
        number=said.version,
        prices=said.prices,
        cut=said.cut,
        requests=0,
        open=0,
        unpriced=0,
        tokens={},
        totals={},
        lines="",
        root=said.root,
        closed_at=said.end,
    )


def _late(read: ReadSession, periods: Sequence[Period]) -> list[LateRow]:
    """The rows of `late` that the last of `periods` adds."""
    found: dict[str, LateRow] = {}
    behind = sorted(behind_cuts(read, periods, len(periods) - 1))
    for ids in runs(behind, LOOKUP_MAX):
        found |= late_rows_of(read, periods, ids)
    return [found[name] for name in sorted(found)]


def _open(
    read: ReadSession, span: tuple[int, int], periods: Sequence[Period], late: Sequence[LateRow]
) -> int:
    """The requests of the month that had no end within its cut."""
    table = tables.requests
    within = (table.c.accepted_us >= span[0], table.c.accepted_us < span[1])
    count = int(
        read.value(select(func.count()).select_from(table).where(*within, table.c.state == "open"))
    )
    for some in runs(late, LOOKUP_MAX):
        for told in told_of(read, [row.request_id for row in some]).values():
            row = steps(periods, len(periods) - 1, told)[0].row
            count += row is None or not row.billed
    return count
