"""Local time by a zone's name: months, days and bands of the week. The one home of `zoneinfo`.

Instants are microseconds since 1970 UTC. Wall time is only ever derived from an instant; the one
way back is the start of a day, and it is defined for clocks that skip or repeat their midnight.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from difflib import get_close_matches
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from typing import Final, Protocol
from zoneinfo import TZPATH, ZoneInfo, ZoneInfoNotFoundError, available_timezones

from ledger.clock import from_us, to_us
from ledger.errors import BadQuery, BadZone

DAY_US: Final = 86_400_000_000
_STEP_US: Final = DAY_US // 4
"""Between two looks at a zone's offset. No zone was ever seen to change it and back in so short a
time; a test compares with every minute of the zones that changed most often."""


class Weekly(Protocol):
    """Some part of a week by local time, as `ledger.folds.prices.PricedBand`: weekdays (1 is
    Monday), and minutes of the day, half open."""

    @property
    def days(self) -> Sequence[int]: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


def zone_of(name: str) -> ZoneInfo:
    """The zone called `name`, such as `Europe/Berlin`. Raises `BadZone`, with the nearest name."""
    if name not in _names():
        near = _nearest(name)
        hint = "" if near is None else f"; did you mean {near}?"
        raise BadZone(f"there is no time zone {name!r}; write a name such as Europe/Berlin{hint}")
    return _zone(name)


def month_span(month: str, zone: str) -> tuple[int, int]:
    """The first instant of a month, `2026-11`, in `zone`, and that of the next.

    It begins with the midnight of its first day: the first of two, and where the clock skips it,
    with the first instant after. Raises `BadQuery` for text that is no month, and `BadZone`.
    """
    year, number = _month(month)
    zone_of(zone)
    following = date(year + number // 12, number % 12 + 1, 1)
    return _midnight(date(year, number, 1), zone), _midnight(following, zone)


def month_of(us: int, zone: str) -> str:
    """The month that an instant belongs to in `zone`: the one whose span holds it."""
    here = _wall(us, zone_of(zone))
    year, number = here.year, here.month
    # A clock that is set back over midnight tells the old month again when the new one has begun.
    following = date(year + number // 12, number % 12 + 1, 1)
    if us >= _midnight(following, zone):
        year, number = following.year, following.month
    return f"{year:04}-{number:02}"


def next_month(month: str) -> str:
    """The month after `month`. Raises `BadQuery` for text that is no month."""
    year, number = _month(month)
    return f"{year + number // 12:04}-{number % 12 + 1:02}"


def day_start(us: int, zone: str) -> int:
    """The instant at which the local day of `us` began; days tile time as months do."""
    return _midnight(_day(us, zone), zone)


def local_day(us: int, zone: str) -> str:
    """The local day that an instant belongs to, `2026-11-30`: the one whose start came last."""
    return _day(us, zone).isoformat()


def _day(us: int, zone: str) -> date:
    day = _wall(us, zone_of(zone)).date()
    return day + timedelta(days=1) if us >= _midnight(day + timedelta(days=1), zone) else day


# A bill asks for every key and model at the start of the same part of time.
@lru_cache(maxsize=1024)
def local(us: int, zone: str) -> tuple[int, int]:
    """The weekday (1 is Monday) and the minute of the day that a clock in `zone` shows at `us`."""
    here = _wall(us, zone_of(zone))
    return here.isoweekday(), here.hour * 60 + here.minute


def band_edges(zone: str, bands: Iterable[Weekly], first_us: int, after_us: int) -> list[int]:
    """The instants inside a span, without its ends, at which another of `bands` begins to hold.

    Bands are told by what the clock shows: an hour that it skips has none, and one that it shows
    twice has its band twice.
    """
    held = list(bands)
    there = zone_of(zone)
    found = set(_offset_changes(there, first_us, after_us))
    day = _wall(first_us, there).date() - timedelta(days=1)
    last = _wall(after_us, there).date() + timedelta(days=1)
    while day <= last:
        weekday = day.isoweekday()
        minutes = {m for b in held if weekday in b.days for m in (b.start, b.end)}
        for minute in minutes:
            shown = datetime.combine(day, time()) + timedelta(minutes=minute)
            found |= {_instant(shown, there, fold) for fold in (0, 1)}
        day += timedelta(days=1)
    return sorted(
        edge
        for edge in found
        if first_us < edge < after_us
        and _holding(held, *local(edge - 1, zone)) != _holding(held, *local(edge, zone))
    )


@lru_cache(maxsize=1)
def tzdata_version() -> str:
    """The version of the zones' rules that are in use, such as `2026a`, or `unknown`."""
    for root in TZPATH:
        for name in ("tzdata.zi", "+VERSION"):
            try:
                with (Path(root) / name).open(encoding="utf-8") as file:
                    words = file.readline().split()
            except OSError:
                continue
            if words:
                return words[-1]
    try:
        return str(import_module("tzdata").IANA_VERSION)
    except (ImportError, AttributeError):
        return "unknown"


