"""What a month comes to, as it is frozen when it is closed and checked ever after."""

from collections.abc import Iterable, Iterator
from hashlib import sha256

import msgspec

from ledger.amounts import decimal_text
from ledger.clock import to_us
from ledger.events import BUCKETS
from ledger.folds.book import Book
from ledger.folds.cost import cost_of_rated, lacks_price
from ledger.folds.money import Period
from ledger.folds.rating import Rated
from ledger.folds.usage import by_bucket
from ledger.sql.late import LateRow, behind_cuts, late_rows, late_rows_of
from ledger.sql.projections import LOOKUP_MAX, runs
from ledger.sql.rated import month_lines
from ledger.sql.session import ReadSession
from ledger.sql.unpriced import Unpriced


class Sums(msgspec.Struct, frozen=True, kw_only=True):
    """What the lines of a month add up to.

    `requests`, those of them that are `unpriced`, and `tokens` by bucket are of its own usage;
    `totals`, exact decimals by currency, are of all lines. `lines` is the hash of them. `wholly`
    counts the requests on lines none of whose tokens has a price: what older versions called
    unpriced.
    """

    requests: int
    unpriced: int
    wholly: int
    tokens: dict[str, int]
    totals: dict[str, str]
    lines: str


def month_sums(read: ReadSession, book: Book, month: str) -> Sums:
    """What the bill of `month` adds up to. Raises `BadQuery` for a month that is none."""
    unpriced = Unpriced()
    sums = _sums_of(unpriced.watch(month_lines(read, book, month, step="day")))
    count = unpriced.requests(read, book, month).total()
    return msgspec.structs.replace(sums, unpriced=count)


def _sums_of(lines: Iterable[Rated]) -> Sums:
    """Lines added up, and their hash: SHA-256 over one JSON array a line. `unpriced` is left 0."""
    digest = sha256()
    requests = wholly = 0
    tokens = dict.fromkeys(BUCKETS, 0)
    totals: dict[str, int] = {}
    encode = msgspec.json.Encoder().encode
    for one in lines:
        cost = cost_of_rated(one)
        if one.totals.nothing and not cost.pico:
            # Nobody is billed by it: only calls or seconds without a price are left in it.
            continue
        used = by_bucket(one.totals)
        digest.update(encode(_told(one, used, cost.currency, cost.pico)) + b"\n")
        if cost.pico is not None and cost.currency is not None:
            totals[cost.currency] = totals.get(cost.currency, 0) + cost.pico
        if one.kind != "usage":
            continue
        requests += one.totals.requests
        if lacks_price(one):
            wholly += one.totals.requests
        for name, count in used.items():
            tokens[name] += count or 0
    return Sums(
        requests=requests,
        unpriced=0,
        wholly=wholly,
        tokens={name: count for name, count in tokens.items() if count},
        totals={name: decimal_text(totals[name]) for name in sorted(totals)},
        lines=digest.hexdigest(),
    )


def _told(
    one: Rated, used: dict[str, int | None], currency: str | None, pico: int | None
) -> list[object]:
    rate = (None, None, None) if one.rate is None else one.rate.name
    return [
        one.start_us,
        one.project_id,
        one.key_id,
        one.model,
        one.basis,
        one.kind,
        one.corrects,
        *rate,
        one.totals.requests,
        *(used[name] for name in BUCKETS),
        currency,
        None if pico is None else decimal_text(pico),
    ]


def parted(read: ReadSession, book: Book) -> Iterator[str]:
    """What is not as it was when a month was closed, a sentence for each."""
    for period in book.periods:
        now = month_sums(read, book, period.month)
        for name in ("requests", "unpriced", "tokens", "totals", "lines"):
            said, found = getattr(period, name), getattr(now, name)
            if name == "unpriced" and said == now.wholly:
                # An older version closed it, and what it counted is frozen too.
                continue
            if said != found:
                yield (
                    f"{period.month} was closed with {name} {said}, and its events within the cut "
                    f"come to {found}"
                )
    said_late = {row.request_id: row for row in late_rows(read)}
    wanted = sorted(behind_cuts(read, book.periods, 0)) if book.periods else []
    told: dict[str, LateRow] = {}
    for ids in runs(wanted, LOOKUP_MAX):
        told |= late_rows_of(read, book.periods, ids)
    for name in sorted(said_late.keys() | told.keys()):
        if said_late.get(name) != told.get(name):
            yield (
                f"late request {name}: its events say {told.get(name, 'nothing')}, its row says "
                f"{said_late.get(name, 'nothing')}; `tollbook rebuild` sets it right"
            )


def span_of(period: Period) -> tuple[int, int]:
    """The first instant of a closed month and that of the next, in microseconds since 1970."""
    return to_us(period.start), to_us(period.end)
