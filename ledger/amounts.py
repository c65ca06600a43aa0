"""Money and token counts as integers; every rounding rule of the project is here. Pure.

A price is held as an integer count of 10^-12 of the currency for one token ("pico"), which holds
any price per million tokens of up to six decimals exactly. A cost is the same unit.
"""

import re
from typing import Final

from ledger.errors import AmountError

PICO_PER_UNIT = 10**12
PER_MILLION_DECIMALS_MAX = 6
"""More decimals of a price per million tokens would not fit 10^-12 of the currency per token."""
WHOLE_DIGITS_MAX = 12
"""A bound on a price in any currency, and on the work of reading one."""
PLAIN_DECIMAL = re.compile(r"([0-9]+)(?:\.([0-9]+))?")


def pico_per_token(per_million: str) -> int:
    """The price of one token in pico, from the exact decimal price of a million tokens.

    Raises `AmountError` for anything that is no plain decimal, is too large, or is too fine.
    """
    parts = PLAIN_DECIMAL.fullmatch(per_million)
    if parts is None:
        raise AmountError(
            f"a price is a plain decimal from 0 up, such as 0.15, not {per_million!r}"
        )
    whole, decimals = parts[1].lstrip("0"), (parts[2] or "").rstrip("0")
    if len(whole) > WHOLE_DIGITS_MAX:
        raise AmountError(f"a price has at most {WHOLE_DIGITS_MAX} digits before the point")
    if len(decimals) > PER_MILLION_DECIMALS_MAX:
        raise AmountError(
            f"{per_million} has more than {PER_MILLION_DECIMALS_MAX} decimals; "
            "a price per million tokens is held to a millionth of the currency"
        )
    return int((whole or "0") + decimals.ljust(PER_MILLION_DECIMALS_MAX, "0"))


def pico_of_unit(name: str, text: str, unit: int) -> int:
    """The price of one token, request or attempt in pico, or of a microsecond (`gpu_second`), from
    the exact decimal price of `unit` tokens or of one of the others.

    Raises `AmountError` as `pico_per_token` does, and where it is too fine for a whole pico.
    """
    millionth = pico_per_token(text)
    if name == "gpu_second":
        return millionth
    times = 1_000_000 if name in ("request", "failed_attempt") else 1_000_000 // unit
    return millionth * times


def signed_pico(text: str) -> int:
    """An amount of money in pico, from its plain decimal with an optional minus. Raises
    `AmountError`; at most 12 decimals and 12 digits before the point."""
    parts = PLAIN_DECIMAL.fullmatch(text.removeprefix("-"))
    if parts is None or len(parts[1]) > WHOLE_DIGITS_MAX or len(parts[2] or "") > 12:
        raise AmountError(
            f"an amount is a plain decimal with at most 12 digits on either side of the point, "
            f"such as 25.00 or -3.5, not {text!r}"
        )
    pico = int(parts[1] + (parts[2] or "").ljust(12, "0"))
    return -pico if text.startswith("-") else pico


PERCENT_PARTS: Final = 10_000
"""A discount is held in hundredths of a percent."""


def discounted(pico: int, parts: int) -> int:
    """A unit's price less `parts` hundredths of a percent, as a whole pico, half to even: the one
    rounding before an invoice, done once for a price and never for a cost."""
    exact = pico * (PERCENT_PARTS - parts)
    whole, part = exact // PERCENT_PARTS, exact % PERCENT_PARTS
    up = 2 * part > PERCENT_PARTS or (2 * part == PERCENT_PARTS and whole % 2 == 1)
    return whole + up


def decimal_text(pico: int) -> str:
    """An amount in pico as an exact decimal of the currency: 4500000 is `0.0000045`."""
    whole, part = divmod(abs(pico), PICO_PER_UNIT)
    digits = f"{part:012d}".rstrip("0")
    return f"{'-' if pico < 0 else ''}{whole}{'.' + digits if digits else ''}"


MINOR_DIGITS: Final = {
    **dict.fromkeys(("BIF", "CLP", "DJF", "GNF", "ISK", "JPY", "KMF", "KRW", "PYG", "RWF"), 0),
    **dict.fromkeys(("UGX", "UYI", "VND", "VUV", "XAF", "XOF", "XPF"), 0),
    **dict.fromkeys(("BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND"), 3),
}
"""Decimals of currencies that have not two, by ISO 4217."""


def rounded(pico: int, currency: str, rule: str = "half_even") -> int:
    """`pico` as the nearest amount that can be paid in `currency`, still in pico.

    `rule` is `half_even`, `half_up` (away from zero) or `down` (towards zero). An amount below zero
    is rounded like the same above it, so that a credit note mirrors its invoice.
    """
    step: int = 10 ** (12 - MINOR_DIGITS.get(currency, 2))
    whole, part = divmod(abs(pico), step)
    up = 2 * part > step or (2 * part == step and (rule == "half_up" or whole % 2 == 1))
    if up and rule != "down":
        whole += 1
    return whole * step if pico >= 0 else -whole * step


def money_text(pico: int, currency: str) -> str:
    """A rounded amount with all decimals of its currency: `12.50`."""
    digits = MINOR_DIGITS.get(currency, 2)
    whole, part = divmod(abs(pico), PICO_PER_UNIT)
    decimals = f"{part:012d}"[:digits]
    return f"{'-' if pico < 0 else ''}{whole}{'.' + decimals if decimals else ''}"


def pico_of(amount: str) -> int:
    """An exact decimal of a currency in pico: the inverse of `decimal_text`."""
    whole, _, part = amount.removeprefix("-").partition(".")
    pico = int(whole) * PICO_PER_UNIT + int((part or "0").ljust(12, "0"))
    return -pico if amount.startswith("-") else pico
