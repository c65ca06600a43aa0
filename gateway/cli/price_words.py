"""Prices, what a price file changes, what a month would have cost: as tables and JSON. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from gateway.cli.output import Cell, Column, Table, printable
from gateway.cli.period_words import standing_json
from gateway.cli.price_entries import (
    PRICED,
    bands_text,
    clock_text,
    days_text,
    entry_of,
    per_unit,
    percent_text,
    standing_for,
)
from gateway.cli.price_file import ENTRY_FIELDS, SHOWN_ONLY, Parsed
from ledger.amounts import decimal_text, pico_of
from ledger.events import BUCKETS
from ledger.folds.book import Book
from ledger.folds.months import Standing
from ledger.folds.price_lists import price_of
from ledger.folds.prices import CHARGES, Price
from ledger.words import counted

if TYPE_CHECKING:
    from ledger.sql.simulate import Simulated

TOKENS_PER_PRICE = 1_000_000
"""Prices are shown per million tokens, as everybody writes them."""


def per_million(price: Price) -> dict[str, str]:
    """The exact decimal of a million tokens by bucket."""
    return per_unit(price.pico, TOKENS_PER_PRICE)


def charges_of(price: Price) -> dict[str, str]:
    """The exact decimal of one request, failed attempt or second."""
    return per_unit(price.charges, TOKENS_PER_PRICE)


def standing(prices: Sequence[Price], now: datetime) -> dict[str, str]:
    """Of each price whether it stands `now` for its model and scope, comes later, or is past."""
    latest: dict[tuple[str | None, str], Price] = {}
    for price in prices:
        old = latest.get((price.scope, price.model))
        order = (price.effective_from, price.version)
        if price.effective_from <= now and (
            old is None or order > (old.effective_from, old.version)
        ):
            latest[price.scope, price.model] = price
    return {
        price.price_id: "now"
        if latest.get((price.scope, price.model)) is price
        else ("later" if price.effective_from > now else "past")
        for price in prices
    }


def price_json(price: Price, reasons: Mapping[str, str]) -> dict[str, object]:
    """One price for JSON; a bucket without a price is null. `reasons` are those of the prices that
    were made anew, by their ids."""
    prices, charges = per_million(price), charges_of(price)
    return {
        "id": price.price_id,
        "model": price.model,
        "scope": price.scope,
        "version": price.version,
        "currency": price.currency,
        "from": price.effective_from,
        "unit": price.unit,
        "per_million": {bucket: prices.get(bucket) for bucket in BUCKETS},
        "charges": {name: charges[name] for name in CHARGES if name in charges},
        "discount": None if price.discount is None else percent_text(price.discount),
        "zone": price.zone,
        "bands": [
            {
                "name": band.name,
                "days": days_text(band.days),
                "hours": f"{clock_text(band.start)}-{clock_text(band.end)}",
                "per_million": per_unit(
                    {n: pico for n, pico in band.pico.items() if n in BUCKETS}, TOKENS_PER_PRICE
                ),
                "charges": per_unit(
                    {n: pico for n, pico in band.pico.items() if n in CHARGES}, TOKENS_PER_PRICE
                ),
            }
            for band in price.bands
        ],
        "rerate": reasons.get(price.price_id),
    }


def prices_table(
    prices: Sequence[Price], states: Mapping[str, str], reasons: Mapping[str, str]
) -> Table:
    """Prices as a table, per million tokens; a bucket without a price is a dash. A column that
    would be empty is left out. Below it stand bands, and why prices were made anew."""
    shown = [name for name in CHARGES if any(name in price.charges for price in prices)]
    scoped = any(price.scope is not None for price in prices)
    discounts = any(price.discount is not None for price in prices)
    names = ["model", *(["for"] if scoped else []), "from", "state", "currency"]
    numbers = [*BUCKETS, *shown, *(["discount %"] if discounts else [])]
    rows = []
    for price in prices:
        tokens, charges = per_million(price), charges_of(price)
        cells: list[Cell] = [price.model, *([price.scope] if scoped else [])]
        cells += [price.effective_from, states[price.price_id], price.currency]
        cells += [tokens.get(bucket) for bucket in BUCKETS]
        cells += [charges.get(name) for name in shown]
        if discounts:
            cells.append(None if price.discount is None else percent_text(price.discount))
        rows.append(tuple(cells))
    return Table(
        columns=(
            *(Column(name) for name in names),
            *(Column(name, number=True) for name in numbers),
        ),
        rows=tuple(rows),
        notes=(
            "Prices are for a million tokens.",
            *(
                f"{_named(price)}, by the clock of {price.zone}, for "
                f"{counted(price.unit, 'token')}: {bands_text(entry_of(price).bands)}"
                for price in prices
                if price.bands
            ),
            *(
                printable(f"{_named(price)}, made anew (--rerate): {reasons[price.price_id]}")
                for price in prices
                if price.price_id in reasons
            ),
        ),
    )


def _named(price: Price) -> str:
    scope = "" if price.scope is None else f" for {price.scope}"
    return f"{price.model}{scope} from {price.effective_from:%Y-%m-%dT%H:%M:%SZ}"


def file_table(
    prices: Sequence[Price], states: Mapping[str, str], reasons: Mapping[str, str]
) -> Table:
    """Prices as the rows of a price file, and what tells of each beside."""
    names = (*SHOWN_ONLY, *ENTRY_FIELDS, "band", "days", "hours", *PRICED)
    rows = [
        tuple(row.get(name) for name in names)
        for price in prices
        for row in _file_rows(price, states[price.price_id], reasons.get(price.price_id))
    ]
    return Table(tuple(Column(name) for name in names), tuple(rows))


def _file_rows(price: Price, state: str, reason: str | None) -> Iterator[dict[str, str | None]]:
    entry = entry_of(price)
    same: dict[str, str | None] = {
        "model": entry.model,
        "scope": entry.scope,
        "from": entry.effective_from.isoformat().replace("+00:00", "Z"),
    }
    yield {
        "id": price.price_id,
        "version": str(price.version),
        "state": state,
        "rerate": reason,
        "currency": entry.currency,
        "unit": str(entry.unit),
        "zone": entry.zone,
        "discount": entry.discount,
        **same,
        **entry.per_unit,
    }
    for band in entry.bands:
        hours = f"{clock_text(band.start)}-{clock_text(band.end)}"
        yield {
            **same,
            "band": band.name,
            "days": days_text(band.days),
            "hours": hours,
            **band.per_unit,
        }


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that an entry of a file changes; null: nothing stands, or will."""

    line: int
    model: str
    scope: str | None
    begins: datetime
    what: str
    before: str | None
    after: str | None


