"""No question about one month goes through the rows of the others, closed ones least of all."""

import pytest
from sqlalchemy import text

from ledger.sql.session import Ledger
from tests.growth.fill import fill
from tests.growth.plans import as_if_large, parts, planned, plans, whole_scans
from tests.growth.traffic import months_of
from tests.ledger.closings import close


@pytest.fixture
def three_months(ledger: Ledger) -> Ledger:
    """November is closed, December is asked about, and January has begun."""
    months = months_of("2026-11", 3, 900)
    fill(ledger, months, 4, filled=lambda month: close_first(ledger, month.name))
    return ledger


def close_first(ledger: Ledger, month: str) -> None:
    if month == "2026-11":
        close(ledger, month)


def test_the_main_queries_look_at_their_own_month(three_months: Ledger) -> None:
    december = months_of("2026-12", 1, 300)[0]
    with three_months.read() as read:
        as_if_large(read)
        found = plans(read, december)
    for name, lines in found.items():
        assert len(lines) > 1, name
        assert whole_scans(lines) == [], name
    if three_months.dialect == "postgresql":
        # What is rolled up by the hour is looked at in its own part alone.
        assert {name: parts(lines, "usage_hourly") for name, lines in found.items()} == {
            "bill": {"2026_12"},
            "bill by day": {"2026_12"},
            "charges": {"2026_12"},
            "export": set(),
            "usage by hour": {"2026_12"},
            "usage by minute": set(),
            "close": {"2026_12"},
        }


def test_a_whole_scan_is_seen(three_months: Ledger) -> None:
    """Else the test above could not fail."""
    with three_months.read() as read:
        as_if_large(read)
        lines = planned(read, lambda: read.rows(text("SELECT * FROM requests WHERE status = 7")))
        assert whole_scans(lines) != []
        lines = planned(read, lambda: read.rows(text("SELECT sum(requests) FROM usage_hourly")))
        assert whole_scans(lines) != []
