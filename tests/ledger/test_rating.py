"""Which price holds: by scope, model, pattern, time, band and discount, whatever order it is in."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.clock import from_us, to_us
from ledger.events import PriceEntry
from ledger.events.money import Band
from ledger.folds.cost import cost_of
from ledger.folds.money import Member
from ledger.folds.prices import Price
from ledger.folds.rating import Rate, Rated, Sheet, split
from ledger.folds.usage import ZERO, Totals
from ledger.sql.rated import local_time
from ledger.zones import band_edges
from tests.support.prices import (
    KEYS,
    MODELS,
    PROJECTS,
    ZONES,
    entries,
    entry,
    made,
    price_at,
    rated_by_hand,
    wall,
)

FIRST = datetime(2026, 10, 24, 18, tzinfo=UTC)
"""The day before clocks are set back in Europe, and a week before they are in Havana."""

HOURS = 10 * 24
instants = st.integers(0, HOURS * 60).map(lambda n: FIRST + timedelta(minutes=n, microseconds=-1))
members = st.lists(
    st.builds(Member, since=instants, project_id=st.none() | st.sampled_from(PROJECTS)),
    max_size=3,
).map(lambda had: tuple(sorted(had, key=lambda one: one.since)))


def rate(sheet: Sheet, at: datetime, key_id: str = "key-1", model: str = "m") -> Rate | None:
    return sheet.rate(key_id, model, to_us(at), local_time)


def price_id(found: Rate | None) -> str | None:
    return None if found is None else found.price.price_id


@settings(max_examples=60)
@given(entries(FIRST, HOURS), members, st.data())
def test_the_price_is_that_of_the_rule_in_any_order_of_the_book(
    listed: list[PriceEntry], had: tuple[Member, ...], data: st.DataObject
) -> None:
    prices = made(listed)
    shuffled = data.draw(st.permutations(prices))
    sheets = [Sheet(some, {"key-1": had}) for some in (prices, shuffled)]
    for at in data.draw(st.lists(instants, min_size=1, max_size=8)):
        model, key_id = data.draw(st.sampled_from(MODELS)), data.draw(st.sampled_from(KEYS))
        own = had if key_id == "key-1" else ()
        wanted = rated_by_hand(prices, own, key_id, model, at)
        for sheet in sheets:
            found = rate(sheet, at, key_id, model)
            if wanted is None:
                assert found is None
                continue
            assert found is not None
            off = None if found.discount is None else found.discount.price_id
            said = (found.price.price_id, off, dict(found.list_pico), dict(found.pico))
            assert said == wanted


@settings(max_examples=30)
@given(entries(FIRST, HOURS), members, st.data())
def test_between_two_cuts_and_two_edges_of_bands_a_rate_stays(
    listed: list[PriceEntry], had: tuple[Member, ...], data: st.DataObject
) -> None:
    """What the bill relies on: no change of a rate is outside of what `cuts` and bands tell."""
    sheet = Sheet(made(listed), {"key-1": had})
    first, after = to_us(FIRST), to_us(FIRST + timedelta(hours=HOURS))
    cuts = set(sheet.cuts(first, after))
    for price in sheet.standing(first, after):
        if price.zone is not None:
            cuts |= set(band_edges(price.zone, price.bands, first, after))
    edges = [first, *sorted(cuts), after]
    number = data.draw(st.integers(0, len(edges) - 2))
    start, end = edges[number], edges[number + 1]
    model, key_id = data.draw(st.sampled_from(MODELS)), data.draw(st.sampled_from(KEYS))
    inside = data.draw(st.integers(start, end - 1))
    assert rate(sheet, from_us(inside), key_id, model) is rate(sheet, from_us(start), key_id, model)


@given(st.data())
def test_single_prices_of_old_hold_as_they_always_did(data: st.DataObject) -> None:
    models = st.sampled_from(("m", "other", "*", "m*"))
    prices, versions = [], dict[str, int]()
    for number in range(data.draw(st.integers(0, 6))):
        model = data.draw(models)
        versions[model] = versions.get(model, 0) + 1
        prices.append(
            Price(
                price_id=f"p{number}",
                model=model,
                version=versions[model],
                currency="USD",
                effective_from=data.draw(instants),
                pico={},
            )
        )
    sheet = Sheet(data.draw(st.permutations(prices)))
    at, model = data.draw(instants), data.draw(st.sampled_from(("m", "other", "m*", "mm")))
    old = price_at(prices, model, at)
    assert price_id(rate(sheet, at, model=model)) == (None if old is None else old.price_id)


def test_the_order_of_preference() -> None:
    book = [
        entry("all", FIRST, "*", per_unit={"other_out": "1"}),
        entry("family", FIRST, "llama-*", per_unit={"other_out": "1"}),
        entry("branch", FIRST, "llama-3-*", per_unit={"other_out": "1"}),
        entry("model", FIRST, "llama-3-8b", per_unit={"other_out": "1"}),
        entry("project", FIRST, "*", scope="project/prj-1", per_unit={"other_out": "1"}),
        entry("key", FIRST, "*", scope="key/key-2", per_unit={"other_out": "1"}),
    ]
    had = (Member(since=FIRST + timedelta(hours=1), project_id="prj-1"),)
    sheet = Sheet(made(book), {"key-1": had, "key-2": had})
    later = FIRST + timedelta(hours=1)
    before = later - timedelta(microseconds=1)
    assert [price_id(rate(sheet, before, model=m)) for m in ("qwen", "llama-2", *MODELS[:2])] == [
        "all",
        "family",
        "model",
        "branch",
    ]
    assert price_id(rate(sheet, later, model="llama-3-8b")) == "project"
    assert price_id(rate(sheet, later, "key-2", "llama-3-8b")) == "key"
    assert rate(sheet, FIRST - timedelta(microseconds=1), "key-2", "qwen") is None


def test_a_discount_is_off_the_price_below_it_and_rounds_a_unit_once() -> None:
    book = [
        entry("usual", FIRST, "*", per_unit={"other_out": "0.000005", "request": "0.01"}),
        entry("off", FIRST, "*", scope="key/key-1", discount="50"),
        entry("more", FIRST, "m", scope="key/key-1", discount="90"),
        entry("new", FIRST + timedelta(hours=1), "*", per_unit={"other_out": "0.000003"}),
    ]
    sheet = Sheet(made(book))
    found = rate(sheet, FIRST, model="other")
    assert found is not None and found.name == ("usual", "off", None)
    assert (found.list_pico["other_out"], found.pico["other_out"]) == (5, 2)  # 2.5 to even
    assert found.pico["request"] == 5_000_000_000
    # Discounts do not add up: the best one alone is taken off.
    best = rate(sheet, FIRST)
    assert best is not None and (best.name, best.pico["other_out"]) == (("usual", "more", None), 0)
    later = rate(sheet, FIRST + timedelta(hours=1), model="other")
    assert later is not None and (later.name[0], later.pico["other_out"]) == ("new", 2)  # 1.5
    assert "request" not in later.pico
    alone = Sheet(made([entry("off", FIRST, "*", discount="50")]))
    assert rate(alone, FIRST) is None


@settings(max_examples=40)
@given(st.sampled_from(ZONES), st.integers(0, 366 * 24 * 4), st.integers(0, 23))
def test_a_band_is_told_by_the_clock_of_its_zone(zone: str, quarter: int, hour: int) -> None:
    """Also where that clock skips an hour, or shows one twice."""
    start = hour * 60
    prices = {"other_out": "9"}
    band = Band(name="b", days=[1, 3, 7], start=start, end=start + 45, per_unit=prices)
    listed = [
        entry("p", FIRST, "*", per_unit={"other_out": "1"}, zone=zone, bands=[band]),
    ]
    at = FIRST + timedelta(minutes=15 * quarter)
    weekday, minute = wall(zone, to_us(at))
    inside = weekday in (1, 3, 7) and band.start <= minute < band.end
    found = rate(Sheet(made(listed)), at)
    assert found is not None
    assert (found.band, found.pico["other_out"]) == (
        ("b", 9_000_000) if inside else (None, 1_000_000)
    )


def test_two_bands_of_one_name_with_other_prices_are_two_rates() -> None:
    def band(start: int, price: str) -> Band:
        return Band(
            name="night",
            days=[1, 2, 3, 4, 5, 6, 7],
            start=start,
            end=start + 60,
            per_unit={"other_out": price},
        )

    two = [band(0, "1"), band(60, "2"), band(120, "1")]
    listed = [entry("p", FIRST, "*", per_unit={"other_out": "3"}, zone="UTC", bands=two)]
    sheet = Sheet(made(listed))
    midnight = FIRST.replace(hour=0) + timedelta(days=1)
    found = [rate(sheet, midnight + timedelta(hours=n)) for n in range(4)]
    assert [one.pico["other_out"] for one in found if one is not None] == [
        1_000_000,
        2_000_000,
        1_000_000,
        3_000_000,
    ]
    # A line is told apart by this name, so no name stands for two prices.
    names = {one.name: one.pico["other_out"] for one in found if one is not None}
    assert all(one is None or names[one.name] == one.pico["other_out"] for one in found)


def test_what_has_no_price_stands_beside_the_rest() -> None:
    sheet = Sheet(made([entry("p", FIRST, "*", per_unit={"uncached_in": "1", "request": "2"})]))
    whole = Rated(
        key_id="k",
        project_id=None,
        model="m",
        basis="reported",
        start_us=to_us(FIRST),
        totals=Totals(3, (10, 0, 0, 0, 7), (3, 3, 0, 0, 2)),
        failed_attempts=1,
        busy_us=5,
        rate=rate(sheet, FIRST),
    )
    priced, bare = split(whole)
    assert priced.totals.plus(bare.totals) == whole.totals
    assert (bare.totals.requests, bare.totals.tokens) == (0, (0, 0, 0, 0, 7))
    assert cost_of(priced.used, priced.rate).pico == 10 * 1_000_000 + 3 * 2 * 10**12
    cost = cost_of(bare.used, bare.rate)
    assert (cost.pico, cost.unpriced) == (None, ("other_out",))
    assert split(priced) == (priced,) and split(bare) == (bare,)


@pytest.mark.parametrize("basis", ["reported", "none"])
def test_of_what_nobody_knows_nothing_is_charged(basis: str) -> None:
    charges = {"uncached_in": "1", "request": "1", "failed_attempt": "1", "gpu_second": "1"}
    sheet = Sheet(made([entry("p", FIRST, "*", per_unit=charges)]))
    one = Rated(
        key_id="k",
        project_id=None,
        model="m",
        basis=basis,
        start_us=to_us(FIRST),
        totals=Totals(1, ZERO.tokens, ZERO.known),
        failed_attempts=2,
        busy_us=1_500_000,
        rate=rate(sheet, FIRST),
    )
    cost = cost_of(one.used, one.rate)
    wanted = None if basis == "none" else (10**12 + 2 * 10**12 + 1_500_000 * 10**6)
    assert cost.pico == wanted