def differences(book: Book, parsed: Parsed) -> list[Difference]:
    """What each entry changes of what stands for its model and scope when it begins."""
    found = []
    for one in parsed.found:
        entry = one.entry
        made = price_of(entry, 1)
        assert isinstance(made, Price), f"only a file without problems is compared: {made}"
        old = standing_for(book, entry.scope, entry.model, entry.effective_from)
        before = {} if old is None else dict(_facts(old))
        after = dict(_facts(made))
        found += [
            Difference(
                line=one.line,
                model=entry.model,
                scope=entry.scope,
                begins=entry.effective_from,
                what=what,
                before=before.get(what),
                after=after.get(what),
            )
            for what in dict.fromkeys((*before, *after))
            if before.get(what) != after.get(what)
        ]
    return found


def _facts(price: Price) -> Iterator[tuple[str, str]]:
    yield "currency", price.currency
    yield from per_million(price).items()
    yield from charges_of(price).items()
    if price.discount is not None:
        yield "discount", percent_text(price.discount)
    if price.bands:
        yield "bands", f"{price.zone} {bands_text(entry_of(_per_million(price)).bands)}"


def _per_million(price: Price) -> Price:
    return msgspec.structs.replace(price, unit=TOKENS_PER_PRICE)


def difference_table(found: Sequence[Difference]) -> Table:
    """The same as a table."""
    columns = (
        Column("line", number=True),
        Column("model"),
        Column("for"),
        Column("from"),
        Column("what"),
        Column("before", number=True),
        Column("after", number=True),
    )
    rows = tuple(
        (one.line, one.model, one.scope, one.begins, one.what, one.before, one.after)
        for one in found
    )
    return Table(columns, rows, ("Prices are for a million tokens.",) if rows else ())


def simulated_json(standing: Standing, found: Sequence["Simulated"]) -> dict[str, object]:
    """What a month would have cost, for JSON."""
    before, after = _sums([one.before for one in found]), _sums([one.after for one in found])
    return {
        **standing_json(standing),
        "before": before,
        "after": after,
        "difference": _minus(after, before),
        "rows": [
            {
                "key": one.key_id,
                "name": one.name,
                "model": one.model,
                "before": one.before,
                "after": one.after,
                "difference": _minus(one.after, one.before),
                "unpriced_before": one.unpriced_before,
                "unpriced_after": one.unpriced_after,
            }
            for one in found
        ],
    }


def simulated_table(standing: Standing, found: Sequence["Simulated"]) -> Table:
    """The same as a table: a row for each key, model and currency."""
    names = ("key", "name", "model", "currency", "cost", "would cost", "difference")
    numbers = {"cost", "would cost", "difference"}
    rows: list[tuple[Cell, ...]] = []
    for one in found:
        gap = _minus(one.after, one.before)
        currencies: list[str | None] = [*gap] or [None]
        for currency in currencies:
            named = (one.key_id, one.name, one.model, currency)
            costs = (side.get(currency or "") for side in (one.before, one.after, gap))
            rows.append((*named, *costs))
    totals = simulated_json(standing, found)
    lacking = [one for one in found if one.unpriced_after]
    notes = [f"Would differ by: {_money(totals['difference'])}"]
    if lacking:
        tokens = sum(one.unpriced_after for one in lacking)
        count = counted(
            tokens, "token would have no price and is", "tokens would have no price and are"
        )
        notes.append(f"{count} in no sum")
    notes.append(
        f"{standing.month} is open: its usage may still grow"
        if standing.state == "open"
        else f"{standing.month} is {standing.state}: its bill stays as it is, whatever these "
        "prices are"
    )
    columns = tuple(Column(name, number=name in numbers) for name in names)
    return Table(columns, tuple(rows), tuple(notes) if rows else tuple(notes[-1:]))


def _money(costs: object) -> str:
    assert isinstance(costs, dict), "a sum is told by currency"
    return ", ".join(f"{cost} {currency}" for currency, cost in costs.items()) or "nothing"


def _sums(costs: Sequence[Mapping[str, str]]) -> dict[str, str]:
    sums: dict[str, int] = {}
    for cost in costs:
        for currency, text in cost.items():
            sums[currency] = sums.get(currency, 0) + pico_of(text)
    return {currency: decimal_text(pico) for currency, pico in sorted(sums.items())}


def _minus(one: Mapping[str, str], other: Mapping[str, str]) -> dict[str, str]:
    return {
        currency: decimal_text(pico_of(one.get(currency, "0")) - pico_of(other.get(currency, "0")))
        for currency in sorted(one.keys() | other.keys())
    }
