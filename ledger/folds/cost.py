"""What counts cost at a price: the one rule of the bill, of attempts and of explanations. Pure."""

from collections.abc import Mapping

import msgspec

from ledger.amounts import cost_pico
from ledger.folds.prices import Price


class Cost(msgspec.Struct, frozen=True):
    """`pico` is 10^-12 of `currency`; null if no price applies, a bucket that holds tokens has none
    (`unpriced` names it), or no count is known: the cost of what nobody could count is not zero."""

    pico: int | None
    currency: str | None
    unpriced: tuple[str, ...] = ()


def cost_of(tokens: Mapping[str, int | None], price: Price | None) -> Cost:
    """What `tokens`, by bucket, cost at `price` (null: nobody has set one)."""
    pico, unpriced = cost_pico(tokens, price.pico if price else {})
    known = any(count is not None for count in tokens.values())
    if price is None:
        return Cost(None, None, unpriced)
    return Cost(pico if known else None, price.currency, unpriced)
