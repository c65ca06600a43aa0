"""How many requests of a month have tokens without a price. It only reads.

The one definition, whoever counts: a request is unpriced if any of its token buckets is known and
its own cost is not, as `tollbook explain` has it of that request. Lines of a bill cannot tell,
since one adds up requests that have tokens in a bucket without a price and others that have none.
So single requests are counted where it matters: of those keys and models that lack a price.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise

from sqlalchemy import BigInteger, ColumnElement, case, func, literal_column, or_, select

from ledger.events import BUCKETS
from ledger.folds.book import Book
from ledger.folds.cost import lacks_price
from ledger.folds.rating import Rate, Rated, Sheet
from ledger.sql import tables
from ledger.sql.adjust import adjustments
from ledger.sql.projections import LOOKUP_MAX
from ledger.sql.rated import frame_of, local_time, month_lines, rate_edges
from ledger.sql.session import ReadSession

ByProject = Counter[str | None]
"""Requests by the project that their key belonged to; null: to none."""

KNOWN = 1 << len(BUCKETS)
"""The bit that says of a request that at least one of its buckets is known."""


def unpriced_requests(read: ReadSession, book: Book, month: str) -> ByProject:
    """The requests of `month` itself, neither late ones nor corrections, that are unpriced. Raises
    `BadQuery` for a month that is none."""
    found = Unpriced()
    for _ in found.watch(month_lines(read, book, month, step="span")):
        pass
    return found.requests(read, book, month)


class Unpriced:
    """Sees the lines of a month go by, and then counts its requests that are unpriced."""

    def __init__(self) -> None:
        self._whole: Counter[tuple[str | None, str, str]] = Counter()
        self._parted: set[tuple[str, str]] = set()

    def watch(self, lines: Iterable[Rated]) -> Iterator[Rated]:
        """Gives `lines` on, all of them of one month."""
        for one in lines:
            if one.kind == "usage" and lacks_price(one):
                if one.rate is None and one.totals.requests in one.totals.known:
                    # No price at all, and each of them knows a bucket: they are all unpriced.
                    name = one.project_id, one.key_id, one.model
                    self._whole[name] += one.totals.requests
                else:
                    self._parted.add((one.key_id, one.model))
            yield one

    def requests(self, read: ReadSession, book: Book, month: str) -> ByProject:
        """How many there are, after all lines of `month` went by."""
        found: ByProject = Counter()
        for (project_id, key_id, model), requests in self._whole.items():
            if (key_id, model) not in self._parted:
                found[project_id] += requests
        if self._parted:
            for one in _singly(read, book, month, self._parted):
                found.update(one)
        return Counter({project: count for project, count in found.items() if count})


def _singly(
    read: ReadSession, book: Book, month: str, names: set[tuple[str, str]]
) -> Iterator[dict[str | None, int]]:
    frame = frame_of(book, month)
    sheet = Sheet(frame.book.prices, frame.book.members)
    cuts = rate_edges(sheet, frame.first_us, frame.after_us)
    moves = sheet.moves(frame.first_us, frame.after_us)
    cuts |= {at for key_id, _ in names for at in moves.get(key_id, ())}
    for start, end in pairwise(sorted({frame.first_us, frame.after_us, *cuts})):
        for key_id, model, kind, count in _kinds(read, start, end, names):
            if (key_id, model) in names:
                rate = sheet.rate(key_id, model, start, local_time)
                if int(kind) & _lacking(rate):
                    yield {sheet.project(key_id, start): count}
    for one in adjustments(read, book, month):
        # What became known behind the cut of a closed month is in the rows above.
        if one.kind == "usage" and (one.key_id, one.model) in names and lacks_price(one):
            yield {one.project_id: one.totals.requests}


def _lacking(rate: Rate | None) -> int:
    """The bits of which a request has one if it is unpriced at `rate`."""
    if rate is None:
        return KNOWN
    return sum(1 << place for place, name in enumerate(BUCKETS) if name not in rate.pico)


def _kinds(
    read: ReadSession, start: int, end: int, names: set[tuple[str, str]]
) -> Iterator[tuple[str, str, int, int]]:
    """Requests with an end by key, model and kind: a bit for each bucket that holds tokens."""
    table = tables.requests
    known = or_(*(table.c[name].is_not(None) for name in BUCKETS))
    kind: ColumnElement[int] = case((known, _number(KNOWN)), else_=_number(0))
    for place, name in enumerate(BUCKETS):
        kind += case((table.c[name] > _number(0), _number(1 << place)), else_=_number(0))
    keys, models = ({name[at] for name in names} for at in (0, 1))
    where = [table.c.accepted_us >= start, table.c.accepted_us < end, table.c.state != "open"]
    for column, wanted in ((table.c.key_id, keys), (table.c.model, models)):
        if len(wanted) <= LOOKUP_MAX:
            where.append(column.in_(sorted(wanted)))
    group = (table.c.key_id, table.c.model, kind)
    yield from read.rows(select(*group, func.count()).where(*where).group_by(*group))


def _number(value: int) -> ColumnElement[int]:
    # A literal: with a parameter Postgres would not see that it groups by what is selected.
    return literal_column(str(value), BigInteger)
