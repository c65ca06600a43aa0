"""Requests that have tokens without a price: one number, whoever counts it."""

import random
import tempfile
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledger.clock import to_us
from ledger.events import Draft, PriceEntry, Usage
from ledger.export.facts import month_in
from ledger.export.month import export_month
from ledger.export.sums import ended_requests
from ledger.folds.cost import lacks_price
from ledger.folds.rating import Sheet
from ledger.sql import tables
from ledger.sql.checks import known_requests
from ledger.sql.periods import month_sums, parted
from ledger.sql.rated import Sheets, rated_request
from ledger.sql.replay import load_book
from ledger.sql.rows import request_of
from ledger.sql.session import Ledger, ReadSession
from ledger.sql.unpriced import unpriced_requests
from ledger.zones import month_of
from tests.ledger.closings import close
from tests.ledger.ledgers import Feeder, Make, scribed
from tests.ledger.month_world import NOVEMBER, OTHER, RUNNER, Gateway, clean
from tests.ledger.test_rated import FIRST, HOURS, moves, registry, requests
from tests.support import events as say
from tests.support.events import Scribe
from tests.support.prices import ZONES, entries

MONTHS = ("2026-11", "2026-12", "2027-01")
JANUARY = datetime(2026, 1, 1, tzinfo=UTC)


def one_by_one(read: ReadSession, ids: list[str]) -> dict[str, Counter[str | None]]:
    """By month and project the requests that are unpriced, each looked at for itself as it is."""
    book = load_book(read)
    sheets = Sheets(book)
    found: dict[str, Counter[str | None]] = {}
    for row in known_requests(read, ids).values():
        assert row.accepted_at is not None
        at = to_us(row.accepted_at)
        one = rated_request(row, sheets.at(at))
        if one is not None and lacks_price(one):
            found.setdefault(month_of(at, book.rules.zone), Counter())[one.project_id] += 1
    return found


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.sampled_from(ZONES), entries(FIRST, HOURS), moves(), requests())
def test_it_is_the_count_of_single_requests_whatever_the_prices(
    make_ledger: Make,
    zone: str,
    listed: list[PriceEntry],
    moved: list[Draft],
    drafts: list[Draft],
) -> None:
    with (
        tempfile.TemporaryDirectory() as directory,
        make_ledger(Path(directory), "unpriced") as ledger,
    ):
        Feeder(ledger, "registry").feed(scribed(registry(zone, listed, moved), "/cli/1"))
        Feeder(ledger, "usage").feed(scribed(drafts, "/gw/1"))
        with ledger.read() as read:
            book = load_book(read)
            wanted = one_by_one(read, [f"r{number}" for number in range(len(drafts))])
            for month in ("2026-10", "2026-11"):
                assert unpriced_requests(read, book, month) == wanted.get(month, Counter())
                sums = month_sums(read, book, month)
                assert sums.unpriced == wanted.get(month, Counter()).total()


def at_the_cut(read: ReadSession, month: str) -> int:
    """The same of a closed month: its requests as they stood at its cut, at its frozen prices."""
    found = month_in(read, month)
    sheet = Sheet(found.prices, found.book.members)
    names = [column.name for column in tables.requests.columns]
    count = 0
    for columns, _ in ended_requests(read, found.span, names, found.closed):
        for cells in zip(*columns.values(), strict=True):
            one = rated_request(request_of(cells), sheet)
            count += one is not None and lacks_price(one)
    return count


