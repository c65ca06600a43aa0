"""Bill lines from their single requests: whatever the usage and the prices, they equal the bill."""

import tempfile
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import update

from ledger.events import BUCKETS, Basis, Draft, Usage
from ledger.folds.cost import cost_of_rated
from ledger.sql import tables
from ledger.sql.bill import BillLine, bill
from ledger.sql.lines import LineOf, under_line
from ledger.sql.session import Ledger, ReadSession
from tests.ledger.closings import close
from tests.ledger.ledgers import Feeder, Make, scribed
from tests.ledger.month_world import DECEMBER, END, NOVEMBER, started
from tests.ledger.test_months_any_order import told_of_a_year
from tests.support import events as say
from tests.support.books import Books
from tests.support.events import SOURCE, START, after
from tests.support.strategies import KEYS, MODELS

MONTH = "2026-11"
HOURS = 30 * 24
START_OF_MONTH = START.replace(day=1, hour=0, minute=0)

moments = st.integers(0, HOURS * 4 - 1).map(lambda n: START_OF_MONTH + timedelta(minutes=15 * n))
counts = st.none() | st.sampled_from([0, 1, 7, 10**9])
usages = st.builds(Usage, **dict.fromkeys(BUCKETS, counts))
rates = st.dictionaries(st.sampled_from(BUCKETS), st.sampled_from(["0", "0.15", "2.5"]))


@st.composite
def stories(draw: st.DrawFn) -> list[Draft]:
    """Requests of a month, and prices that begin anywhere in it, some without every bucket."""
    told: list[Draft] = []
    for n in range(draw(st.integers(1, 12))):
        at, key = draw(moments), draw(st.sampled_from(KEYS))
        model = draw(st.sampled_from(MODELS))
        basis: Basis = draw(st.sampled_from(("reported", "none")))
        told.append(say.accepted(f"r{n}", at, key, model))
        if draw(st.booleans()):
            usage = draw(usages)
            told.append(say.finished(f"r{n}", at, key, model, usage=usage, basis=basis))
    versions: dict[str, int] = {}
    for n in range(draw(st.integers(0, 4))):
        model = draw(st.sampled_from([*MODELS, "*"]))
        base = versions.get(model, 0)
        versions[model] = base + 1
        currency = draw(st.sampled_from(["USD", "EUR"]))
        told.append(say.price(f"p{n}", draw(rates), model, draw(moments), base, currency))
    return told


