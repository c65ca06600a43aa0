"""How a month stands: open, closed, or settled with the first month that was closed. Pure."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from ledger.folds.money import Period

State = Literal["open", "closed", "settled"]
"""What may still happen to a month.

open     what it adds up to may change; months are closed one after another
closed   it was closed, and has a root of its own
settled  it is before the first month that was closed. That one's cut and prices hold for it too, so
         that it stands still as well; it can never be closed itself, and has no root
"""


class Standing(msgspec.Struct, frozen=True):
    """How `month` stands. `period` is the closing whose cut and prices hold for it: its own, or
    that of the first closed month; null while it is open."""

    month: str
    state: State
    period: Period | None

    @property
    def own(self) -> Period | None:
        """Its own closing; null if it has none."""
        return self.period if self.state == "closed" else None

    @property
    def settled_with(self) -> str | None:
        """The month that it was settled with; null if it is open or was closed itself."""
        return self.period.month if self.period is not None and self.own is None else None


def standing_of(periods: Sequence[Period], month: str) -> Standing:
    """How `month`, `2026-11`, stands after these closings, oldest first."""
    if periods and month < periods[0].month:
        return Standing(month, "settled", periods[0])
    own = next((period for period in periods if period.month == month), None)
    return Standing(month, "open" if own is None else "closed", own)
