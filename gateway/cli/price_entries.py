"""Entries of price lists: from words to entries, and from prices back to words.

Pure. Every amount stays a decimal in text until `ledger.amounts` makes whole pico of it.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, Literal

import msgspec

from gateway.setting_values import nearest
from ledger.amounts import decimal_text, pico_of_unit
from ledger.errors import AmountError
from ledger.events import BUCKETS, PriceEntry
from ledger.events.money import Band
from ledger.folds.book import Book
from ledger.folds.price_lists import AHEAD
from ledger.folds.prices import CHARGES, Price

Unit = Literal[1, 1000, 1_000_000]
CURRENCY_DEFAULT: Final = "USD"
UNITS: Final = ("1", "1000", "1000000")
UNIT_DEFAULT: Final[Unit] = 1_000_000
PRICED: Final = (*BUCKETS, *CHARGES)
"""All that can have a price, in the order in which it is shown."""

SIDES: Final = {"in": "_in", "out": "_out"}
"""Short for every bucket whose name ends so."""

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_CURRENCY: Final = re.compile(r"[A-Z]{3}")
_HOURS: Final = re.compile(r"([0-9]{1,2}):([0-9]{2})\s*-\s*([0-9]{1,2}):([0-9]{2})")
_BAND: Final = re.compile(r"([^:]+):([^:0-9]+):([0-9:\s-]+):([A-Za-z_].*)")
DAY_MINUTES: Final = 24 * 60


def parse_currency(text: str) -> str:
    """A currency's three letters. Raises `ValueError` with words."""
    if not _CURRENCY.fullmatch(text.upper()):
        raise ValueError(f"{text!r} is not a currency; write its three letters, such as USD or EUR")
    return text.upper()


def parse_model(text: str) -> str:
    """A model's name, or a pattern that ends with its one `*`. Raises `ValueError` with words."""
    if not text.strip() or not text.isprintable() or text != text.strip():
        raise ValueError(f"{text!r} is not the name of a model; give it as in /v1/models")
    if "*" in text[:-1]:
        raise ValueError(f"{text!r} is no pattern; a pattern ends with its one *, such as llama-*")
    return text


def parse_unit(text: str) -> Unit:
    """How many tokens a price is for. Raises `ValueError` with words."""
    if text not in UNITS:
        raise ValueError(f"{text!r} is no unit; a price is for {', '.join(UNITS)} tokens")
    return _unit(int(text))


def amount(name: str, text: str, unit: int) -> str:
    """`text` if it is a price of `unit` of what `name` names. Raises `ValueError` with words."""
    try:
        pico_of_unit(name, text, unit)
    except AmountError as wrong:
        raise ValueError(f"{name}: {wrong}") from wrong
    return text


