"""A price as the books hold it: exact integers by bucket and charge, from an instant on. Pure."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

import msgspec

CHARGES: Final = ("request", "gpu_second", "failed_attempt")
"""What can have a price beside tokens: a request whose use is known; a second that a request spent
with a backend; a call to a backend that failed and was tried elsewhere."""


class PricedBand(msgspec.Struct, frozen=True, kw_only=True):
    """Other prices by weekday (1 is Monday) and minute of the local day, half open."""

    name: str
    days: tuple[int, ...]
    start: int
    end: int
    pico: Mapping[str, int]


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """One published price, from an instant on.

    `pico` maps a token bucket to 10^-12 of `currency` for one token, `charges` a charge to the same
    for one (of `gpu_second`: for one microsecond). `model` is a name or ends with `*`. `scope`
    null: for everybody. `discount`, in hundredths of a percent, is off the price that would hold
    without this one, which then has none of its own. `listed`: by a price list, not alone.
    """

    price_id: str
    model: str
    version: int
    currency: str
    effective_from: datetime
    pico: Mapping[str, int]
    charges: Mapping[str, int] = msgspec.field(default_factory=dict)
    scope: str | None = None
    discount: int | None = None
    zone: str | None = None
    bands: tuple[PricedBand, ...] = ()
    unit: int = 1_000_000
    listed: bool = False

    @property
    def is_pattern(self) -> bool:
        """True if it holds for every model whose name begins so. A single price of old may be of a
        model whose very name ends with a star."""
        return self.model == "*" or (self.listed and self.model.endswith("*"))
