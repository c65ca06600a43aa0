"""The bill: exact money, priced by the time of acceptance, in UTC months that are half-open."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.clock import from_us
from ledger.errors import BadQuery
from ledger.events import BUCKETS, Draft, Usage
from ledger.sql.bill import GROUPS, BillLine, bill
from ledger.sql.names import erase_name, names_of, set_name
from ledger.sql.session import Ledger
from ledger.zones import month_span
from tests.ledger.ledgers import Feeder, scribed
from tests.support import events as say

HOUR = datetime(2026, 11, 3, 10, tzinfo=UTC)


def billed(ledger: Ledger, drafts: Sequence[Draft], prices: Sequence[Draft] = ()) -> None:
    """Write `prices` to the registry and `drafts` as one gateway."""
    for number, draft in enumerate(prices):
        Feeder(ledger, f"registry/{number}").feed(scribed([draft], f"/cli/{number}"))
    Feeder(ledger).feed(scribed(drafts))


def lines(
    ledger: Ledger, month: str | None = "2026-11", by: Sequence[str] = ("key", "model")
) -> list[BillLine]:
    with ledger.read() as read:
        return bill(read, month, by)


def test_a_line_is_exact(ledger: Ledger) -> None:
    usage = Usage(uncached_in=3, cached_in=10**12, cache_write_in=0, reasoning_out=1, other_out=7)
    prices = {"uncached_in": "0.15", "cached_in": "0.000001", "reasoning_out": "1000000"}
    billed(
        ledger,
        [say.finished("r1", usage=usage)],
        [say.price("p1", {**prices, "other_out": "0.000003"}, start=say.after(-1))],
    )
    (line,) = lines(ledger)
    # For a million: 3 x 0.15 + 10^12 x 0.000001 + 1 x 1000000 + 7 x 0.000003
    assert line.cost == "2.000000450021"
    assert (line.currency, line.unpriced, line.cached_in) == ("USD", (), 10**12)


def test_unknown_is_null_and_zero_is_zero(ledger: Ledger) -> None:
    drafts = [
        say.finished("r1", usage=Usage(other_out=5), basis="counted"),
        say.finished("r2", usage=Usage(other_out=0), basis="counted"),
        say.finished("r3", usage=Usage(), basis="none", outcome="backend_lost"),
    ]
    billed(ledger, drafts, [say.price("p1", dict.fromkeys(BUCKETS, "1"), start=say.after(-1))])
    counted, none = lines(ledger)
    assert (counted.basis, counted.uncached_in, counted.other_out) == ("counted", None, 5)
    assert (none.basis, none.other_out, none.requests, none.cost) == ("none", None, 1, None)
    assert counted.lacks_price is False and none.lacks_price is False


def test_without_a_price_the_cost_is_null_and_says_why(ledger: Ledger) -> None:
    billed(ledger, say.life("r1"))
    (line,) = lines(ledger)
    assert (line.cost, line.currency) == (None, None)
    assert line.unpriced == ("uncached_in", "other_out")


def test_a_bucket_without_a_price_is_never_taken_as_free(ledger: Ledger) -> None:
    billed(ledger, say.life("r1"), [say.price("p1", {"uncached_in": "1"}, start=say.after(-1))])
    priced, bare = sorted(lines(ledger), key=lambda line: line.cost is None)
    assert (bare.cost, bare.currency, bare.unpriced) == (None, "USD", ("other_out",))
    assert (bare.uncached_in, bare.other_out, bare.requests, bare.lacks_price) == (None, 4, 0, True)
    assert (priced.uncached_in, priced.other_out, priced.cost) == (12, None, "0.000012")
    assert (priced.requests, priced.unpriced) == (1, ())


def test_a_price_begins_at_an_instant(ledger: Ledger) -> None:
    """One microsecond decides, in the middle of an hour, and nothing before it is priced anew."""
    change = HOUR + timedelta(minutes=20)
    microsecond = timedelta(microseconds=1)
    drafts = [
        say.finished("before", change - microsecond),
        say.finished("at", change),
        say.finished("hour before", HOUR - microsecond),
        say.finished("hour after", HOUR + timedelta(hours=1)),
    ]
    prices = [
        say.price(
            "p1",
            {"uncached_in": "1", "other_out": "0", "cached_in": "0"},
            start=HOUR - timedelta(days=60),
        ),
        say.price(
            "p2", {"uncached_in": "100", "other_out": "0", "cached_in": "0"}, start=change, base=1
        ),
    ]
    billed(ledger, drafts, prices)
    # Each price has a line of its own: 2 x 12 tokens at 1, and 2 x 12 tokens at 100 for a million.
    found = [(line.cost, line.requests, line.price_version) for line in lines(ledger)]
    assert found == [("0.000024", 2, 1), ("0.0024", 2, 2)]


def test_several_changes_within_one_hour_and_at_its_edge(ledger: Ledger) -> None:
    starts = [HOUR, HOUR + timedelta(minutes=10), HOUR + timedelta(minutes=10, seconds=1)]
    prices = [
        say.price(f"p{n}", {"uncached_in": str(10**n), "other_out": "0"}, start=start, base=n)
        for n, start in enumerate(starts)
    ]
    usage = Usage(uncached_in=1)
    drafts = [say.finished(f"r{n}", start, usage=usage) for n, start in enumerate(starts)]
    drafts.append(say.finished("late", HOUR + timedelta(minutes=59), usage=usage))
    billed(ledger, drafts, prices)
    found = {line.price_id: (line.cost, line.requests) for line in lines(ledger)}
    assert found == {"p0": ("0.000001", 1), "p1": ("0.00001", 1), "p2": ("0.0002", 2)}


def test_a_models_own_price_comes_before_that_of_all_models(ledger: Ledger) -> None:
    drafts = [say.finished("r1", model="m"), say.finished("r2", model="other")]
    prices = [
        say.price("own", {"uncached_in": "1", "other_out": "1"}, "m", say.after(-9)),
        say.price("all", {"uncached_in": "2", "other_out": "2"}, "*", say.after(-5)),
    ]
    billed(ledger, drafts, prices)
    assert [(line.model, line.cost) for line in lines(ledger)] == [
        ("m", "0.000016"),
        ("other", "0.000032"),
    ]


def test_of_two_prices_for_one_instant_the_later_version_stands(ledger: Ledger) -> None:
    start = say.after(-5)
    prices = [
        say.price("typo", {"uncached_in": "100", "other_out": "100"}, start=start),
        say.price("right", {"uncached_in": "1", "other_out": "1"}, start=start, base=1),
    ]
    billed(ledger, [say.finished("r1")], prices)
    assert lines(ledger)[0].cost == "0.000016"


def test_currencies_stand_on_lines_of_their_own(ledger: Ledger) -> None:
    full = {"uncached_in": "1", "other_out": "1"}
    prices = [
        say.price("usd", full, start=say.after(-5)),
        say.price("eur", full, start=say.after(60), base=1, currency="EUR"),
    ]
    billed(ledger, [say.finished("r1"), say.finished("r2", say.after(61))], prices)
    assert [(line.currency, line.cost) for line in lines(ledger)] == [
        ("EUR", "0.000016"),
        ("USD", "0.000016"),
    ]


def test_priced_and_unpriced_usage_are_not_mixed(ledger: Ledger) -> None:
    price = say.price("p1", {"uncached_in": "1", "other_out": "1"}, start=say.after(60))
    billed(ledger, [say.finished("r1"), say.finished("r2", say.after(61))], [price])
    assert [(line.cost, line.requests) for line in lines(ledger)] == [(None, 1), ("0.000016", 1)]


def test_a_month_is_half_open_and_utc(ledger: Ledger) -> None:
    first, after = (from_us(us) for us in month_span("2026-12", "UTC"))
    assert (first, after) == (
        datetime(2026, 12, 1, tzinfo=UTC),
        datetime(2027, 1, 1, tzinfo=UTC),
    )
    microsecond = timedelta(microseconds=1)
    instants = {"last of november": first - microsecond, "first": first}
    instants |= {"last": after - microsecond, "new year": after}
    billed(ledger, [say.finished(name, at) for name, at in instants.items()])
    assert [line.requests for line in lines(ledger, "2026-12")] == [2]
    assert [line.requests for line in lines(ledger, "2026-11")] == [1]
    assert [line.requests for line in lines(ledger, None)] == [4]
    assert lines(ledger, "2020-01") == []


def test_a_day_is_the_utc_day_of_acceptance(ledger: Ledger) -> None:
    midnight = datetime(2026, 11, 4, tzinfo=UTC)
    drafts = [
        say.finished("r1", midnight - timedelta(microseconds=1), ended=midnight),
        say.finished("r2", midnight),
    ]
    billed(ledger, drafts)
    days = [(line.day, line.key_id, line.requests) for line in lines(ledger, by=("day",))]
    assert days == [("2026-11-03", None, 1), ("2026-11-04", None, 1)]


def test_open_requests_are_on_no_bill(ledger: Ledger) -> None:
    billed(ledger, [say.accepted("r1"), say.delivered("r1"), say.rejected("r2")])
    assert lines(ledger, None) == []


def test_lines_name_their_key_until_the_name_is_erased(ledger: Ledger) -> None:
    billed(ledger, say.life("r1"))
    with ledger.write() as tx:
        set_name(tx, "key", "key-1", "Ada")
        set_name(tx, "key", "key-1", "Ada Lovelace")
        set_name(tx, "backend", "key-1", "no key at all")
    assert [(line.key_id, line.name) for line in lines(ledger)] == [("key-1", "Ada Lovelace")]
    assert lines(ledger, by=("model",))[0].name is None
    with ledger.write() as tx:
        assert erase_name(tx, "key", "key-1")
        assert not erase_name(tx, "key", "key-1")
        assert names_of(tx, "key") == {}
    assert [(line.key_id, line.name) for line in lines(ledger)] == [("key-1", None)]


def test_coarse_lines_are_the_sums_of_fine_ones(ledger: Ledger) -> None:
    """Even where a price lacks a bucket that only some days used: it stands on its own line."""
    drafts = [
        say.finished("r1", HOUR, usage=Usage(uncached_in=10)),
        say.finished("r2", HOUR + timedelta(days=1), usage=Usage(uncached_in=5, cached_in=1)),
        say.finished("r3", HOUR + timedelta(days=2), "key-2", usage=Usage(uncached_in=1)),
    ]
    billed(ledger, drafts, [say.price("p1", {"uncached_in": "1"}, start=HOUR)])
    totals = {by: _totals(lines(ledger, by=by)) for by in ((), ("day",), ("key",), GROUPS)}
    assert set(totals.values()) == {(3, 16, Decimal("0.000016"), 1)}


def _totals(found: Sequence[BillLine]) -> tuple[int, int, Decimal, int]:
    cost = sum((Decimal(line.cost) for line in found if line.cost is not None), Decimal(0))
    unpriced = sum(line.cached_in or 0 for line in found if line.cost is None)
    return (
        sum(line.requests for line in found),
        sum(line.uncached_in or 0 for line in found),
        cost,
        unpriced,
    )


@pytest.mark.parametrize("month", ["2026-13", "2026-00", "26-11", "2026-1", "2026", "x", "²026-11"])
def test_what_is_no_month_is_refused(month: str) -> None:
    with pytest.raises(BadQuery, match="such as 2026-11"):
        month_span(month, "UTC")


@given(st.text(max_size=9))
def test_any_text_is_a_month_or_refused(text: str) -> None:
    try:
        first, after = (from_us(us) for us in month_span(text, "UTC"))
    except BadQuery:
        return
    assert f"{first:%Y-%m}" == text and first < after


def test_what_is_no_group_is_refused(ledger: Ledger) -> None:
    with pytest.raises(BadQuery, match="not by week"):
        lines(ledger, by=("key", "week"))
