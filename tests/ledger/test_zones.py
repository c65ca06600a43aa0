"""Local time by a zone's name: months and days tile time in every zone there is."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ledger.clock import from_us, to_us
from ledger.errors import BadQuery, BadZone
from ledger.folds.prices import PricedBand
from ledger.zones import (
    band_edges,
    day_start,
    local,
    local_day,
    month_of,
    month_span,
    next_month,
    tzdata_version,
    zone_of,
)

ZONES = sorted(available_timezones() - {"localtime", "Factory"})
MINUTE_US = 60_000_000
HOUR_US = 60 * MINUTE_US


def span(month: str, zone: str) -> tuple[str, str]:
    first, after = month_span(month, zone)
    return from_us(first).isoformat(), from_us(after).isoformat()


@pytest.mark.parametrize(
    ("month", "zone", "first", "after"),
    [
        ("2026-11", "UTC", "2026-11-01T00:00:00+00:00", "2026-12-01T00:00:00+00:00"),
        # Summer time ends within one, begins within the other.
        ("2026-10", "Europe/Berlin", "2026-09-30T22:00:00+00:00", "2026-10-31T23:00:00+00:00"),
        ("2026-03", "Europe/Berlin", "2026-02-28T23:00:00+00:00", "2026-03-31T22:00:00+00:00"),
        ("2026-11", "Asia/Kathmandu", "2026-10-31T18:15:00+00:00", "2026-11-30T18:15:00+00:00"),
        # Midnight comes twice: at one o'clock the clock goes back to it.
        ("2026-11", "America/Havana", "2026-11-01T04:00:00+00:00", "2026-12-01T05:00:00+00:00"),
        # A minute past midnight the clock went back over it, into October.
        ("2009-11", "America/St_Johns", "2009-11-01T02:30:00+00:00", "2009-12-01T03:30:00+00:00"),
        # The clock went from midnight straight to one o'clock.
        ("2017-10", "America/Asuncion", "2017-10-01T04:00:00+00:00", "2017-11-01T03:00:00+00:00"),
        # There was no thirtieth of December.
        ("2011-12", "Pacific/Apia", "2011-12-01T10:00:00+00:00", "2011-12-31T10:00:00+00:00"),
    ],
)
def test_a_month_begins_with_its_first_local_midnight(
    month: str, zone: str, first: str, after: str
) -> None:
    assert span(month, zone) == (first, after)


def test_months_tile_time_in_every_zone() -> None:
    """No instant is in two months or in none, whatever the clock did at the edge."""
    for zone in ZONES:
        before = None
        for year in (1970, 1996, 2009, 2011, 2017, 2026, 2037):
            for number in range(1, 13):
                month = f"{year}-{number:02}"
                first, after = month_span(month, zone)
                assert first < after
                if number > 1:
                    assert before == first, f"{month} in {zone}"
                before = after
                assert month_of(first, zone) == month_of(after - 1, zone) == month
                assert month_of(after, zone) == next_month(month), f"{month} in {zone}"


@given(
    zone=st.sampled_from(ZONES),
    us=st.integers(2 * 24 * HOUR_US, to_us(datetime(2060, 1, 1, tzinfo=UTC))),
)
@example(zone="America/St_Johns", us=to_us(datetime(2009, 11, 1, 2, 45, tzinfo=UTC)))
def test_an_instant_is_in_the_month_and_the_day_that_hold_it(zone: str, us: int) -> None:
    first, after = month_span(month_of(us, zone), zone)
    assert first <= us < after
    began = day_start(us, zone)
    assert began <= us < began + 29 * HOUR_US
    assert local_day(began, zone) == local_day(us, zone)
    assert day_start(began, zone) == began
    assert local_day(began - 1, zone) < local_day(began, zone)
    here = from_us(us).astimezone(ZoneInfo(zone))
    assert local(us, zone) == (here.isoweekday(), here.hour * 60 + here.minute)
    # A clock that went back over midnight tells yesterday again for an hour at most.
    assert abs((here.date() - datetime.fromisoformat(local_day(us, zone)).date()).days) <= 1


bands_of_a_week = st.lists(
    st.builds(
        lambda days, start, length: PricedBand(
            name="band", days=tuple(days), start=start, end=min(1440, start + length), pico={}
        ),
        st.sets(st.integers(1, 7), min_size=1),
        st.integers(0, 1439),
        st.integers(1, 1440),
    ),
    min_size=1,
    max_size=3,
)

CHANGES = [
    ("Europe/Berlin", datetime(2026, 3, 29, tzinfo=UTC)),
    ("Europe/Berlin", datetime(2026, 10, 25, tzinfo=UTC)),
    ("America/Havana", datetime(2026, 11, 1, tzinfo=UTC)),
    ("America/St_Johns", datetime(2009, 11, 1, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 4, 4, 15, tzinfo=UTC)),
    ("Pacific/Apia", datetime(2011, 12, 30, tzinfo=UTC)),
    ("Africa/Casablanca", datetime(2026, 2, 15, tzinfo=UTC)),
    ("Asia/Kathmandu", datetime(2026, 11, 3, tzinfo=UTC)),
]


@given(bands=bands_of_a_week, when=st.sampled_from(CHANGES), shift=st.integers(-2000, 2000))
def test_bands_change_where_the_clock_says(
    bands: list[PricedBand], when: tuple[str, datetime], shift: int
) -> None:
    """Compared with a look at every minute around a change of the clock."""
    zone, at = when
    first = to_us(at + timedelta(minutes=shift - 1500))
    after = first + 3000 * MINUTE_US

    def holding(us: int) -> int | None:
        weekday, minute = local(us, zone)
        there = (b.start <= minute < b.end and weekday in b.days for b in bands)
        return next((place for place, holds in enumerate(there) if holds), None)

    seen = [
        us
        for us in range(first + MINUTE_US, after, MINUTE_US)
        if holding(us) != holding(us - MINUTE_US)
    ]
    assert band_edges(zone, bands, first, after) == seen


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("Europe/Berln", "did you mean Europe/Berlin?"),
        ("berlin", "did you mean Europe/Berlin?"),
        ("new york", "did you mean America/New_York?"),
        ("../../etc/passwd", "write a name such as Europe/Berlin"),
        ("/etc/localtime", "write a name such as Europe/Berlin"),
        ("+01:00", "write a name such as Europe/Berlin"),
        ("", "write a name such as Europe/Berlin"),
        ("localtime", "write a name"),
    ],
)
def test_a_zone_that_is_none_is_refused_with_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(BadZone, match="there is no time zone") as wrong:
        zone_of(name)
    assert hint in str(wrong.value)


@pytest.mark.parametrize("month", ["2026", "2026-13", "2026-1", "26-11", "2026-00", "１９８０-01"])
def test_text_that_is_no_month_is_refused(month: str) -> None:
    with pytest.raises(BadQuery, match="is not a month"):
        month_span(month, "UTC")


def test_the_rules_in_use_have_a_version() -> None:
    assert tzdata_version() != "unknown"