def life(ledger: Ledger, dice: random.Random) -> None:
    """Three months with prices that leave buckets out, for some of the time, and ends that come
    behind a month's cut."""
    prices = [
        say.price("p1", {"uncached_in": "2", "cached_in": "1"}, start=JANUARY),
        say.price(
            "p2",
            {"uncached_in": "2", "cached_in": "1", "other_out": "4"},
            base=1,
            start=NOVEMBER + timedelta(days=dice.randrange(40)),
        ),
    ]
    Feeder(ledger, "registry").feed(scribed(prices, "/cli/1"))
    gateway, other, feeder = Gateway(), Gateway(OTHER), Feeder(ledger)
    runner = Scribe(RUNNER)
    for n, month in enumerate(MONTHS[:2]):
        start = datetime(2026, 11 + n, 1, tzinfo=UTC)
        end = datetime(2026 + n, 12 - 11 * n, 1, tzinfo=UTC)
        feeder.feed([*gateway.marks(start), *other.marks(start)])
        late = []
        for number in range(12):
            name, at = f"r{n}-{number}", start + timedelta(hours=dice.randrange(700))
            model = dice.choice(("m", "m", "nobody-priced-this"))
            whose = dice.choice((gateway, other))
            feeder.feed(whose.says(say.accepted(name, at, model=model)))
            if dice.random() < 0.4:
                feeder.feed([runner.write(say.abandoned(name, at, model=model))])
            counts = (dice.choice((None, 0, 7)) for _ in range(3))
            names = ("uncached_in", "other_out", "reasoning_out")
            usage = Usage(**dict(zip(names, counts, strict=True)))
            end_of_it = say.finished(name, at, model=model, usage=usage)
            if dice.random() < 0.5:
                feeder.feed(whose.says(end_of_it))
            else:
                late.append((whose, end_of_it))
        feeder.feed([*gateway.marks(end), *other.marks(end)])
        close(ledger, month)
        for whose, end_of_it in late:
            feeder.feed(whose.says(end_of_it))


@pytest.mark.parametrize("seed", range(4))
def test_closings_manifests_and_single_requests_agree(
    ledger: Ledger, tmp_path: Path, seed: int
) -> None:
    life(ledger, random.Random(seed))
    seen = set()
    with ledger.read() as read:
        book = load_book(read)
        frozen = {period.month: period.unpriced for period in book.periods}
        for month in MONTHS:
            wanted = at_the_cut(read, month)
            seen.add(wanted)
            assert unpriced_requests(read, book, month).total() == wanted
            assert frozen.get(month, wanted) == wanted
            for kind in ("parquet", "csv"):
                done = export_month(ledger, month, tmp_path, kind=kind)
                assert done.manifest.unpriced == wanted, (month, kind)
    assert max(seen) > 3, "a world in which everything has a price shows nothing"
    clean(ledger)


def test_part_of_the_tokens_without_a_price_is_enough_and_none_of_them_is_not(
    ledger: Ledger,
) -> None:
    """On one line of the bill: what lacks a price, what has one, and what used nothing of it."""
    price = say.price("p", {"uncached_in": "2"}, start=JANUARY)
    Feeder(ledger, "registry").feed(scribed([price], "/cli/1"))
    used = [Usage(uncached_in=5, other_out=1), Usage(uncached_in=5, other_out=0), Usage()]
    drafts = [say.finished(f"r{n}", NOVEMBER, usage=one) for n, one in enumerate(used)]
    Feeder(ledger).feed(scribed(drafts))
    with ledger.read() as read:
        book = load_book(read)
        assert unpriced_requests(read, book, "2026-11") == {None: 1}
        assert month_sums(read, book, "2026-11").wholly == 0


def test_a_month_that_an_older_version_closed_keeps_its_number(ledger: Ledger) -> None:
    """It counted requests without any price alone; a number that is neither is a finding."""
    price = say.price("p", {"uncached_in": "2"}, start=JANUARY)
    Feeder(ledger, "registry").feed(scribed([price], "/cli/1"))
    gateway = Gateway()
    usage = Usage(uncached_in=5, other_out=1)
    told = [*gateway.marks(NOVEMBER), *gateway.says(say.finished("r1", NOVEMBER, usage=usage))]
    Feeder(ledger).feed([*told, *gateway.marks(datetime(2026, 12, 1, tzinfo=UTC))])
    assert close(ledger).unpriced == 1
    with ledger.read() as read:
        book = load_book(read)
        assert list(parted(read, book)) == []
        (period,) = book.periods
        for number, words in ((0, ""), (2, "unpriced 2, and its events within the cut come to 1")):
            said = msgspec.structs.replace(period, unpriced=number)
            found = list(parted(read, msgspec.structs.replace(book, periods=(said,))))
            assert (words in "".join(found)) and bool(found) == bool(words)
