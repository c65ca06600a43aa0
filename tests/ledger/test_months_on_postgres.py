"""On Postgres the rows of a month stand together, and nothing that is counted depends on it."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import text

from ledger.audit import audit
from ledger.sql import migrate
from ledger.sql.bill import bill
from ledger.sql.hashes import projection_hash
from ledger.sql.rebuild import rebuild
from ledger.sql.session import Ledger
from tests.growth.fill import fill
from tests.growth.traffic import months_of
from tests.ledger.ledgers import Feeder, Make, scribed
from tests.support import events as say

BEFORE = "20261201_finance"
"""The last schema in which every month stood in one table."""


@pytest.fixture
def ledger(make_on_postgres: Make, tmp_path: Path) -> Iterator[Ledger]:
    with make_on_postgres(tmp_path, "ledger") as made:
        yield made


def parts(ledger: Ledger, table: str) -> dict[str, int]:
    """The rows in each part of `table` that has any."""
    counted = text(f"SELECT tableoid::regclass::text, count(*) FROM {table} GROUP BY 1")
    with ledger.read() as read:
        return {row[0]: row[1] for row in read.rows(counted)}


@pytest.mark.parametrize(
    ("first_digits", "part"),
    [
        ("01a19467e800", "2026_11"),  # the first millisecond of November 2026
        ("01a19467e7ff", "others"),  # the one before: older than all parts
        ("01a22ee6afff", "2026_11"),
        ("01a22ee6b000", "2026_12"),
        ("01c03276dfff", "2030_12"),
        ("01c03276e000", "others"),  # January 2031
    ],
)
def test_an_id_says_its_month(ledger: Ledger, first_digits: str, part: str) -> None:
    Feeder(ledger).feed(scribed(say.life(f"req_{first_digits}70008000000000000001")))
    assert parts(ledger, "requests") == {f"requests_{part}": 1}
    assert parts(ledger, "attempts") == {f"attempts_{part}": 1}


def test_the_roll_up_is_kept_by_the_hour_of_acceptance(ledger: Ledger) -> None:
    december = datetime(2026, 12, 1, tzinfo=UTC)
    moments = [december - timedelta(microseconds=1), december, datetime(2040, 1, 1, tzinfo=UTC)]
    lives = [life for n, at in enumerate(moments) for life in say.life(f"r{n}", at)]
    Feeder(ledger).feed(scribed(lives))
    assert parts(ledger, "usage_hourly") == {
        "usage_hourly_2026_11": 1,
        "usage_hourly_2026_12": 1,
        "usage_hourly_others": 1,
    }
    # Ids that are no times are among the others, and bills do not care.
    assert parts(ledger, "requests") == {"requests_others": 3}
    with ledger.read() as read:
        assert [line.requests for line in bill(read, "2026-11")] == [1]
        assert [line.requests for line in bill(read, "2026-12")] == [1]


def test_a_request_counts_when_it_was_accepted_and_not_when_its_id_was_made(
    ledger: Ledger,
) -> None:
    made_in_november = f"req_{'01a22ee6afff70008000000000000001'}"
    accepted = datetime(2026, 12, 1, 0, 0, 3, tzinfo=UTC)
    Feeder(ledger).feed(scribed(say.life(made_in_november, accepted)))
    assert parts(ledger, "requests") == {"requests_2026_11": 1}
    with ledger.read() as read:
        assert bill(read, "2026-11") == []
        assert [line.requests for line in bill(read, "2026-12")] == [1]


def test_a_ledger_that_has_rows_comes_up_with_the_same_ones(ledger: Ledger) -> None:
    fill(ledger, months_of("2026-10", 4, 400), seed=3)
    with ledger.read() as read:
        before = projection_hash(read)
    parted = {name: parts(ledger, name) for name in ("requests", "attempts", "usage_hourly")}
    assert len(parted["requests"]) == 4
    with ledger.write() as tx:
        migrate.downgrade(tx.connection, BEFORE)
    whole = parts(ledger, "requests")
    assert whole == {"requests": 400}
    migrate.bring_up(ledger)
    assert {name: parts(ledger, name) for name in parted} == parted
    with ledger.read() as read:
        assert projection_hash(read) == before
        assert audit(read).clean
    assert rebuild(ledger).parted == ()
    assert {name: parts(ledger, name) for name in parted} == parted


def test_a_request_is_one_row_however_often_it_is_told(ledger: Ledger) -> None:
    """The key of each table holds over all of its parts."""
    life = say.life("req_01a22ee6b00070008000000000000001")
    first, again = Feeder(ledger, "one"), Feeder(ledger, "two")
    assert first.feed(scribed(life)).inserted == 3
    assert again.feed(scribed(life)).inserted == 0
    late = say.finished("req_01a22ee6b00070008000000000000001", usage=say.tokens(out=9))
    assert again.feed(scribed([late], "/gateway/other/1")).conflicts == 1
    assert parts(ledger, "requests") == {"requests_2026_12": 1}
