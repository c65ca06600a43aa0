"""What a month would have cost at other prices. It only reads, and nothing of it is a bill."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from ledger.clock import from_us
from ledger.folds.book import Book
from ledger.folds.prices import Price
from ledger.sql.bill import BillLine, lines_of, totals_of
from ledger.sql.rated import Frame, frame_of, rated
from ledger.sql.session import ReadSession


class Simulated(msgspec.Struct, frozen=True, kw_only=True):
    """What one key used of one model: its cost at the prices that held, and at the others.

    Costs are exact decimals by currency; `unpriced_before` and `unpriced_after` count the tokens
    that had, and would have had, no price.
    """

    key_id: str
    name: str | None
    model: str
    before: dict[str, str]
    after: dict[str, str]
    unpriced_before: int
    unpriced_after: int


def simulated(
    read: ReadSession, book: Book, month: str, candidates: Sequence[Price], *, whole: bool = False
) -> list[Simulated]:
    """The usage of `month` that the ledger knows, at both. `candidates` stand in the place of all
    prices that the book has for the same model and scope; one that begins outside of the month
    (`whole`: every one) counts from its first instant. Raises `BadQuery` for what is no month."""
    frame = frame_of(book, month)
    taken = {(price.scope, price.model) for price in candidates}
    kept = [price for price in frame.book.prices if (price.scope, price.model) not in taken]
    first, after = from_us(frame.first_us), from_us(frame.after_us)
    moved = [
        price
        if first <= price.effective_from < after and not whole
        else msgspec.structs.replace(price, effective_from=first)
        for price in candidates
    ]
    other = msgspec.structs.replace(frame.book, prices=(*kept, *moved))
    sides = [_by_key(_lines(read, one, frame)) for one in (frame.book, other)]
    return [
        Simulated(
            key_id=key_id,
            name=name,
            model=model,
            before=totals_of(sides[0].get((key_id, name, model), [])),
            after=totals_of(sides[1].get((key_id, name, model), [])),
            unpriced_before=_unpriced(sides[0].get((key_id, name, model), [])),
            unpriced_after=_unpriced(sides[1].get((key_id, name, model), [])),
        )
        for key_id, name, model in sorted(
            sides[0].keys() | sides[1].keys(), key=lambda one: (one[0], one[2])
        )
    ]


def standing_now(book: Book, now: datetime) -> list[Price]:
    """Of each model and scope the price that holds at `now`."""
    found: dict[tuple[str | None, str], Price] = {}
    for price in sorted(book.prices, key=lambda one: (one.effective_from, one.version)):
        if price.effective_from <= now:
            found[price.scope, price.model] = price
    return list(found.values())


def _lines(read: ReadSession, book: Book, frame: Frame) -> list[BillLine]:
    parts = rated(read, book, frame.first_us, frame.after_us, step="span")
    return lines_of(read, book, parts, ("key", "model"))


_Of = tuple[str, str | None, str]


def _by_key(lines: Sequence[BillLine]) -> dict[_Of, list[BillLine]]:
    found: dict[_Of, list[BillLine]] = {}
    for line in lines:
        found.setdefault((line.key_id or "", line.name, line.model or ""), []).append(line)
    return found


def _unpriced(lines: Sequence[BillLine]) -> int:
    return sum(
        sum(getattr(line, name) or 0 for name in line.unpriced) for line in lines if line.unpriced
    )
