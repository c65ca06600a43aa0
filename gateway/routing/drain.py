"""How long a backend that gets nothing new may still be at work, by what runs there. Pure."""

from collections.abc import Iterable
from typing import Final

import msgspec

INTERVAL_DEFAULT_US: Final = 100_000
"""Between two tokens, where no answer has told yet: ten a second is slow for any server that people
wait for, so the bound errs to the safe side."""


class Running(msgspec.Struct, frozen=True):
    """One request at the backend. Times are in microseconds.

    `left`: tokens that its longest answer may still have, null if it was given no limit.
    `interval_us`: between two of its tokens, null if that is not known. `before_us`: until its
    first token, 0 once that came. `limit_us`: until its total time limit ends it in any case.
    """

    left: int | None
    interval_us: int | None
    before_us: int
    limit_us: int


def longest_wait_us(running: Iterable[Running]) -> int | None:
    """The longest that one of `running` may still take, in microseconds; null if nothing runs.

    wait = min(before + left × interval, limit); without a limit of tokens the time limit stands.
    """
    return max((_wait_us(one) for one in running), default=None)


def _wait_us(one: Running) -> int:
    if one.left is None:
        return max(one.limit_us, 0)
    interval = INTERVAL_DEFAULT_US if one.interval_us is None else one.interval_us
    return max(min(one.before_us + one.left * interval, one.limit_us), 0)
