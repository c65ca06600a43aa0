"""Sums that must agree whoever makes them, where tokens lack a price, and where prices meet."""

from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

from ledger.events import BooksSet, Draft, PriceListed
from ledger.events.money import PriceEntry, Rounding
from ledger.export.facts import month_in
from ledger.export.statement import statements
from ledger.folds.cost import cost_of_rated
from ledger.folds.price_lists import listed
from ledger.folds.rating import Rated
from ledger.sql.accounts import standings
from ledger.sql.adjust import corrections_of_all_time
from ledger.sql.bill import GROUPS, bill
from ledger.sql.charges import charges
from ledger.sql.costs import costs
from ledger.sql.rated import month_lines, rated
from ledger.sql.replay import load_book
from ledger.sql.session import Ledger
from ledger.zones import month_span
from tests.ledger.closings import close
from tests.ledger.ledgers import Feeder, scribed
from tests.ledger.month_world import END, NOVEMBER, OTHER, RUNNER, Gateway
from tests.support import events as say
from tests.support.events import Scribe
from tests.support.prices import assigned, entry, listing, projects

EARLY = NOVEMBER - timedelta(days=40)
DECEMBER = datetime(2026, 12, 9, 8, 20, tzinfo=UTC)
MONTHS = ("2026-11", "2026-12", "2027-01")
EVERY = dict.fromkeys(("uncached_in", "cached_in", "cache_write_in", "reasoning_out"), "2")


def priced(ledger: Ledger, *entries: PriceEntry) -> None:
    drafts = [*projects(EARLY), listing(entries, EARLY), assigned("key-1", "prj-1", EARLY)]
    drafts.append(assigned("key-2", "prj-1", EARLY))
    Feeder(ledger, "registry").feed(scribed(drafts, "/cli/1"))


def pico(lines: list[Rated]) -> int:
    return sum(cost_of_rated(one).pico or 0 for one in lines)


def test_every_sum_agrees_where_a_late_end_has_tokens_without_a_price(ledger: Ledger) -> None:
    """The priced part of what is taken back counts although the rest of it has no price."""
    priced(ledger, entry("p", EARLY, "m", per_unit={"uncached_in": "2"}))
    gateway, feeder = Gateway(), Feeder(ledger)
    feeder.feed(gateway.marks(NOVEMBER))
    feeder.feed(gateway.says(say.accepted("r1", NOVEMBER)))
    feeder.feed([Scribe(RUNNER).write(say.abandoned("r1", NOVEMBER))])
    feeder.feed(gateway.marks(END))
    assert close(ledger).totals == {"USD": "0.000024"}
    feeder.feed(gateway.says(say.finished("r1", NOVEMBER, usage=say.tokens(20, 9))))
    with ledger.read() as read:
        book = load_book(read)
        for month, wanted in zip(MONTHS, (24, 16), strict=False):
            first, after = month_span(month, "UTC")
            assert pico(list(month_lines(read, book, month, step="span"))) == wanted * 10**6
            parts = [(first, first + 10**9), (first + 10**9, after)]
            assert pico([one for _, one in costs(read, book, parts)]) == wanted * 10**6
            for until in (after, after - 1):
                (account,) = standings(read, book, until)
                assert account.used == (24 if month == MONTHS[0] else 40) * 10**6


def test_a_correction_of_what_a_later_cut_leaves_out(ledger: Ledger) -> None:
    """What no closed month ever billed is not taken back when a person says what it was."""
    priced(ledger, entry("p", EARLY, "m", per_unit=EVERY | {"other_out": "4"}))
    gateway, other, feeder = Gateway(), Gateway(OTHER), Feeder(ledger)
    feeder.feed([*gateway.marks(NOVEMBER), *other.marks(NOVEMBER), *gateway.marks(END)])
    feeder.feed(gateway.says(say.finished("r0", NOVEMBER)))
    close(ledger, without=[OTHER])
    lost = other.says(say.accepted("r9", NOVEMBER))
    ended = say.finished("r1", NOVEMBER, usage=say.tokens(100, 50))
    feeder.feed(other.says(say.accepted("r1", NOVEMBER), ended))
    said = say.corrected("r1", say.tokens(10, 5), f"{OTHER}:3", DECEMBER)
    Feeder(ledger, "fix").feed(scribed([said], "/cli/fix"))
    feeder.feed(gateway.marks(datetime(2027, 1, 1, tzinfo=UTC)))
    frozen = close(ledger, "2026-12", without=[OTHER])
    assert frozen.totals == {"USD": "0.00004"}  # 10 at 2 and 5 at 4 for a million
    feeder.feed(lost)
    with ledger.read() as read:
        book = load_book(read)
        months = [pico(list(month_lines(read, book, month, step="day"))) for month in MONTHS]
        whole = [*rated(read, book, 0, 1 << 60, step="span"), *corrections_of_all_time(read, book)]
    assert months == [40 * 10**6, 40 * 10**6, 0]
    assert sum(months) == pico(whole)


