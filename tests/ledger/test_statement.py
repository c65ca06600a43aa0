"""A statement adds up what the ledger charged, rounds it once, and is drawn from values alone."""

import re
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Context, Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cli.invoice_html import chart, html
from gateway.cli.invoice_pdf import pdf
from gateway.cli.invoice_words import file_name
from ledger.amounts import MINOR_DIGITS, money_text, rounded, signed_pico
from ledger.events import (
    BooksSet,
    Draft,
    KeyAssigned,
    OrganizationSet,
    Payload,
    PriceEntry,
    PriceListed,
    ProjectSet,
)
from ledger.export.statement import Statement, statements
from ledger.sql.replay import load_book
from ledger.sql.session import Ledger
from tests.support.books import Books
from tests.support.events import START, after, finished, key_issued, life, tokens

WIDE = Context(prec=60)
MONTH = f"{START:%Y-%m}"
NAMED = {"project": {"proj-1": "Vision <b>"}, "organization": {"org-1": "Lab"}}
SETTING: tuple[Payload, ...] = (
    BooksSet(base=0, version=1, zone="UTC", issuer="The lab"),
    OrganizationSet(organization_id="org-1", base=0, version=1),
    ProjectSet(project_id="proj-1", organization_id="org-1", base=0, version=1),
    KeyAssigned(key_id="key-1", project_id="proj-1", base=0, version=1),
    PriceListed(
        base=0,
        rerate="the first prices",
        entries=[
            PriceEntry(
                price_id="p-1",
                model="gemma",
                currency="EUR",
                effective_from=datetime(2020, 1, 1, tzinfo=UTC),
                per_unit={"uncached_in": "0.15", "cached_in": "0.1", "other_out": "0.6"},
            )
        ],
    ),
)


def kept(books: Books, requests: int = 3) -> None:
    """A project with a priced model and so many requests."""
    early = START - timedelta(days=1)
    books.add(key_issued("key-1"))
    for number, payload in enumerate(SETTING):
        books.add(Draft(f"setting/{number}", "books", early, payload))
    for number in range(requests):
        books.add(*life(f"r{number}", after(number), model="gemma"))


def of(ledger: Ledger) -> list[Statement]:
    with ledger.read() as read:
        return list(statements(read, load_book(read), MONTH, NAMED))


def test_a_statement_is_the_sum_of_its_lines(ledger: Ledger, books: Books) -> None:
    kept(books)
    (one,) = of(ledger)
    assert (one.project_id, one.project, one.organization) == ("proj-1", "Vision <b>", "Lab")
    assert one.is_open and one.currency == "EUR" and one.issuer == "The lab"
    lines = {line.bucket: line for line in one.lines}
    assert lines["uncached_in"].quantity == 3 * 12 and lines["other_out"].quantity == 3 * 4
    exact = 3 * (12 * Decimal("0.15") + 4 * Decimal("0.6")) / 1_000_000
    assert Decimal(one.exact) == exact == sum(Decimal(line.cost or "0") for line in one.lines)
    assert sum(map(Decimal, one.days.values())) == exact
    assert one.total == "0.00" and Decimal(one.remainder or "1") == -exact
    assert lines["uncached_in"].unit_price == "0.15" and lines["uncached_in"].unit == 1_000_000


def test_what_has_no_price_stands_apart_and_is_in_no_sum(ledger: Ledger, books: Books) -> None:
    kept(books, 1)
    books.add(*life("other", after(9), model="unpriced"))
    priced, unpriced = sorted(of(ledger), key=lambda one: one.currency is None)
    assert priced.currency == "EUR" and priced.tokens_unpriced == 0
    assert unpriced.currency is None and unpriced.total is None and unpriced.exact == "0"
    assert unpriced.tokens_unpriced == 12 + 4
    assert {line.cost for line in unpriced.lines} == {None}
    assert b"no price" in html(unpriced) and pdf(unpriced).startswith(b"%PDF")


def test_the_page_shows_names_as_text_and_says_that_it_is_a_draft(
    ledger: Ledger, books: Books
) -> None:
    kept(books)
    (one,) = of(ledger)
    page = html(one).decode()
    assert "Vision &lt;b&gt;" in page and "<b>" not in page
    assert "Draft statement" in page and "<svg" in page
    assert not re.search(r"(src|href)=", page), "a page that is kept needs nothing from elsewhere"
    assert page.count("<tr") == len(one.lines) + 3


def test_the_same_values_give_the_same_bytes(ledger: Ledger, books: Books) -> None:
    kept(books)
    first, second = of(ledger), of(ledger)
    assert [html(one) for one in first] == [html(one) for one in second]
    assert [pdf(one) for one in first] == [pdf(one) for one in second]
    assert [file_name(one) for one in first] == [f"{MONTH}-proj-1-EUR"]


def test_a_chart_draws_corrections_below_its_line() -> None:
    drawn = chart({"2026-11-01": "5", "2026-11-02": "-5", "2026-11-03": "0"}, "EUR")
    tops = [float(y) for y in re.findall(r'<rect x="[\d.]+" y="([\d.]+)"', drawn)[1:]]
    assert tops[0] < tops[1] and "the most was 5 EUR on 2026-11-01" in drawn
    assert "<svg" in chart({"2026-11-01": "0"}, None)


@given(
    pico=st.integers(-(10**30), 10**30),
    currency=st.sampled_from(["EUR", "JPY", "KWD"]),
    rule=st.sampled_from(["half_even", "half_up"]),
)
def test_rounding_is_that_of_decimal(pico: int, currency: str, rule: str) -> None:
    digits = MINOR_DIGITS.get(currency, 2)
    exact = Decimal(pico) / 10**12 if abs(pico) < 10**15 else Decimal(pico).scaleb(-12)
    how = ROUND_HALF_EVEN if rule == "half_even" else ROUND_HALF_UP
    right = exact.quantize(Decimal(1).scaleb(-digits), how, context=WIDE)
    found = rounded(pico, currency, rule)
    assert Decimal(found).scaleb(-12, context=WIDE) == right
    assert rounded(-pico, currency, rule) == -found
    if len(str(abs(found))) < 24:
        assert signed_pico(money_text(found, currency)) == found


@pytest.mark.parametrize(
    ("pico", "rule", "text"),
    [
        (5 * 10**9, "half_even", "0.00"),
        (15 * 10**9, "half_even", "0.02"),
        (5 * 10**9, "half_up", "0.01"),
        (-5 * 10**9, "half_up", "-0.01"),
        (19 * 10**9, "down", "0.01"),
    ],
)
def test_halves(pico: int, rule: str, text: str) -> None:
    assert money_text(rounded(pico, "EUR", rule), "EUR") == text


def test_an_unknown_count_is_no_charge(ledger: Ledger, books: Books) -> None:
    kept(books, 1)
    books.add(finished("lost", basis="none", usage=tokens(None, None, None), model="gemma"))
    assert sum(line.quantity for one in of(ledger) for line in one.lines) == 16
