"""Bill lines from their single requests: whatever the usage and the prices, they equal the bill."""

import tempfile
from datetime import timedelta
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import update

from ledger.events import BUCKETS, Basis, Draft, Usage
from ledger.sql import tables
from ledger.sql.lines import LineOf, under_line
from tests.ledger.ledgers import Make
from tests.support import events as say
from tests.support.books import Books
from tests.support.events import START, after
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
