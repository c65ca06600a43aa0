"""Price lists: which of their entries may stand, and as what prices. Pure.

The rules for entries are judged by the time of their event, so that every reader judges the same.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final

from ledger.amounts import pico_of_unit
from ledger.errors import AmountError
from ledger.events import BUCKETS, PriceEntry, PriceListed
from ledger.folds.prices import CHARGES, Price, PricedBand
from ledger.words import counted

DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

AHEAD: Final = timedelta(seconds=60)
"""A price that begins earlier than so long from now may price what was already billed at another:
that is a re-rating, and has to be asked for."""

PERCENT_PARTS: Final = 10_000
"""A discount is held in hundredths of a percent."""


def listed(
    said: PriceListed, time: datetime, prices: Sequence[Price], closed_until: datetime | None
) -> list[Price] | str:
    """The prices that `said`, told at `time`, adds to `prices`; or why it may not stand.

    `closed_until` is the end of the last closed month: no price reaches back behind it.
    """
    if said.base != len(prices):
        return (
            f"the registry has {counted(len(prices), 'price')} by now, and this list was made from "
            f"{said.base:,}; "
            "list them again and repeat the command"
        )
    versions: dict[str, int] = {}
    for price in prices:
        versions[price.model] = max(price.version, versions.get(price.model, 0))
    ids = {price.price_id for price in prices}
    # Not beside single prices of old: this was once taken, and no reader may refuse what it took.
    taken = {_instant(price) for price in prices if price.listed}
    found: list[Price] = []
    for entry in said.entries:
        wrong = _too_early(entry, said.rerate, time, closed_until)
        if wrong is None and entry.price_id in ids:
            wrong = f"price {entry.price_id} is there already"
        if wrong is not None:
            return wrong
        version = versions.get(entry.model, 0) + 1
        made = price_of(entry, version)
        if isinstance(made, str):
            return made
        if _instant(made) in taken and said.rerate is None:
            return _taken(made)
        if any(_instant(other) == _instant(made) for other in found):
            return f"{_named(entry)} stands twice in this list for one instant"
        versions[entry.model] = version
        ids.add(entry.price_id)
        found.append(made)
    return found if found else "a price list without entries"


def publishable(
    said: PriceListed, time: datetime, prices: Sequence[Price], closed_until: datetime | None
) -> list[Price] | str:
    """What `listed` gives, for whoever is about to publish `said`: an entry in the place of a
    single price of old is refused here as well."""
    found = listed(said, time, prices, closed_until)
    if isinstance(found, str) or said.rerate is not None:
        return found
    taken = {_instant(price) for price in prices}
    return next((_taken(price) for price in found if _instant(price) in taken), found)


def rerated(
    said: PriceListed, time: datetime, prices: Sequence[Price], found: Iterable[Price]
) -> dict[str, str]:
    """The reason of each price of `found`, made of `said`, that needed one: it begins early, or in
    the place of one of `prices`, those before it. By the id of the price."""
    if said.rerate is None:
        return {}
    taken = {_instant(price) for price in prices}
    early = time + AHEAD
    return {
        price.price_id: said.rerate
        for price in found
        if price.effective_from < early or _instant(price) in taken
    }


def free_from(begin: datetime, entries: Iterable[PriceEntry], prices: Sequence[Price]) -> datetime:
    """`begin`, or the first of the seconds after it at which those of `entries` that begin at
    `begin`, since nobody said when, could begin with none of `prices` at the same instant."""
    wanted = {(entry.model, entry.scope) for entry in entries if entry.effective_from == begin}
    taken = {price.effective_from for price in prices if (price.model, price.scope) in wanted}
    while begin in taken:
        begin += timedelta(seconds=1)
    return begin


def price_of(entry: PriceEntry, version: int) -> Price | str:
    """The price that `entry` is, or what is wrong with it."""
    if (wrong := _misshapen(entry)) is not None:
        return wrong
    try:
        usual = {
            name: pico_of_unit(name, text, entry.unit) for name, text in entry.per_unit.items()
        }
        bands = tuple(
            PricedBand(
                name=band.name,
                days=tuple(sorted(set(band.days))),
                start=band.start,
                end=band.end,
                pico={n: pico_of_unit(n, text, entry.unit) for n, text in band.per_unit.items()},
            )
            for band in entry.bands
        )
        discount = None if entry.discount is None else percent_parts(entry.discount)
    except AmountError as broken:
        return f"{_named(entry)}: {broken}"
    return Price(
        price_id=entry.price_id,
        model=entry.model,
        version=version,
        currency=entry.currency,
        effective_from=entry.effective_from,
        pico={name: pico for name, pico in usual.items() if name in BUCKETS},
        charges={name: pico for name, pico in usual.items() if name in CHARGES},
        scope=entry.scope,
        discount=discount,
        zone=entry.zone,
        bands=bands,
        unit=entry.unit,
        listed=True,
    )


def percent_parts(text: str) -> int:
    """A discount in hundredths of a percent, from its plain decimal. Raises `AmountError`."""
    whole, _, part = text.partition(".")
    fits = text.isascii() and whole.isdigit() and (part.isdigit() or part == "") and len(part) <= 2
    parts = int(whole) * 100 + int(part.ljust(2, "0")) if fits else -1
    if not 0 <= parts <= PERCENT_PARTS:
        raise AmountError(f"a discount is percent from 0 to 100 with two decimals, not {text!r}")
    return parts


def _misshapen(entry: PriceEntry) -> str | None:
    known = (*BUCKETS, *CHARGES)
    named = [*entry.per_unit, *(name for band in entry.bands for name in band.per_unit)]
    strangers = sorted(set(named) - set(known))
    if strangers:
        return f"{', '.join(strangers)}: no such bucket; it is one of {', '.join(known)}"
    if bool(entry.per_unit or entry.bands) == (entry.discount is not None):
        return f"{_named(entry)} needs prices or a discount, and not both"
    if entry.bands and entry.zone is None:
        return f"{_named(entry)} has bands by the hour and names no zone"
    if not entry.model or "*" in entry.model[:-1]:
        return f"{entry.model!r} is no model and no pattern; a pattern ends with its one *"
    if entry.scope is not None and not entry.scope.startswith(("key/", "project/")):
        return f"{entry.scope!r} is no scope; it is key/ID or project/ID"
    for band in entry.bands:
        if band.start >= band.end or not band.days:
            return f"band {band.name} of {_named(entry)} is empty"
    return _overlapping(entry)


def _overlapping(entry: PriceEntry) -> str | None:
    for day in range(1, 8):
        there = sorted((b.start, b.end, b.name) for b in entry.bands if day in b.days)
        for (_, end, one), (start, _, other) in pairwise(there):
            if start < end:
                return f"bands {one} and {other} of {_named(entry)} overlap on {DAYS[day - 1]}"
    return None


def _too_early(
    entry: PriceEntry, rerate: str | None, time: datetime, closed_until: datetime | None
) -> str | None:
    if closed_until is not None and entry.effective_from < closed_until:
        return (
            f"{_named(entry)} would begin at {_shown(entry.effective_from)}, in a month that "
            f"is closed; it may begin from {_shown(closed_until)} on"
        )
    if rerate is None and entry.effective_from < time + AHEAD:
        return (
            f"{_named(entry)} would begin at {_shown(entry.effective_from)}, which is earlier "
            "than 60 s from now and may price anew what is on a bill; say --rerate with a reason"
        )
    return None


def _shown(instant: datetime) -> str:
    """As it is written in every table and file, in UTC."""
    return instant.isoformat().replace("+00:00", "Z")


def _instant(price: Price) -> tuple[str, bool, str | None, datetime]:
    """What at most one price may stand for, unless a re-rating says so. Of two currencies only one
    could ever hold, so they overlap as well."""
    return price.model, price.is_pattern, price.scope, price.effective_from


def _taken(price: Price) -> str:
    scope = "" if price.scope is None else f" for {price.scope}"
    return (
        f"{price.model}{scope} has a price from {_shown(price.effective_from)} on already; let "
        "this one begin at another instant by --from, or say --rerate with a reason to put it in "
        "that one's place"
    )


def _named(entry: PriceEntry) -> str:
    return entry.model if entry.scope is None else f"{entry.model} for {entry.scope}"
