"""Movements of money: each balances, none is changed or lost, and a wrong one is undone whole."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cli.account_facts import closed, organization, project
from gateway.cli.credits import months_of
from gateway.cli.failure import Stop
from gateway.cli.money_facts import (
    budgeted,
    find_entry,
    lines_of,
    moved,
    parse_amount,
    parse_budget,
    parse_signed,
    transferred,
    undone,
)
from ledger.amounts import decimal_text, signed_pico
from ledger.events import CreditPosted, Draft, payload_of
from ledger.folds.accounts import budget_account, budget_of, held
from ledger.folds.book import Book, Refused, fold_book
from streams.codec import decode, encode
from tests.support.events import period_closed

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
PROJECT, OTHER, PAYER = "project/p1", "project/p2", "organization/o1"
MONTHS = {"2026-12": datetime(2026, 12, 1, tzinfo=UTC), "2027-01": datetime(2027, 1, 1, tzinfo=UTC)}


def taken(book: Book, draft: Draft) -> Book | Refused:
    """What every reader makes of `draft`, through the codec."""
    event = decode(encode(draft, "/cli/test/1", 1, NOW))
    return fold_book(book, event, payload_of(event))


def folded(book: Book, draft: Draft) -> Book:
    after = taken(book, draft)
    assert not isinstance(after, Refused), after
    return after


def some_accounts() -> Book:
    book = folded(Book(), organization(Book(), "o1", {}, False, NOW))
    for id_ in ("p1", "p2"):
        book = folded(book, project(book, id_, "o1", {}, False, NOW))
    return book


ACCOUNTS = some_accounts()

accounts = st.sampled_from((PROJECT, OTHER, PAYER))
currencies = st.sampled_from(("EUR", "USD", "JPY"))
above_zero = st.integers(1, 10**20).map(decimal_text)
any_but_zero = above_zero | above_zero.map("-{}".format)
Step = Callable[[Book], Draft]


def _moved(kind: Any, account: str, currency: str, amount: str) -> Step:
    return lambda book: moved(book, kind, account, currency, amount, "why", NOW, NOW)


def _transferred(giver: str, taker: str, currency: str, amount: str) -> Step:
    return lambda book: transferred(book, giver, taker, currency, amount, "why", NOW, NOW)


def _undone(number: int) -> Step:
    def make(book: Book) -> Draft:
        if not book.entries:
            raise Stop("nothing to undo")
        return undone(book, book.entries[number % len(book.entries)], "why", NOW)

    return make


def _budgeted(project_id: str, currency: str, amount: str, months: int) -> Step:
    spans = dict(list(MONTHS.items())[:months])
    return lambda book: budgeted(book, project_id, spans, currency, amount, "why", NOW)


movements = st.one_of(
    st.builds(_moved, st.sampled_from(("grant", "top_up")), accounts, currencies, above_zero),
    st.builds(_moved, st.just("adjustment"), accounts, currencies, any_but_zero),
    st.builds(_transferred, accounts, accounts, currencies, above_zero),
    st.builds(_undone, st.integers(0, 30)),
    st.builds(_budgeted, st.sampled_from(("p1", "p2")), currencies, above_zero, st.integers(1, 2)),
)


@given(st.lists(movements, max_size=12))
def test_every_movement_balances_and_the_history_only_grows(steps: list[Step]) -> None:
    book = ACCOUNTS
    for step in steps:
        before = book
        try:
            book = folded(book, step(book))
        except Stop:
            continue
        assert book.entries[:-1] == before.entries, "what stood there was changed"
        sums: dict[str, int] = {}
        for _, currency, pico in book.entries[-1].postings:
            sums[currency] = sums.get(currency, 0) + pico
        assert set(sums.values()) == {0}
    totals: dict[str, int] = {}
    for (_, currency), pico in held(book.entries).items():
        totals[currency] = totals.get(currency, 0) + pico
    assert not any(totals.values()), "all accounts together hold what came from nowhere"


@given(st.lists(movements, min_size=1, max_size=8), st.integers(0, 30))
def test_what_is_undone_leaves_every_account_as_if_it_had_never_been(
    steps: list[Step], number: int
) -> None:
    book = ACCOUNTS
    for step in steps:
        try:
            book = folded(book, step(book))
        except Stop:
            continue
    movable = [one for one in book.entries if one.kind != "budget"]
    fresh = [one for one in movable if f"undo/{one.entry_id}" not in {e.entry_id for e in movable}]
    if not fresh:
        return
    wrong = fresh[number % len(fresh)]
    after = folded(book, undone(book, wrong, "it was wrong", NOW))
    assert wrong in after.entries and len(after.entries) == len(book.entries) + 1
    without = held(one for one in book.entries if one is not wrong)
    assert {k: v for k, v in held(after.entries).items() if v} == {
        k: v for k, v in without.items() if v
    }


@given(st.lists(st.tuples(accounts, currencies, any_but_zero), min_size=1, max_size=4))
def test_what_does_not_balance_is_refused_and_changes_nothing(
    sides: list[tuple[str, str, str]],
) -> None:
    draft = moved(ACCOUNTS, "grant", PROJECT, "EUR", "1", "why", NOW, NOW)
    assert isinstance(draft.payload, CreditPosted)
    model = draft.payload.postings[0]
    postings = [
        msgspec.structs.replace(model, account=account, currency=currency, amount=amount)
        for account, currency, amount in sides
    ]
    odd = msgspec.structs.replace(draft.payload, postings=postings)
    told = taken(ACCOUNTS, msgspec.structs.replace(draft, payload=odd))
    sums: dict[str, int] = {}
    for _, currency, amount in sides:
        sums[currency] = sums.get(currency, 0) + signed_pico(amount)
    if any(sums.values()):
        assert isinstance(told, Refused) and "does not add up to zero" in told.reason
    else:
        assert not isinstance(told, Refused)


def test_a_movement_is_there_once_however_often_it_is_told() -> None:
    draft = moved(ACCOUNTS, "top_up", PROJECT, "EUR", "25", "paid", NOW, NOW)
    book = folded(ACCOUNTS, draft)
    again = taken(book, draft)
    assert isinstance(again, Refused) and "is there already" in again.reason


def test_two_that_undo_the_same_at_once_do_it_once() -> None:
    book = folded(ACCOUNTS, moved(ACCOUNTS, "grant", PAYER, "EUR", "5", "why", NOW, NOW))
    (entry,) = book.entries
    one, other = (undone(book, entry, "wrong", NOW) for _ in range(2))
    assert one.id != other.id, "the loser of a race is another event and not a conflict"
    book = folded(book, one)
    assert isinstance(taken(book, other), Refused)
    with pytest.raises(Stop, match="undone already"):
        undone(book, entry, "wrong", NOW)
    book = folded(book, undone(book, book.entries[-1], "it was right", NOW))
    assert held(book.entries)[PAYER, "EUR"] == 5 * 10**12


def test_two_budgets_at_once_are_not_added_up() -> None:
    one, other = (budgeted(ACCOUNTS, "p1", MONTHS, "EUR", "50", "plan", NOW) for _ in range(2))
    book = folded(ACCOUNTS, one)
    assert isinstance(taken(book, other), Refused)
    assert held(book.entries)[budget_account("2026-12", "p1"), "EUR"] == 50 * 10**12


def test_a_budget_is_set_and_not_added_to() -> None:
    book = folded(ACCOUNTS, budgeted(ACCOUNTS, "p1", MONTHS, "EUR", "50", "plan", NOW))
    only = {"2026-12": MONTHS["2026-12"]}
    book = folded(book, budgeted(book, "p1", only, "EUR", "30.5", "less", NOW))
    there = held(book.entries)
    assert there[budget_account("2026-12", "p1"), "EUR"] == 30_500_000_000_000
    assert there[budget_account("2027-01", "p1"), "EUR"] == 50 * 10**12
    assert there.get((PROJECT, "EUR")) is None, "a budget is no money"
    with pytest.raises(Stop, match="that is the budget already"):
        budgeted(book, "p1", only, "EUR", "30.50", "same", NOW)
    with pytest.raises(Stop, match="credits budget"):
        undone(book, book.entries[0], "why", NOW)
    book = folded(book, budgeted(book, "p1", MONTHS, "EUR", "0", "none", NOW))
    assert not any(held(book.entries).values())


def test_what_is_dated_into_a_closed_month_is_refused() -> None:
    book = folded(ACCOUNTS, moved(ACCOUNTS, "grant", PROJECT, "EUR", "5", "why", NOW, NOW))
    book = folded(book, period_closed({}, "2026-11"))
    late = taken(book, moved(book, "grant", PROJECT, "EUR", "5", "late", NOW, NOW))
    assert isinstance(late, Refused) and "2026-11 is closed" in late.reason
    # What undoes an entry of that month has its effect from its end on.
    book = folded(book, undone(book, book.entries[0], "wrong", NOW))
    assert book.entries[-1].effective_from == datetime(2026, 12, 1, tzinfo=UTC)
    november = datetime(2026, 11, 30, tzinfo=UTC)
    assert held(book.entries, november)[PROJECT, "EUR"] == 5 * 10**12
    assert held(book.entries)[PROJECT, "EUR"] == 0


def test_a_closed_account_gives_and_does_not_get() -> None:
    book = folded(ACCOUNTS, moved(ACCOUNTS, "top_up", PROJECT, "EUR", "5", "paid", NOW, NOW))
    book = folded(book, closed(book, "project", "p1", False, NOW))
    makes: tuple[Callable[[], Draft], ...] = (
        lambda: moved(book, "grant", PROJECT, "EUR", "1", "why", NOW, NOW),
        lambda: transferred(book, PAYER, PROJECT, "EUR", "1", "why", NOW, NOW),
        lambda: budgeted(book, "p1", MONTHS, "EUR", "1", "why", NOW),
    )
    for make in makes:
        with pytest.raises(Stop, match="project p1 is closed"):
            make()
    book = folded(book, moved(book, "refund", PROJECT, "EUR", "-5", "back", NOW, NOW))
    assert held(book.entries)[PROJECT, "EUR"] == held(book.entries)["cash", "EUR"] == 0


def test_money_does_not_go_in_a_circle() -> None:
    with pytest.raises(Stop, match="both sides"):
        transferred(ACCOUNTS, PAYER, PAYER, "EUR", "1", "why", NOW, NOW)


def test_lines_are_the_sides_that_somebody_owns() -> None:
    book = folded(ACCOUNTS, transferred(ACCOUNTS, PAYER, PROJECT, "EUR", "1", "why", NOW, NOW))
    book = folded(book, budgeted(book, "p1", MONTHS, "EUR", "50", "plan", NOW))
    everything = [line.account for line in lines_of(book.entries)]
    budgets = [budget_account(month, "p1") for month in MONTHS]
    assert everything == [PROJECT, PAYER, *budgets]
    assert [line.account for line in lines_of(book.entries, PROJECT)] == [PROJECT, *budgets]
    assert [line.account for line in lines_of(book.entries, PAYER)] == [PAYER]
    assert budget_of(budgets[0]) == ("2026-12", "p1") and budget_of(PROJECT) is None


def test_a_movement_is_found_by_its_id() -> None:
    book = folded(ACCOUNTS, budgeted(ACCOUNTS, "p1", MONTHS, "EUR", "50", "plan", NOW))
    assert find_entry(book.entries, "budget/1") is book.entries[0]
    with pytest.raises(Stop, match="did you mean budget/1"):
        find_entry(book.entries, "budget1")


@pytest.mark.parametrize("text", ["1e3", ".5", "NaN", "+1", "1,5", "", "0.0000000000001", "٣"])
def test_an_amount_is_a_plain_decimal(text: str) -> None:
    for parse in (parse_amount, parse_signed, parse_budget):
        with pytest.raises(ValueError, match="plain decimal"):
            parse(text)


def test_amounts_and_their_signs() -> None:
    assert parse_amount("25.00") == "25" and parse_signed("-3.50") == "-3.5"
    assert parse_budget("0") == "0"
    for parse, text in ((parse_amount, "-1"), (parse_amount, "0"), (parse_budget, "-1")):
        with pytest.raises(ValueError, match=r"below zero|nothing"):
            parse(text)


def test_months_of_a_budget() -> None:
    assert list(months_of("Europe/Berlin", None, "2027-01", NOW)) == [
        "2026-11",
        "2026-12",
        "2027-01",
    ]
    begin = months_of("Europe/Berlin", "2026-12", None, NOW)["2026-12"]
    assert begin == datetime(2026, 11, 30, 23, tzinfo=UTC)
    # At half past midnight in Berlin the month is another one already.
    edge = datetime(2026, 11, 30, 23, 30, tzinfo=UTC)
    assert list(months_of("Europe/Berlin", None, None, edge)) == ["2026-12"]
    with pytest.raises(Exception, match="give a later month"):
        months_of("UTC", "2026-12", "2026-11", NOW)
    with pytest.raises(Exception, match="at most 120"):
        months_of("UTC", "2026-12", "2100-01", NOW)
