"""Money and token counts as integers; every rounding rule of the project is here. Pure.

A price is held as an integer count of 10^-12 of the currency for one token ("pico"), which holds
any price per million tokens of up to six decimals exactly. A cost is the same unit.
"""

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation

from ledger.errors import AmountError

PICO_PER_UNIT = 10**12
PER_MILLION_DECIMALS_MAX = 6
"""More decimals of a price per million tokens would not fit 10^-12 of the currency per token."""


def pico_per_token(per_million: str) -> int:
    """The price of one token in pico, from the exact decimal price of a million tokens.

    Raises `AmountError` for anything that is no plain decimal, is negative, or is too fine.
    """
    try:
        price = Decimal(per_million)
    except InvalidOperation:
        raise AmountError(f"{per_million!r} is not a decimal number, such as 0.15") from None
    if not price.is_finite() or price < 0:
        raise AmountError(f"a price is a number from 0 up, not {per_million!r}")
    scaled = price.scaleb(PER_MILLION_DECIMALS_MAX)
    if scaled != scaled.to_integral_value():
        raise AmountError(
            f"{per_million} has more than {PER_MILLION_DECIMALS_MAX} decimals; "
            "a price per million tokens is held to a millionth of the currency"
        )
    return int(scaled)


def cost_pico(
    tokens: Mapping[str, int | None], prices: Mapping[str, int]
) -> tuple[int | None, tuple[str, ...]]:
    """The exact cost in pico of `tokens` per bucket at `prices` in pico per token.

    Returns `(cost, unpriced)`; `unpriced` names the buckets that hold tokens but have no price,
    and the cost is null if there is any: a missing price is never taken as zero.
    """
    unpriced = tuple(name for name, count in tokens.items() if count and name not in prices)
    if unpriced:
        return None, unpriced
    return sum(count * prices[name] for name, count in tokens.items() if count), ()


def decimal_text(pico: int) -> str:
    """An amount in pico as an exact decimal of the currency: 4500000 is `0.0000045`."""
    whole, part = divmod(abs(pico), PICO_PER_UNIT)
    digits = f"{part:012d}".rstrip("0")
    return f"{'-' if pico < 0 else ''}{whole}{'.' + digits if digits else ''}"
