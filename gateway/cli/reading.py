"""Pages of the usage APIs, made from the ledger: what the reader's process computes."""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from gateway.wire.organization import Ask, Spent, costs_page, usage_page
from ledger.amounts import decimal_text
from ledger.events import BUCKETS
from ledger.folds.book import Book
from ledger.folds.cost import cost_of_rated
from ledger.folds.rating import Rated
from ledger.sql.costs import costs as costs_of
from ledger.sql.costs import open_from
from ledger.sql.session import ReadSession
from ledger.sql.usage import Step, UsageAsk
from ledger.sql.usage import usage as usage_of

SECOND_US: Final = 1_000_000

_STEPS: Final[Mapping[str, Step]] = {"1m": "minute", "1h": "hour", "1d": "day"}

_BY: Final = {"project_id": "project", "api_key_id": "key", "model": "model"}

_UNITS: Final = {"request": "requests", "failed_attempt": "failed_attempts"}
"""What a quantity counts, where it counts no tokens and no time."""


def usage(read: ReadSession, book: Book, ask: Ask) -> bytes:
    """The page of usage. Raises `BadQuery` if it would be too large."""
    wanted = UsageAsk(
        first_us=ask.start * SECOND_US,
        after_us=ask.buckets()[-1][1] * SECOND_US,
        step=_STEPS[ask.width],
        by=frozenset(_BY[name] for name in ask.group_by if name in _BY),
        projects=None if ask.projects is None else frozenset(ask.projects),
        keys=None if ask.keys is None else frozenset(ask.keys),
        models=None if ask.models is None else frozenset(ask.models),
    )
    found = usage_of(read, book.members, wanted)
    return usage_page(
        ask,
        (
            (used.start_us // SECOND_US, used.project_id, used.key_id, used.model, totals)
            for used, totals in found.items()
        ),
    )


class _Name(msgspec.Struct, frozen=True):
    """What results of costs are told apart by. `priced` keeps a null cost from swallowing a known
    one."""

    start: int
    project: str | None
    key: str | None
    item: str | None
    currency: str | None
    priced: bool
    unit: str | None

    @property
    def order(self) -> tuple[object, ...]:
        texts = (self.project, self.key, self.item, self.currency)
        return self.start, *(text or "" for text in texts), not self.priced


class _Sum(msgspec.Struct):
    pico: int = 0
    quantity: int = 0
    unpriced: frozenset[str] = frozenset()
    unknown: int = 0


def costs(read: ReadSession, book: Book, ask: Ask) -> bytes:
    """The page of costs."""
    parts = [(start * SECOND_US, end * SECOND_US) for start, end in ask.buckets()]
    sums: dict[_Name, _Sum] = {}
    for start, one in costs_of(read, book, parts):
        if ask.projects is not None and one.project_id not in ask.projects:
            continue
        if ask.keys is not None and one.key_id not in ask.keys:
            continue
        itemized = "line_item" in ask.group_by or ask.items is not None
        for piece in _items(one) if itemized else [_whole(one)]:
            if ask.items is None or piece.item in ask.items:
                _add(sums, ask, start // SECOND_US, one, piece)
    began = open_from(book)
    spent = (_spent(name, sums[name]) for name in sorted(sums, key=lambda name: name.order))
    return costs_page(ask, spent, None if began is None else began // SECOND_US)


class _Piece(msgspec.Struct, frozen=True):
    """A part of what `Rated` comes to: all of it, or one bucket of tokens or one charge."""

    item: str | None
    pico: int | None
    currency: str | None
    unpriced: tuple[str, ...]
    unknown: int
    quantity: int = 0
    unit: str | None = None


def _whole(one: Rated) -> _Piece:
    cost = cost_of_rated(one)
    unknown = one.totals.requests if cost.pico is None and not cost.unpriced else 0
    currency = None if cost.pico is None else cost.currency
    return _Piece(None, cost.pico, currency, cost.unpriced, unknown)


def _items(one: Rated) -> Iterator[_Piece]:
    """A piece for each bucket and charge. Where a bucket lacks its price the whole use has no cost,
    as on a bill, so the others have none either."""
    whole = _whole(one)
    corrected = "" if one.kind == "usage" else ", correction"
    for name, quantity in one.used.items():
        unit_pico = None if one.rate is None else one.rate.pico.get(name)
        charge = name not in BUCKETS
        if not quantity or (charge and (unit_pico is None or whole.pico is None)):
            continue
        yield _Piece(
            f"{one.model}, {name}{corrected}",
            None if whole.pico is None or unit_pico is None else quantity * unit_pico,
            whole.currency,
            whole.unpriced,
            0,
            quantity,
            "duration_seconds" if name == "gpu_second" else _UNITS.get(name, "tokens"),
        )
    if whole.unknown:
        yield msgspec.structs.replace(whole, item=f"{one.model}, unknown{corrected}")


def _add(sums: dict[_Name, _Sum], ask: Ask, start: int, one: Rated, piece: _Piece) -> None:
    by_item = "line_item" in ask.group_by
    name = _Name(
        start,
        one.project_id if "project_id" in ask.group_by else None,
        one.key_id if "api_key_id" in ask.group_by else None,
        piece.item if by_item else None,
        piece.currency,
        piece.pico is not None,
        piece.unit if by_item else None,
    )
    total = sums.setdefault(name, _Sum())
    total.pico += piece.pico or 0
    total.quantity += piece.quantity
    total.unpriced |= frozenset(piece.unpriced)
    total.unknown += piece.unknown


def _spent(name: _Name, total: _Sum) -> Spent:
    quantity = None
    if name.unit is not None:
        whole = str(total.quantity)
        in_seconds = name.unit == "duration_seconds"
        quantity = decimal_text(total.quantity * SECOND_US) if in_seconds else whole
    return Spent(
        start=name.start,
        project=name.project,
        key=name.key,
        item=name.item,
        currency=name.currency,
        cost=decimal_text(total.pico) if name.priced else None,
        quantity=quantity,
        unit=name.unit,
        unpriced=tuple(bucket for bucket in BUCKETS if bucket in total.unpriced),
        unknown=total.unknown,
    )