lines = st.builds(
    LineOf,
    month=st.just(MONTH),
    key_id=st.none() | st.sampled_from(KEYS),
    model=st.none() | st.sampled_from(MODELS),
    day=st.none() | moments.map(lambda at: f"{at:%Y-%m-%d}"),
    basis=st.sampled_from([None, "reported", "none"]),
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(stories(), st.lists(lines, min_size=1, max_size=6))
def test_the_requests_of_any_line_add_up_to_what_the_bill_says(
    make_ledger: Make, told: list[Draft], wanted: list[LineOf]
) -> None:
    with tempfile.TemporaryDirectory() as directory, make_ledger(Path(directory), "ledger") as made:
        books = Books(Path(directory), made)
        books.add(*told)
        with made.read() as read:
            for line in (LineOf(month=MONTH), *wanted):
                under = under_line(read, line, limit=100)
                assert under.equal, (under.said, under.added)
                assert under.total == len(under.requests) == sum(one.requests for one in under.said)


def test_a_line_is_paged_and_its_sums_are_those_of_all(books: Books) -> None:
    for n in range(7):
        books.add(*say.life(f"r{n}", after(n)))
    with books.ledger.read() as read:
        pages = [
            under_line(read, LineOf(month=MONTH, key_id="key-1"), skip=skip, limit=3)
            for skip in (0, 3, 6, 9)
        ]
    assert [[one.request.request_id for one in page.requests] for page in pages] == [
        ["r0", "r1", "r2"],
        ["r3", "r4", "r5"],
        ["r6"],
        [],
    ]
    assert {page.total for page in pages} == {7}
    assert all(page.equal and page.added[0].requests == 7 for page in pages)
    ended = pages[2].requests[0].ended
    assert ended is not None and ended.id == "r6/finished"


def test_a_roll_up_that_parts_from_its_requests_is_not_called_equal(books: Books) -> None:
    books.add(*say.life("r1"))
    with books.ledger.write() as tx:
        tx.execute(update(tables.usage_hourly).values(other_out=5))
    with books.ledger.read() as read:
        assert not under_line(read, LineOf(month=MONTH)).equal


def test_what_was_told_late_or_corrected_is_under_its_line(ledger: Ledger) -> None:
    gateway, feeder = started(ledger)
    feeder.feed(gateway.says(say.accepted("r2", NOVEMBER, "key-2")))
    feeder.feed(gateway.marks(END))
    close(ledger)
    feeder.feed(gateway.says(say.finished("r2", NOVEMBER, "key-2", usage=say.tokens(100, 50))))
    said = say.corrected("r1", say.tokens(10, 4), f"{SOURCE}:2", DECEMBER)
    Feeder(ledger, "registry/fix").feed(scribed([said], "/cli/fix"))
    with ledger.read() as read:
        fixed = under_line(read, LineOf(month="2026-12", corrects=f"{SOURCE}:2"))
        late = under_line(read, LineOf(month="2026-12", key_id="key-2", kind="late"))
        behind = under_line(read, LineOf(month="2026-11", key_id="key-2"))
    assert fixed.equal and (fixed.total, fixed.requests) == (0, [])
    (one,) = fixed.landings
    assert (one.landed.request_id, one.landed.kind) == ("r1", "corrected")
    assert (one.original and one.original.id, one.made and one.made.name) == (
        "r1/finished",
        "/cli/fix:1",
    )
    before, after = one.landed.before, one.landed.after
    assert before is not None and after is not None
    assert (before.usage.uncached_in, after.usage.uncached_in) == (12, 10)
    (part,) = one.parts
    assert part.totals.tokens[0] == -2 and cost_of_rated(part).pico == -2 * 2_000_000
    (one,) = late.landings
    assert late.equal and one.landed.request_id == "r2" and one.parts[0].totals.requests == 1
    assert one.made is not None and one.made.id == "r2/finished" and one.made == one.original
    # Of its own month it is taken back: the roll-up has it, and the cut has not.
    assert behind.equal and behind.said == [] and behind.total == 1
    assert [part.totals.requests for one in behind.landings for part in one.parts] == [-1]


def test_a_page_goes_on_from_requests_to_what_was_corrected(ledger: Ledger) -> None:
    gateway, feeder = started(ledger)
    for n in range(2, 5):
        feeder.feed(gateway.says(*say.life(f"r{n}", NOVEMBER)))
    fixes = [
        say.corrected(f"r{n}", say.tokens(n, 0), f"{SOURCE}:{2 * n}", NOVEMBER) for n in range(1, 4)
    ]
    Feeder(ledger, "registry/fix").feed(scribed(fixes, "/cli/fix"))
    wanted = LineOf(month="2026-11", key_id="key-1")
    with ledger.read() as read:
        pages = [under_line(read, wanted, skip=skip, limit=3) for skip in (0, 3, 6, 9)]
    seen = [
        (
            [one.request.request_id for one in page.requests],
            [one.landed.request_id for one in page.landings],
        )
        for page in pages
    ]
    assert seen == [
        (["r1", "r2", "r3"], []),
        (["r4"], ["r1", "r2"]),
        ([], ["r3"]),
        ([], []),
    ]
    assert {(page.total, page.total_landings, page.equal) for page in pages} == {(4, 3, True)}


@pytest.mark.parametrize("seed", range(3))
def test_every_line_of_a_year_with_everything_late_follows_from_its_events(
    make_ledger: Make, tmp_path: Path, seed: int
) -> None:
    usage, registry, _ = told_of_a_year(seed, tmp_path)
    kinds = set[str]()
    with make_ledger(tmp_path, "ledger") as ledger:
        Feeder(ledger, "registry").feed(registry)
        Feeder(ledger).feed(usage)
        with ledger.read() as read:
            for month in ("2026-11", "2026-12", "2027-01", "2027-02"):
                for line in bill(read, month):
                    kinds.add(line.kind)
                    assert_explained(read, month, line)
    assert kinds == {"usage", "late", "corrected"}


def assert_explained(read: ReadSession, month: str, line: BillLine) -> None:
    """What is under the line adds up to it, each difference is that of the counts before and after,
    and each is made by an event of the ledger."""
    wanted = LineOf(
        month=month,
        key_id=line.key_id,
        model=line.model,
        basis=line.basis,
        price_id=line.price_id,
        kind=line.kind,
        corrects=line.corrects,
    )
    under = under_line(read, wanted)
    assert under.equal and len(under.said) >= 1
    parts = [part for one in under.landings for part in one.parts]
    requests = under.total + sum(part.totals.requests for part in parts)
    assert requests == sum(one.requests for one in under.said)
    for one in under.landings:
        assert one.made is not None
        assert one.landed.kind != "late" or one.original is not None
        counts = [
            sum(count or 0 for count in row.usage.counts()) if row and row.billed else 0
            for row in (one.landed.before, one.landed.after)
        ]
        told = sum(sum(part.totals.tokens) for part in one.landed.parts)
        assert told == counts[1] - counts[0]
