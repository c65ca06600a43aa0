"""How the text of options becomes values, and what is said of text that does not."""

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cli.options import (
    parse_groups,
    parse_instant,
    parse_month,
    parse_names,
    parse_price,
)
from gateway.cli.price_entries import parse_currency
from ledger.amounts import pico_per_token


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_month, "2026-11", "2026-11"),
        (parse_instant, "2026-11-01", datetime(2026, 11, 1, tzinfo=UTC)),
        (parse_instant, "2026-11-01T08:30", datetime(2026, 11, 1, 8, 30, tzinfo=UTC)),
        (parse_instant, "2026-11-01T08:30:00Z", datetime(2026, 11, 1, 8, 30, tzinfo=UTC)),
        (parse_instant, "2026-11-01T08:30:00+02:00", datetime(2026, 11, 1, 6, 30, tzinfo=UTC)),
        (parse_names, "a, b,a", ("a", "b")),
        (parse_names, "*", ("*",)),
        (parse_groups, "day,key", ("key", "day")),
        (parse_price, "0.15", "0.15"),
        (parse_price, "3", "3"),
        (parse_currency, "eur", "EUR"),
    ],
)
def test_what_is_right(parse: Callable[[str], object], text: str, value: object) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text", "words"),
    [
        (parse_month, "2026-13", "write it as 2026-11"),
        (parse_month, "2026-1", "not a month"),
        (parse_month, "1969-12", "not a month"),
        (parse_month, "11/2026", "not a month"),
        (parse_month, "２０２６-11", "not a month"),
        (parse_instant, "yesterday", "write 2026-11-01"),
        (parse_instant, "2026-02-30", "not an instant"),
        (parse_instant, "0001-01-01T00:00:00+14:00", "not an instant"),
        (parse_names, "a,,b", "empty name"),
        (parse_names, "", "empty name"),
        (parse_groups, "key,hour", "key, model, day"),
        (parse_price, "1e3", "plain decimal"),
        (parse_price, "-1", "plain decimal"),
        (parse_price, "0.1234567", "more than 6 decimals"),
        (parse_currency, "dollars", "three letters"),
    ],
)
def test_what_is_wrong(parse: Callable[[str], object], text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse(text)


@given(st.text(max_size=30))
def test_any_text_is_a_value_or_a_value_error(text: str) -> None:
    for parse in (parse_month, parse_instant, parse_names, parse_groups, parse_currency):
        try:
            parse(text)
        except ValueError as wrong:
            assert str(wrong)


@given(st.decimals(min_value=0, max_value=10**6, places=6))
def test_a_price_stays_exact(price: object) -> None:
    text = f"{price:f}"
    assert pico_per_token(parse_price(text)) == pico_per_token(text)