@lru_cache(maxsize=1)
def _names() -> frozenset[str]:
    # Neither is a place: one is what this machine happens to be set to, the other a template.
    return frozenset(available_timezones() - {"localtime", "Factory"})


def _nearest(name: str) -> str | None:
    lowered = {known.lower(): known for known in sorted(_names())}
    ends = {known.rpartition("/")[2].lower(): known for known in sorted(_names())}
    for words in (lowered, ends):
        close = get_close_matches(name.strip().lower().replace(" ", "_"), words, n=1)
        if close:
            return words[close[0]]
    return None


@lru_cache(maxsize=64)
def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as wrong:
        raise BadZone(f"the rules of the time zone {name} cannot be read: {wrong}") from wrong


def _month(month: str) -> tuple[int, int]:
    year, dash, number = month.partition("-")
    right = bool(dash) and len(year) == 4 and len(number) == 2
    right = right and month.isascii() and (year + number).isdecimal()
    if not right or not 1 <= int(number) <= 12 or not 1970 <= int(year) < 9999:
        raise BadQuery(f"{month!r} is not a month; write year and month, such as 2026-11")
    return int(year), int(number)


def _wall(us: int, zone: ZoneInfo) -> datetime:
    return from_us(us).astimezone(zone)


def _instant(shown: datetime, zone: ZoneInfo, fold: int) -> int:
    return to_us(shown.replace(tzinfo=zone, fold=fold).astimezone(UTC))


@lru_cache(maxsize=4096)
def _midnight(day: date, name: str) -> int:
    zone = _zone(name)
    midnight = datetime.combine(day, time())
    found = _instant(midnight, zone, 0)
    earlier = _instant(midnight, zone, 1)
    if found <= earlier:
        return found
    # The clock never showed this midnight: it begins where the clock was set forward.
    return _turn(earlier, found, lambda us: _wall(us, zone).replace(tzinfo=None) >= midnight)


def _offset_changes(zone: ZoneInfo, first_us: int, after_us: int) -> list[int]:
    found = []
    at, offset = first_us, _wall(first_us, zone).utcoffset()
    while at < after_us:
        then = min(at + _STEP_US, after_us)
        new = _wall(then, zone).utcoffset()
        if new != offset:
            found.append(_turn(at, then, partial(_other_offset, zone, offset)))
        at, offset = then, new
    return found


def _other_offset(zone: ZoneInfo, old: timedelta | None, us: int) -> bool:
    return _wall(us, zone).utcoffset() != old


def _turn(before: int, after: int, is_after: Callable[[int], bool]) -> int:
    """The first instant behind `before`, at or ahead of `after`, for which `is_after` holds."""
    while after - before > 1:
        middle = (before + after) // 2
        before, after = (before, middle) if is_after(middle) else (middle, after)
    return after


def _holding(bands: Sequence[Weekly], weekday: int, minute: int) -> int | None:
    for place, band in enumerate(bands):
        if weekday in band.days and band.start <= minute < band.end:
            return place
    return None
