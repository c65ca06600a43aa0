"""What counts cost at a rate: the one rule of the bill, of attempts and of explanations. Pure."""

from collections.abc import Mapping

import msgspec

from ledger.events import BUCKETS
from ledger.folds.rating import Rate, Rated
from ledger.folds.usage import by_bucket


class Cost(msgspec.Struct, frozen=True):
    """`pico` is 10^-12 of `currency`; null if no price applies, a bucket that holds tokens has none
    (`unpriced` names it), or no count is known: the cost of what nobody could count is not zero."""

    pico: int | None
    currency: str | None
    unpriced: tuple[str, ...] = ()


def cost_of(used: Mapping[str, int | None], rate: Rate | None) -> Cost:
    """What `used`, by token bucket and charge, costs at `rate` (null: no price holds).

    A bucket that holds tokens must have a price. A charge is made where it has one.
    """
    pico = {} if rate is None else rate.pico
    unpriced = tuple(name for name in BUCKETS if used.get(name) and name not in pico)
    if rate is None or unpriced:
        return Cost(None, None if rate is None else rate.currency, unpriced)
    if all(count is None for count in used.values()):
        return Cost(None, rate.currency)
    return Cost(sum((used.get(name) or 0) * unit for name, unit in pico.items()), rate.currency)


def cost_of_rated(rated: Rated) -> Cost:
    """What one part of the usage costs."""
    return cost_of(rated.used, rated.rate)


def lacks_price(rated: Rated) -> bool:
    """True if tokens were counted here and what they cost is not known, because at least one of
    them has no price. What nobody could count lacks none."""
    return cost_of_rated(rated).pico is None and any(
        count is not None for count in by_bucket(rated.totals).values()
    )