def test_what_comes_later_changes_no_correction_of_what_a_cut_left_out(ledger: Ledger) -> None:
    """An abandonment behind a gap is corrected, and then the finish comes with other numbers."""
    prices = EVERY | {"other_out": "4", "gpu_second": "1", "failed_attempt": "3", "request": "1"}
    priced(ledger, entry("p", EARLY, "*", per_unit=prices))
    gateway, other, feeder = Gateway(), Gateway(OTHER), Feeder(ledger)
    runner = Scribe(RUNNER)
    feeder.feed([*gateway.marks(NOVEMBER), *other.marks(NOVEMBER), *gateway.marks(END)])
    lost = [*other.says(say.accepted("r1", NOVEMBER)), runner.write(say.abandoned("r9", NOVEMBER))]
    feeder.feed([runner.write(say.abandoned("r1", NOVEMBER))])
    said = say.corrected("r1", say.tokens(10, 5), f"{RUNNER}:2", NOVEMBER)
    Feeder(ledger, "fix").feed(scribed([said], "/cli/fix"))
    frozen = close(ledger, without=[OTHER])
    assert frozen.totals == {"USD": "1.00004"}
    took: dict[str, Any] = {"duration_us": 2_000_000, "overhead_us": 0, "attempts": 3, "model": "n"}
    feeder.feed(lost)
    feeder.feed(other.says(say.finished("r1", NOVEMBER, **took)))
    with ledger.read() as read:
        found = list(month_lines(read, load_book(read), "2026-11", step="day"))
    assert pico(found) == 1_000_040 * 10**6


def test_a_request_whose_beginning_and_end_come_with_two_later_months(ledger: Ledger) -> None:
    """It lands where its end does, and the month in between can be closed."""
    priced(ledger, entry("p", EARLY, "m", per_unit=EVERY))
    gateway, other, feeder = Gateway(), Gateway(OTHER), Feeder(ledger)
    feeder.feed([*gateway.marks(NOVEMBER), *other.marks(NOVEMBER), *gateway.marks(END)])
    feeder.feed(gateway.says(say.finished("r0", NOVEMBER)))
    close(ledger, without=[OTHER])
    feeder.feed(other.says(say.accepted("r1", NOVEMBER)))
    lost = other.says(say.accepted("r9", NOVEMBER))
    feeder.feed(other.says(say.finished("r1", NOVEMBER)))
    feeder.feed(gateway.marks(datetime(2027, 1, 1, tzinfo=UTC)))
    assert close(ledger, "2026-12", without=[OTHER]).totals == {}
    feeder.feed(lost)
    with ledger.read() as read:
        book = load_book(read)
        months = [pico(list(month_lines(read, book, month, step="day"))) for month in MONTHS]
    assert months == [24 * 10**6, 0, 24 * 10**6]


def test_an_end_without_any_attempt_has_no_failed_one(ledger: Ledger) -> None:
    """Neither on the bill nor in what a closed month takes back of it."""
    priced(ledger, entry("p", EARLY, "m", per_unit=EVERY | {"failed_attempt": "3"}))
    gateway, feeder = Gateway(), Feeder(ledger)
    feeder.feed([*gateway.marks(NOVEMBER), *gateway.says(say.accepted("r1", NOVEMBER))])
    feeder.feed(gateway.marks(END))
    assert close(ledger).totals == {}
    feeder.feed(gateway.says(say.finished("r1", NOVEMBER, usage=say.tokens(1, 0), attempts=0)))
    with ledger.read() as read:
        book = load_book(read)
        months = [pico(list(month_lines(read, book, month, step="day"))) for month in MONTHS]
    assert months == [0, 2 * 10**6, 0]


