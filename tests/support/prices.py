"""Price lists for tests: entries, whole random price books, and the rule of rating once more."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

from hypothesis import strategies as st

from ledger.events import (
    BUCKETS,
    Draft,
    KeyAssigned,
    OrganizationSet,
    PriceEntry,
    PriceListed,
    ProjectSet,
)
from ledger.events.money import Band
from ledger.folds.money import Member
from ledger.folds.price_lists import price_of
from ledger.folds.prices import CHARGES, Price

ZONES = (
    "UTC",
    "Europe/Berlin",
    "Asia/Kolkata",
    "Australia/Lord_Howe",
    "America/Havana",
    "Pacific/Apia",
    "Asia/Kathmandu",
)
KEYS = ("key-1", "key-2")
PROJECTS = ("prj-1", "prj-2")
MODELS = ("llama-3-8b", "llama-3-70b", "qwen")
PATTERNS = ("*", "llama-*", "llama-3-*", *MODELS)
SCOPES = (None, *(f"key/{key}" for key in KEYS), *(f"project/{one}" for one in PROJECTS))
AMOUNTS = ("0", "0.000001", "0.15", "2.5", "1000000")


def entry(price_id: str, begin: datetime, model: str = "m", **more: object) -> PriceEntry:
    """An entry of a price list, in USD for a million tokens if nothing else is said."""
    values: dict[str, object] = {
        "price_id": price_id,
        "model": model,
        "currency": "USD",
        "effective_from": begin,
    }
    return PriceEntry(**(values | more))  # type: ignore[arg-type]


def listing(entries: Sequence[PriceEntry], at: datetime, base: int = 0) -> Draft:
    """All of `entries` at once, told at `at`, whenever they begin."""
    payload = PriceListed(base=base, entries=list(entries), rerate="a test")
    return Draft(f"list/{base}/{entries[0].price_id}", "prices", at, payload)


def made(entries: Sequence[PriceEntry]) -> list[Price]:
    """The prices of these entries, their versions in the order of the list."""
    prices = []
    for number, one in enumerate(entries, 1):
        price = price_of(one, number)
        assert isinstance(price, Price), price
        prices.append(price)
    return prices


def price_at(prices: Sequence[Price], model: str, moment: datetime) -> Price | None:
    """The price of `model` at `moment` while there were single prices alone: the latest that had
    begun, its own before that of `*`; of two for one instant that of the higher version."""
    for name in (model, "*"):
        begun = [one for one in prices if one.model == name and one.effective_from <= moment]
        if begun:
            return max(begun, key=lambda one: (one.effective_from, one.version))
    return None


def projects(at: datetime) -> list[Draft]:
    """One organization with the two projects of `PROJECTS`."""
    organization = OrganizationSet(organization_id="org-1", base=0, version=1)
    drafts = [Draft("org-1/v1", "org-1", at, organization)]
    for one in PROJECTS:
        said = ProjectSet(project_id=one, organization_id="org-1", base=0, version=1)
        drafts.append(Draft(f"{one}/v1", one, at, said))
    return drafts


def assigned(key_id: str, project_id: str | None, at: datetime, base: int = 0) -> Draft:
    """From `at` on the key belongs to the project."""
    said = KeyAssigned(key_id=key_id, project_id=project_id, base=base, version=base + 1)
    return Draft(f"{key_id}/project/{base + 1}", key_id, at, said)


@st.composite
def bands(draw: st.DrawFn) -> list[Band]:
    """Bands of a week that do not overlap: some hours of some days, each for itself."""
    edges = draw(st.lists(st.integers(0, 96), min_size=2, max_size=5, unique=True))
    minutes = [15 * edge for edge in sorted(edges)]
    found = []
    for number, (start, end) in enumerate(pairwise(minutes)):
        days = sorted(draw(st.sets(st.integers(1, 7), min_size=1, max_size=7)))
        per_unit = draw(st.dictionaries(st.sampled_from(BUCKETS), st.sampled_from(AMOUNTS)))
        name = draw(st.sampled_from(("night", f"band{number}")))
        if per_unit:
            found.append(Band(name=name, days=days, start=start, end=end, per_unit=per_unit))
    return found


@st.composite
def entries(draw: st.DrawFn, first: datetime, hours: int, charges: bool = True) -> list[PriceEntry]:
    """A price book: every kind of entry, of which no two stand for one instant."""
    found: dict[tuple[str, str | None, datetime], PriceEntry] = {}
    for number in range(draw(st.integers(1, 6))):
        model, scope = draw(st.sampled_from(PATTERNS)), draw(st.sampled_from(SCOPES))
        begin = first + timedelta(minutes=draw(st.integers(-60, hours * 60)))
        shared = {"scope": scope, "unit": draw(st.sampled_from((1, 1000, 1_000_000)))}
        if draw(st.integers(0, 4)) == 0:
            off = draw(st.sampled_from(("0", "10", "33.33", "100")))
            made_ = entry(f"p{number}", begin, model, discount=off, **shared)
        else:
            names = (*BUCKETS, *CHARGES) if charges else BUCKETS
            prices = draw(st.dictionaries(st.sampled_from(names), st.sampled_from(AMOUNTS)))
            own = draw(bands())
            currency = draw(st.sampled_from(("USD", "EUR")))
            made_ = entry(
                f"p{number}",
                begin,
                model,
                per_unit=prices if prices or own else {"other_out": "1"},
                bands=own,
                zone=draw(st.sampled_from(ZONES)),
                currency=currency,
                **shared,
            )
        found[model, scope, begin] = made_
    return list(found.values())


def wall(zone: str, us: int) -> tuple[int, int]:
    """What a clock in `zone` shows, by the standard library alone."""
    here = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)).astimezone(
        ZoneInfo(zone)
    )
    return here.isoweekday(), here.hour * 60 + here.minute


def rated_by_hand(
    prices: Sequence[Price],
    members: Sequence[Member],
    key_id: str,
    model: str,
    at: datetime,
) -> tuple[str, str | None, dict[str, int], dict[str, int]] | None:
    """The id of the price, that of the discount, and the list and net price of each unit: by
    looking at every price, with no index and no memory."""
    project = None
    for one in members:
        if one.since <= at:
            project = one.project_id
    scopes = [f"key/{key_id}", None if project is None else f"project/{project}", None]

    def rank(price: Price) -> tuple[object, ...] | None:
        if price.effective_from > at or price.scope not in scopes:
            return None
        scope = 0 if price.scope is None else 2 if price.scope.startswith("key/") else 1
        wide = price.model.endswith("*") and (price.listed or price.model == "*")
        if (wide and not model.startswith(price.model[:-1])) or (not wide and price.model != model):
            return None
        return scope, not wide, len(price.model), price.effective_from, price.version

    there = sorted(
        ((ranked, price) for price in prices if (ranked := rank(price)) is not None),
        key=lambda pair: pair[0],
        reverse=True,
    )
    if not there:
        return None
    discount = there[0][1] if there[0][1].discount is not None else None
    usual = next((price for _, price in there if price.discount is None), None)
    if usual is None:
        return None
    pico = {**usual.pico, **usual.charges}
    if usual.zone is not None:
        us = (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
        weekday, minute = wall(usual.zone, us)
        for band in usual.bands:
            if weekday in band.days and band.start <= minute < band.end:
                pico |= band.pico
    parts = 10_000 - (discount.discount or 0) if discount is not None else 10_000
    net = {name: _half_even(unit * parts) for name, unit in pico.items()}
    return usual.price_id, None if discount is None else discount.price_id, pico, net


def _half_even(number: int) -> int:
    whole, rest = divmod(number, 10_000)
    return whole + (rest > 5_000 or (rest == 5_000 and whole % 2))
