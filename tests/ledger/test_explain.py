"""What explain reads of a request, in both databases; conservation and cost as pure rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.events import BUCKETS, Draft, payload_of
from ledger.events.requests import RequestAccepted
from ledger.folds.conservation import Conservation, cell_of
from ledger.folds.cost import Cost, cost_of
from ledger.folds.prices import Price
from ledger.folds.rating import Rate
from ledger.folds.requests import RequestRow, fold_request
from ledger.sql.conservation import balances
from ledger.sql.explain import Explained, explain, near, refusal_of, requests_of_client
from ledger.sql.session import Ledger
from tests.ledger.ledgers import Feeder, scribed
from tests.support import events as say
from tests.support.books import Books
from tests.support.events import SOURCE, START, after, tokens
from tests.support.strategies import lives, shuffled

RUNNER = "/runner/test/1"


def explained(ledger: Ledger, request_id: str) -> Explained:
    with ledger.read() as read:
        found = explain(read, request_id)
    assert found is not None
    return found


def test_events_of_ids_that_begin_alike_are_not_mixed(books: Books) -> None:
    """`r1` among `r1-`, `r1.` and `r10`, whose ids stand around those of `r1/…`."""
    for request_id in ("r1", "r1-", "r1.", "r10", "R1"):
        books.add(say.accepted(request_id), say.attempted(request_id))
    found = explained(books.ledger, "r1")
    assert [event.id for event in found.events] == ["r1/accepted", "r1/attempted/1"]
    assert [row.attempt for row in found.attempts] == [1]


def test_an_open_request_is_priced_and_billed_nowhere_yet(books: Books) -> None:
    books.add(say.price("p1", {"uncached_in": "1"}), *say.life("r1")[:3])
    found = explained(books.ledger, "r1")
    assert found.request.state == "open" and found.request.usage == tokens(out=2)
    assert (found.cost, found.cell, found.line) == (Cost(None, None), None, None)
    assert found.rate is not None and found.rate.price.price_id == "p1"


def test_the_cell_and_the_line_are_those_that_hold_it(books: Books) -> None:
    """Of two lines of one day, with and without a price, that of its own price."""
    prices = {"uncached_in": "1", "cached_in": "1", "other_out": "1"}
    books.add(say.price("p1", prices, start=after(600)))
    books.add(*say.life("early"), *say.life("late", after(700)), *say.life("later", after(701)))
    early, late = explained(books.ledger, "early"), explained(books.ledger, "late")
    assert early.line is not None and (early.line.requests, early.line.cost) == (1, None)
    assert late.line is not None and (late.line.requests, late.line.cost) == (2, "0.000032")
    assert early.rate is None and late.price_event is not None
    assert late.price_event.id == "p1" and late.cost == Cost(16_000_000, "USD")
    assert early.cell is not None and early.cell[1].totals.requests == 3


def test_what_was_set_aside_of_a_request_is_told_with_its_reason(ledger: Ledger) -> None:
    feeder = Feeder(ledger)
    feeder.feed(scribed(say.life("r1")))
    feeder.feed(scribed([say.finished("r1", usage=tokens(out=9))], RUNNER))
    feeder.feed(scribed([say.accepted("R1"), say.accepted("r1_")], "/gateway/test/2"))
    ((name, reason),) = explained(ledger, "r1").aside
    assert name == f"{RUNNER}:1 (r1/finished)" and "told otherwise" in reason
    assert explained(ledger, "R1").aside == explained(ledger, "r1_").aside == []


def test_retries_are_those_of_the_same_key_with_the_same_id_of_the_client(books: Books) -> None:
    for n, key in enumerate(["key-1", "key-1", "key-2", "key-1"]):
        client = "other" if n == 3 else "same"
        books.add(say.accepted(f"r{n}", after(-n), key, client_request=client, client_retry=n))
    assert [row.request_id for row in explained(books.ledger, "r0").retries] == ["r1"]
    with books.ledger.read() as read:
        found = requests_of_client(read, "same")
    assert [(row.request_id, row.client_retry) for row in found] == [
        ("r2", 2),
        ("r1", 1),
        ("r0", 0),
    ]


def test_what_is_no_request_is_told_apart(books: Books) -> None:
    books.add(
        say.rejected("refused"), say.accepted("req_0123456789d"), say.accepted("req_0123456789e")
    )
    with books.ledger.read() as read:
        assert explain(read, "refused") is None and explain(read, "none") is None
        refusal = refusal_of(read, "refused")
        assert refusal is not None and refusal.id == "refused/rejected"
        assert refusal_of(read, "req_0123456789d") is None
        assert near(read, "req_0123456789") == ["req_0123456789d", "req_0123456789e"]
        assert near(read, "req_0123456789d0") == near(read, "req_01") == near(read, "") == []


@given(st.data(), st.integers(1, 4))
def test_whatever_became_of_requests_is_conserved_in_any_order(
    data: st.DataObject, count: int
) -> None:
    """All that was accepted is somewhere; without one acceptance its cell is named with it."""
    kept, parted = Conservation(), Conservation()
    lost = f"r{data.draw(st.integers(0, count - 1))}"
    for n in range(count):
        row: RequestRow | None = None
        accepted = None
        life: list[Draft] = data.draw(lives(f"r{n}"))
        for event in data.draw(shuffled(scribed(life))):
            payload = payload_of(event)
            row = fold_request(row, event, payload)
            if isinstance(payload, RequestAccepted):
                accepted = cell_of(event.source, event.time)
        kept.take(f"r{n}", accepted, row)
        parted.take(f"r{n}", None if f"r{n}" == lost else accepted, row)
    assert list(kept.parted()) == []
    assert sum(one.accepted for one in kept.cells.values()) == count
    assert all(one.difference == 0 for one in kept.cells.values())
    (words,) = parted.parted()
    assert words.endswith(f"a difference of -1: {lost}")


def test_the_tables_are_conserved_as_the_events_are(books: Books) -> None:
    books.add(*say.life("r1"), say.accepted("r2"), say.accepted("r3", after(3000)))
    books.add(say.delivered("only running"))
    books.write(scribed([say.abandoned("r3", after(3000))], RUNNER))
    with books.ledger.read() as read:
        found = [
            (cell.source, cell.hour, one.accepted, one.finished, one.abandoned, one.open)
            for cell, one in balances(read)
        ]
    hour = START.replace(minute=0)
    assert found == [
        (SOURCE, hour, 2, 1, 0, 1),
        (SOURCE, hour.replace(hour=11), 1, 0, 1, 0),
    ]


@pytest.mark.parametrize(
    ("counts", "rates", "cost"),
    [
        ({"uncached_in": 2, "other_out": 3}, {"uncached_in": 5, "other_out": 1}, (13, ())),
        ({"uncached_in": 2, "other_out": 3}, {"uncached_in": 5}, (None, ("other_out",))),
        ({"uncached_in": 2, "other_out": 0}, {"uncached_in": 5}, (10, ())),
        ({"uncached_in": None, "other_out": 3}, {"other_out": 1}, (3, ())),
        ({}, {"uncached_in": 5}, (None, ())),
    ],
    ids=str,
)
def test_what_is_unknown_costs_nothing_known_and_never_zero(
    counts: dict[str, int | None], rates: dict[str, int], cost: tuple[int | None, tuple[str, ...]]
) -> None:
    price = Price(
        price_id="p", model="m", version=1, currency="USD", effective_from=START, pico=rates
    )
    tokens_of = {name: counts.get(name) for name in BUCKETS}
    rate = Rate(price, None, "USD", rates, rates)
    found = cost_of(tokens_of, rate)
    assert (found.pico, found.unpriced, found.currency) == (*cost, "USD")
    assert cost_of(tokens_of, None).pico is None