def test_the_bill_of_a_closed_month_keeps_every_line_as_it_was(ledger: Ledger) -> None:
    """An end that comes late leaves not even an empty line behind, nor seconds without a price."""
    priced(ledger, entry("p", EARLY, "m", per_unit=EVERY))
    gateway, feeder = Gateway(), Feeder(ledger)
    feeder.feed([*gateway.marks(NOVEMBER), *gateway.says(say.accepted("r1", NOVEMBER))])
    feeder.feed([*gateway.says(say.finished("r2", NOVEMBER, "key-2")), *gateway.marks(END)])
    close(ledger)
    seen = []
    for _ in range(2):
        with ledger.read() as read:
            book = load_book(read)
            lines = list(month_lines(read, book, "2026-11", step="day"))
            charged = list(charges(read, book, "2026-11"))
            seen.append([lines, charged, [bill(read, "2026-11", by) for by in ((), GROUPS)]])
        took: dict[str, Any] = {"duration_us": 2_000_000, "overhead_us": 0, "attempts": 3}
        feeder.feed(gateway.says(say.finished("r1", NOVEMBER, **took)))
    assert seen[0] == seen[1]


def test_a_closed_month_keeps_its_rounding_and_its_issuer(ledger: Ledger) -> None:
    """A statement that is printed again says what it said; the open month goes by the new rules."""
    priced(ledger, entry("p", EARLY, "m", per_unit={"request": "0.005", **EVERY, "other_out": "0"}))
    gateway, feeder = Gateway(), Feeder(ledger)
    feeder.feed([*gateway.marks(NOVEMBER), *gateway.says(say.finished("r1", NOVEMBER))])
    feeder.feed([*gateway.marks(END), *gateway.says(say.finished("r2", DECEMBER))])
    close(ledger)
    seen = []
    rules: tuple[Rounding, ...] = ("down", "half_up")
    for number, rounding in enumerate(rules):
        with ledger.read() as read:
            book = load_book(read)
            seen.append([list(statements(read, book, month, {})) for month in MONTHS[:2]])
            assert month_in(read, "2026-11").book.rules.issuer is None
        said = BooksSet(
            base=number, version=number + 1, zone="UTC", rounding=rounding, issuer="Another"
        )
        rule = scribed([Draft(f"books/{number}", "books", DECEMBER, said)], f"/cli/b{number}")
        Feeder(ledger, f"books/{number}").feed(rule)
    assert seen[0][0] == seen[1][0] and seen[0][0][0].total == "0.01"
    assert (seen[1][1][0].total, seen[1][1][0].issuer) == ("0.00", "Another")


def test_every_line_of_a_statement_is_its_quantity_at_its_price(ledger: Ledger) -> None:
    """Two keys of one project, one with a discount, are two lines."""
    priced(
        ledger,
        entry("p", EARLY, "m", per_unit=EVERY),
        entry("off", EARLY, "m", scope="key/key-2", discount="50"),
    )
    used = [say.finished("r1", NOVEMBER), say.finished("r2", NOVEMBER, "key-2")]
    Feeder(ledger).feed(scribed(used))
    with ledger.read() as read:
        bare, one = statements(read, load_book(read), "2026-11", {})
    assert (bare.currency, bare.tokens_unpriced) == (None, 8)
    assert sorted((line.quantity, line.unit_price) for line in one.lines) == [(12, "1"), (12, "2")]
    for line in one.lines:
        assert line.list_price == "2" and line.cost is not None and line.unit_price is not None
        assert Fraction(line.cost) == line.quantity * Fraction(line.unit_price) / line.unit


def test_two_currencies_for_one_instant_overlap() -> None:
    """Only one of them could ever hold, so the other would be passed over in silence."""
    entries = [
        entry("p", NOVEMBER, per_unit=EVERY),
        entry("q", NOVEMBER, per_unit=EVERY, currency="EUR"),
    ]
    found = listed(PriceListed(base=0, entries=entries), EARLY, [], None)
    assert isinstance(found, str) and "stands twice in this list for one instant" in found
    first = listed(PriceListed(base=0, entries=entries[:1]), EARLY, [], None)
    assert not isinstance(first, str)
    again = listed(PriceListed(base=1, entries=entries[1:]), EARLY, first, None)
    assert isinstance(again, str) and "has a price from" in again