def named_prices(given: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Prices by bucket and charge. `in` and `out` stand for what is not named itself.

    Raises `ValueError`, with the nearest name, for one that there is not, and for one given twice.
    """
    prices: dict[str, str] = {}
    sides: dict[str, str] = {}
    for name, text in given:
        known = sides if name in SIDES else prices
        if name not in SIDES and name not in PRICED:
            near = nearest(name, (*PRICED, *SIDES))
            hint = f"did you mean {near}?" if near else f"it is one of {', '.join(PRICED)}"
            raise ValueError(f"there is no bucket {name!r}; {hint}")
        if name in known:
            raise ValueError(f"{name} is given twice")
        known[name] = text
    for side, end in SIDES.items():
        if side in sides:
            for bucket in BUCKETS:
                if bucket.endswith(end):
                    prices.setdefault(bucket, sides[side])
    return {name: prices[name] for name in PRICED if name in prices}


def parse_days(text: str) -> list[int]:
    """Weekdays, 1 is Monday, of `mon-fri`, `sat,sun` or `daily`. Raises `ValueError`."""
    found: set[int] = set()
    for part in (part.strip().lower() for part in text.split(",")):
        if part == "daily":
            found |= set(range(1, 8))
            continue
        first, dash, last = (word.strip() for word in part.partition("-"))
        for word in (first, *((last,) if dash else ())):
            if word not in DAYS:
                near = nearest(word, (*DAYS, "daily"))
                hint = f"did you mean {near}?" if near else "write mon-fri, sat,sun or daily"
                raise ValueError(f"{word!r} is no weekday; {hint}")
        start, end = DAYS.index(first), DAYS.index(last if dash else first)
        found |= {(start + n) % 7 + 1 for n in range((end - start) % 7 + 1)}
    return sorted(found)


def parse_hours(text: str) -> tuple[int, int]:
    """Minutes of the day of `22:00-24:00`; an end before the start is on the next day. Raises
    `ValueError`."""
    match = _HOURS.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} are no hours; write them as 22:00-24:00")
    hours = [int(part) for part in match.groups()]
    start, end = hours[0] * 60 + hours[1], hours[2] * 60 + hours[3]
    if start >= DAY_MINUTES or end > DAY_MINUTES or hours[1] > 59 or hours[3] > 59 or start == end:
        raise ValueError(f"{text!r} are no hours of a day; write them as 22:00-24:00")
    return start, end


def bands_of(name: str, days: str, hours: str, prices: Mapping[str, str]) -> list[Band]:
    """The band of these words; two, if it goes on behind midnight. Raises `ValueError`."""
    if not name.strip() or not name.isprintable():
        raise ValueError(f"{name!r} is no name of a band")
    if not prices:
        raise ValueError(f"band {name} has no price; write uncached_in=0.05 or another bucket")
    weekdays, (start, end) = parse_days(days), parse_hours(hours)

    def band(on: list[int], first: int, after: int) -> Band:
        return Band(name=name, days=on, start=first, end=after, per_unit=dict(prices))

    if end > start:
        return [band(weekdays, start, end)]
    following = sorted(day % 7 + 1 for day in weekdays)
    parts = [band(weekdays, start, DAY_MINUTES)]
    return [*parts, band(following, 0, end)] if end else parts


def parse_band(text: str) -> tuple[Band, ...]:
    """What `--band` gives: `night:mon-fri:22:00-06:00:in=0.05,out=0.2`. Raises `ValueError`."""
    match = _BAND.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"{text!r} is no band; write NAME:DAYS:HOURS:PRICES, such as "
            "night:mon-fri:22:00-06:00:in=0.05,out=0.2"
        )
    given = []
    for part in match[4].split(","):
        name, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"{part!r} is no price of a band; write uncached_in=0.05")
        given.append((name.strip(), value.strip()))
    return tuple(bands_of(match[1].strip(), match[2], match[3], named_prices(given)))


def begin_of(begin: datetime | None, rerate: str | None, now: datetime) -> datetime:
    """From when on a price holds if nobody said: from now on if it re-rates, else from the first
    whole second at which no minute is shortened."""
    if begin is not None:
        return begin
    if rerate is not None:
        return now
    return (now + AHEAD + timedelta(seconds=1)).replace(microsecond=0)


def standing_for(book: Book, scope: str | None, model: str, at: datetime) -> Price | None:
    """The price of exactly that scope and model that holds at an instant."""
    begun = [
        price
        for price in book.prices
        if (price.scope, price.model) == (scope, model) and price.effective_from <= at
    ]
    return max(begun, default=None, key=lambda price: (price.effective_from, price.version))


def per_unit(pico: Mapping[str, int], unit: int) -> dict[str, str]:
    """The exact decimals of `pico` for `unit` tokens, one request or attempt, or one second."""
    times = {"request": 1, "failed_attempt": 1, "gpu_second": 1_000_000}
    return {
        name: decimal_text(pico[name] * times.get(name, unit)) for name in PRICED if name in pico
    }


def entry_of(price: Price) -> PriceEntry:
    """The entry that gives this price again."""
    return PriceEntry(
        price_id=price.price_id,
        model=price.model,
        currency=price.currency,
        effective_from=price.effective_from,
        unit=_unit(price.unit),
        per_unit=per_unit({**price.pico, **price.charges}, price.unit),
        scope=price.scope,
        discount=None if price.discount is None else percent_text(price.discount),
        zone=price.zone,
        bands=[
            Band(
                name=band.name,
                days=list(band.days),
                start=band.start,
                end=band.end,
                per_unit=per_unit(band.pico, price.unit),
            )
            for band in price.bands
        ],
    )


def set_entry(
    book: Book, given: PriceEntry, currency: str | None, *, bands_given: bool
) -> PriceEntry:
    """What `prices set` publishes: `given`, and what it does not name from the price that the same
    model and scope then has, unless the currency changes. Raises `ValueError` with words.
    """
    before = standing_for(book, given.scope, given.model, given.effective_from)
    usual = before.currency if before is not None else CURRENCY_DEFAULT
    given = msgspec.structs.replace(given, currency=currency or usual)
    if before is None or given.discount is not None or before.discount is not None:
        return given
    if before.currency != given.currency:
        return given
    old = {**before.pico, **before.charges}
    kept = per_unit(old, given.unit)
    bands = given.bands
    if not bands_given:
        bands = [
            msgspec.structs.replace(band, per_unit=per_unit(was.pico, given.unit))
            for band, was in zip(entry_of(before).bands, before.bands, strict=True)
        ]
    prices = {**kept, **given.per_unit}
    entry = msgspec.structs.replace(
        given,
        per_unit={name: prices[name] for name in PRICED if name in prices},
        bands=bands,
        zone=given.zone or (before.zone if bands else None),
    )
    for name, text in [*entry.per_unit.items(), *(p for b in bands for p in b.per_unit.items())]:
        amount(name, text, entry.unit)
    return entry


def bands_text(bands: Sequence[Band]) -> str:
    """Bands as `--band` takes them, with `; ` between."""
    return "; ".join(
        f"{band.name}:{days_text(band.days)}:{clock_text(band.start)}-{clock_text(band.end)}:"
        + ",".join(f"{name}={text}" for name, text in band.per_unit.items())
        for band in bands
    )


def percent_text(parts: int) -> str:
    """A discount in hundredths of a percent as a decimal of percent."""
    return decimal_text(parts * 10**10)


def clock_text(minute: int) -> str:
    """A minute of the day as a clock shows it."""
    return f"{minute // 60:02d}:{minute % 60:02d}"


def days_text(days: Sequence[int]) -> str:
    """Weekdays as they are written: `mon-fri`, `sat,sun`, `daily`."""
    if len(days) == 7:
        return "daily"
    runs: list[list[int]] = []
    for day in sorted(days):
        if runs and runs[-1][-1] == day - 1:
            runs[-1].append(day)
        else:
            runs.append([day])
    return ",".join(
        DAYS[run[0] - 1] if len(run) == 1 else f"{DAYS[run[0] - 1]}-{DAYS[run[-1] - 1]}"
        for run in runs
    )


def _unit(unit: int) -> Unit:
    return 1 if unit == 1 else 1000 if unit == 1000 else 1_000_000
