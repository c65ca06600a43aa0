"""The bill: usage by project, key, model, basis and price, priced by the time of acceptance.

It adds up what `ledger.sql.rated` gives, part by part. Money is exact: integers in
`ledger.amounts`, decimal text outside.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

import msgspec
from sqlalchemy import func, select

from ledger.amounts import decimal_text, pico_of
from ledger.errors import BadQuery
from ledger.events import BUCKETS
from ledger.folds.book import Book
from ledger.folds.cost import cost_of_rated
from ledger.folds.prices import Price
from ledger.folds.rating import Kind, Rated
from ledger.folds.usage import HOUR_US, ZERO, Totals, by_bucket
from ledger.sql import tables
from ledger.sql.adjust import corrections_of_all_time
from ledger.sql.names import key_names, names_of
from ledger.sql.rated import Frame, Step, cell_of, merged, month_lines, rated
from ledger.sql.replay import load_book
from ledger.sql.session import ReadSession
from ledger.zones import local_day

GROUPS: Final = ("project", "key", "model", "day")
"""What lines of a bill can be told apart by; basis, price and what they correct always do."""


class BillLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a bill. What it is not grouped by is null, as is a bucket nobody knew.

    `day` is the date of acceptance in the zone of the books, `2026-11-29`. `cost` is an exact
    decimal of `currency`, or null if no price applies or no count is known; `unpriced` names the
    buckets that hold tokens and have no price. `price_id` and `price_version` are of the price that
    it was made with, null where none held; `band` names the band of that price, `discount_id` the
    entry of the price book that took something off. `charges` counts what was charged beside
    tokens: requests, calls that failed, microseconds of `gpu_second`. `kind` other than `usage`:
    the line corrects an earlier one, and `corrects` names the event that this one was made of.
    """

    key_id: str | None
    name: str | None
    model: str | None
    day: str | None
    basis: str
    requests: int
    uncached_in: int | None
    cached_in: int | None
    cache_write_in: int | None
    reasoning_out: int | None
    other_out: int | None
    currency: str | None
    cost: str | None
    unpriced: tuple[str, ...] = ()
    project_id: str | None = None
    project: str | None = None
    price_id: str | None = None
    price_version: int | None = None
    band: str | None = None
    discount_id: str | None = None
    charges: dict[str, int] = msgspec.field(default_factory=dict)
    corrects: str | None = None
    kind: Kind = "usage"

    @property
    def lacks_price(self) -> bool:
        """True if something was counted here and has no price; what nobody knows lacks none."""
        return self.cost is None and any(getattr(self, name) is not None for name in BUCKETS)


class Group(msgspec.Struct, frozen=True):
    """What a line is told apart by. `priced` keeps a null cost from swallowing a known one."""

    project_id: str | None
    key_id: str | None
    model: str | None
    day: str | None
    basis: str
    price_id: str | None
    discount_id: str | None
    band: str | None
    currency: str | None
    priced: bool
    corrects: str | None
    kind: Kind


class Sum(msgspec.Struct):
    """What a line adds up to so far."""

    totals: Totals = ZERO
    pico: int = 0
    unpriced: frozenset[str] = frozenset()
    price: Price | None = None
    charges: dict[str, int] = msgspec.field(default_factory=dict)


def bill(
    read: ReadSession,
    month: str | None,
    by: Collection[str] = ("key", "model"),
    *,
    book: Book | None = None,
) -> list[BillLine]:
    """The bill of a month in the zone of the books (null: of all time), a line for each basis,
    price and correction, and for what `by` names.

    `book` is the registry to bill by; null: as the ledger has it. Raises `BadQuery` for a month or
    a group that there is none of.
    """
    strangers = sorted(set(by) - set(GROUPS))
    if strangers:
        raise BadQuery(f"a bill is grouped by {', '.join(GROUPS)}, not by {', '.join(strangers)}")
    book = load_book(read) if book is None else book
    step: Step = "day" if "day" in by else "span"
    return lines_of(read, book, _rated(read, book, month, step), by)


