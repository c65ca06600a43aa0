"""The one home of the wall clock. Everything else takes time as an argument or from an event."""

import time
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Protocol

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


class Clock(Protocol):
    """What the edges know of time. Neither method blocks or raises."""

    def now(self) -> datetime:
        """Wall time, aware, UTC, in microseconds: for dates on events, never for durations."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start that never run backwards: for durations only."""
        ...


class SystemClock:
    """The machine's clocks. They are asked a dozen times for each request, so no function of ours
    stands around them."""

    now = staticmethod(partial(datetime.now, UTC))
    monotonic = staticmethod(time.monotonic)


def to_us(moment: datetime) -> int:
    """Microseconds since 1970 UTC of an aware `moment`; exact, no float is involved."""
    return (moment - EPOCH) // MICROSECOND


def from_us(microseconds: int) -> datetime:
    """The aware UTC moment `microseconds` after 1970; the inverse of `to_us`."""
    return EPOCH + timedelta(microseconds=microseconds)
