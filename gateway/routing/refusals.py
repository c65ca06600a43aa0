"""How much of what a backend is asked it refuses at once, whoever is to blame for that. Pure.

An engine that is full (429), that was restarted with another model (404) or that forbids a call
(403) answers in a moment, and so seems the least busy of all. Each of these can also be a client's
own fault, so none of them opens a breaker; but while they go on, the backend is behind the others.
Times are seconds of a monotonic clock, given as arguments.
"""

from typing import Final

import msgspec

from gateway.routing.breaker import HALF_LIFE_SECONDS

REFUSED: Final = frozenset((401, 403, 404, 429))
"""The statuses of a refusal, for which another backend is tried. 401 is a fault of the server too,
and its breaker judges that; 408 is none of them: it comes after a wait, and so draws nothing."""

GAIN: Final = 1 / 16
"""By so much of what is left the part moves with each attempt: a single refusal says little, and
forty in a row say nearly all."""

FORGOTTEN: Final = 0.02
"""A part below this is none. A single refusal is forgotten after 17 s."""


class Refusals(msgspec.Struct, frozen=True):
    """The part of the attempts that were refused, 0 to 1, as it was at the time `at`."""

    part: float = 0.0
    at: float = 0.0


NONE: Final = Refusals()
"""Of a backend that refused nothing of late: then nothing is counted."""


def refused(known: Refusals, now: float) -> Refusals:
    """An attempt was refused: part + (1 - part) x GAIN."""
    part = _faded(known, now)
    return Refusals(part + (1 - part) * GAIN, now)


def taken(known: Refusals, now: float) -> Refusals:
    """An attempt was not refused: part x (1 - GAIN)."""
    part = _faded(known, now) * (1 - GAIN)
    return NONE if part < FORGOTTEN else Refusals(part, now)


def refused_part(known: Refusals, now: float) -> float:
    """The part now, 0 to 1 in hundredths: it fades by half in `HALF_LIFE_SECONDS`, so that the
    backend is tried again although nobody asks it."""
    part = _faded(known, now)
    return 0.0 if part < FORGOTTEN else round(part, 2)


def _faded(known: Refusals, now: float) -> float:
    part: float = 0.5 ** (max(now - known.at, 0.0) / HALF_LIFE_SECONDS)
    return known.part * part