def lines_of(
    read: ReadSession, book: Book, parts: Iterable[Rated], by: Collection[str]
) -> list[BillLine]:
    """The lines that these parts of the usage add up to, in the bill's order."""
    sums: dict[Group, Sum] = {}
    for part in parts:
        add_part(sums, part, by, book.rules.zone)
    named, projects = key_names(read), names_of(read, "project")
    found = (_line_of(group, total, named, projects) for group, total in sums.items())
    return sorted(found, key=order)


def _rated(read: ReadSession, book: Book, month: str | None, step: Step) -> Iterator[Rated]:
    if month is not None:
        return month_lines(read, book, month, step=step)
    hour = tables.usage_hourly.c.hour_us
    last = read.value(select(func.max(hour)))
    frame = Frame(0, 0 if last is None else last + HOUR_US, book.rules.zone, book)
    usual = rated(read, book, frame.first_us, frame.after_us, step=step)
    extra = (
        msgspec.structs.replace(one, start_us=cell_of(one.start_us, frame, step))
        for one in corrections_of_all_time(read, book)
    )
    return merged((*usual, *extra))


def add_part(sums: dict[Group, Sum], part: Rated, by: Collection[str], zone: str) -> None:
    """Add one part of the usage to the line that it belongs to. Parts are priced each for itself
    however they are grouped: coarse lines are the sums of fine ones."""
    cost, rate = cost_of_rated(part), part.rate
    group = Group(
        project_id=part.project_id if "project" in by else None,
        key_id=part.key_id if "key" in by else None,
        model=part.model if "model" in by else None,
        day=local_day(part.start_us, zone) if "day" in by else None,
        basis=part.basis,
        price_id=None if rate is None else rate.price.price_id,
        discount_id=None if rate is None or rate.discount is None else rate.discount.price_id,
        band=None if rate is None else rate.band,
        currency=cost.currency,
        priced=cost.pico is not None,
        corrects=part.corrects,
        kind=part.kind,
    )
    line = sums.setdefault(group, Sum(price=None if rate is None else rate.price))
    line.totals = line.totals.plus(part.totals)
    line.pico += cost.pico or 0
    line.unpriced |= frozenset(cost.unpriced)
    if rate is not None:
        for name, count in part.used.items():
            if count and name not in BUCKETS and name in rate.pico:
                line.charges[name] = line.charges.get(name, 0) + count


def _line_of(group: Group, total: Sum, named: dict[str, str], projects: dict[str, str]) -> BillLine:
    return BillLine(
        project_id=group.project_id,
        project=projects.get(group.project_id) if group.project_id is not None else None,
        key_id=group.key_id,
        name=named.get(group.key_id) if group.key_id is not None else None,
        model=group.model,
        day=group.day,
        basis=group.basis,
        requests=total.totals.requests,
        currency=group.currency,
        cost=decimal_text(total.pico) if group.priced else None,
        unpriced=tuple(name for name in BUCKETS if name in total.unpriced),
        price_id=group.price_id,
        price_version=None if total.price is None else total.price.version,
        band=group.band,
        discount_id=group.discount_id,
        charges=dict(sorted(total.charges.items())),
        corrects=group.corrects,
        kind=group.kind,
        **by_bucket(total.totals),
    )


def order(line: BillLine) -> tuple[str, ...]:
    """Lines stand in this order whatever the database's own is."""
    parts = (line.project_id, line.key_id, line.model, line.day, line.basis, line.currency)
    more = (line.cost, line.price_id, line.discount_id, line.band, line.corrects, line.kind)
    return tuple(part or "" for part in (*parts, *more))


def totals_of(lines: Sequence[BillLine]) -> dict[str, str]:
    """The exact sum of all priced lines by currency."""
    sums: dict[str, int] = {}
    for line in lines:
        if line.cost is not None and line.currency is not None:
            sums[line.currency] = sums.get(line.currency, 0) + pico_of(line.cost)
    return {currency: decimal_text(pico) for currency, pico in sorted(sums.items())}
