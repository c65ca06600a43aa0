"""Prices and costs are exact: whatever is not held exactly is refused."""

from decimal import Context, Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.amounts import (
    PER_MILLION_DECIMALS_MAX,
    PERCENT_PARTS,
    PICO_PER_UNIT,
    WHOLE_DIGITS_MAX,
    decimal_text,
    discounted,
    pico_of,
    pico_per_token,
)
from ledger.errors import AmountError

EXACT = Context(prec=200)
picos = st.integers(0, 10**18)


@pytest.mark.parametrize(
    ("per_million", "pico"),
    [
        ("0", 0),
        ("0.15", 150_000),
        ("15", 15_000_000),
        ("0.000001", 1),
        ("0.150000000000", 150_000),
        ("0007", 7_000_000),
        ("999999999999.999999", 999_999_999_999_999_999),
    ],
)
def test_a_price_of_a_million_tokens_as_pico_per_token(per_million: str, pico: int) -> None:
    assert pico_per_token(per_million) == pico


@pytest.mark.parametrize(
    "wrong",
    ["", " ", "-1", "+1", "1,5", "1e3", "1_000", " 1", "1\n", ".5", "5.", "NaN", "Infinity", "١"],
)
def test_what_is_no_plain_decimal_is_refused_and_named(wrong: str) -> None:
    with pytest.raises(AmountError, match="plain decimal") as refused:
        pico_per_token(wrong)
    assert repr(wrong) in str(refused.value)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("0.0000001", "more than 6 decimals"),
        ("1" * (WHOLE_DIGITS_MAX + 1), "digits before the point"),
        ("9" * 5000, "digits before the point"),
    ],
)
def test_what_is_too_fine_or_too_large_is_refused(wrong: str, why: str) -> None:
    with pytest.raises(AmountError, match=why):
        pico_per_token(wrong)


@given(st.integers(0, 10 ** (WHOLE_DIGITS_MAX + PER_MILLION_DECIMALS_MAX) - 1))
def test_a_price_keeps_every_digit(pico: int) -> None:
    per_million = Decimal(pico).scaleb(-PER_MILLION_DECIMALS_MAX, EXACT)
    assert pico_per_token(f"{per_million:f}") == pico


@given(st.text(max_size=12) | st.floats().map(str) | st.decimals().map(str))
def test_any_text_gives_a_price_or_a_typed_error(text: str) -> None:
    try:
        pico = pico_per_token(text)
    except AmountError:
        return
    assert Decimal(text).scaleb(PER_MILLION_DECIMALS_MAX, EXACT) == pico


@pytest.mark.parametrize(
    ("pico", "text"),
    [
        (0, "0"),
        (1, "0.000000000001"),
        (4_500_000, "0.0000045"),
        (PICO_PER_UNIT, "1"),
        (-3 * PICO_PER_UNIT // 2, "-1.5"),
        (10 * PICO_PER_UNIT, "10"),
    ],
)
def test_an_amount_as_text(pico: int, text: str) -> None:
    assert decimal_text(pico) == text


@given(st.integers(-(10**40), 10**40))
def test_the_text_of_an_amount_is_the_amount(pico: int) -> None:
    assert EXACT.multiply(Decimal(decimal_text(pico)), PICO_PER_UNIT) == pico


@given(picos, st.integers(0, PERCENT_PARTS))
def test_a_discount_is_rounded_once_half_to_even(pico: int, parts: int) -> None:
    exact = Fraction(pico * (PERCENT_PARTS - parts), PERCENT_PARTS)
    assert discounted(pico, parts) == round(exact)
    assert discounted(pico, 0) == pico and discounted(pico, PERCENT_PARTS) == 0


@given(st.integers(-(10**40), 10**40))
def test_an_amount_comes_back_from_its_text(pico: int) -> None:
    assert pico_of(decimal_text(pico)) == pico
