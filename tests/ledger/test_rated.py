"""Usage at its rates: whatever the prices, bands, zones and projects, lines add up to requests."""

import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete

from ledger.amounts import pico_of
from ledger.clock import to_us
from ledger.events import BUCKETS, Basis, BooksSet, Draft, PriceEntry, Usage
from ledger.events.money import Band
from ledger.folds.cost import cost_of_rated
from ledger.folds.rating import Rated, split
from ledger.sql import tables
from ledger.sql.attempts import priced_attempts
from ledger.sql.bill import GROUPS, BillLine, bill
from ledger.sql.charges import Charge, charges
from ledger.sql.checks import known_requests
from ledger.sql.rated import Sheets, Step, month_lines, rated_request
from ledger.sql.replay import load_book
from ledger.sql.session import Ledger, ReadSession
from ledger.zones import month_of
from tests.ledger.ledgers import Feeder, Make, scribed
from tests.support import events as say
from tests.support.books import Books
from tests.support.prices import (
    KEYS,
    MODELS,
    PROJECTS,
    ZONES,
    assigned,
    entries,
    entry,
    listing,
    projects,
)

FIRST = datetime(2026, 10, 30, 17, tzinfo=UTC)
"""So that months begin within the usage in every zone, and clocks are set back in Havana."""

HOURS = 72
START = FIRST - timedelta(days=20)
MICROSECOND = timedelta(microseconds=1)
STEPS: tuple[Step, ...] = ("hour", "day", "span")

FIXTURE = [HealthCheck.function_scoped_fixture]

instants = st.integers(0, HOURS * 12).map(lambda n: FIRST + timedelta(minutes=5 * n))
counts = st.none() | st.sampled_from((0, 1, 7, 10**9))
usages = st.builds(Usage, **dict.fromkeys(BUCKETS, counts))


@st.composite
def requests(draw: st.DrawFn) -> list[Draft]:
    """Requests with an end, at instants just before, at and behind those of prices and bands."""
    drafts = []
    for number in range(draw(st.integers(1, 9))):
        at = draw(instants) + draw(st.sampled_from((-MICROSECOND, timedelta(), MICROSECOND)))
        key, model = draw(st.sampled_from(KEYS)), draw(st.sampled_from(MODELS))
        usage, attempts = draw(usages), draw(st.integers(0, 3))
        basis: Basis = draw(st.sampled_from(("reported", "counted", "none")))
        if basis == "none":
            usage = Usage()
        if draw(st.integers(0, 5)):
            took: dict[str, Any] = {"duration_us": draw(st.sampled_from((0, 999, 10**7)))}
            took |= {"overhead_us": 0 if took["duration_us"] == 0 else 7, "attempts": attempts}
            drafts.append(
                say.finished(f"r{number}", at, key, model, usage=usage, basis=basis, **took)
            )
        else:
            drafts.append(say.abandoned(f"r{number}", at, key, model, usage=usage, basis=basis))
    return drafts


@st.composite
def moves(draw: st.DrawFn) -> list[Draft]:
    """Keys that change their project, in the order of time."""
    ends = sorted(draw(st.lists(instants, max_size=3)))
    found: list[Draft] = []
    bases: dict[str, int] = {}
    for at in ends:
        key = draw(st.sampled_from(KEYS))
        project = draw(st.none() | st.sampled_from(PROJECTS))
        found.append(assigned(key, project, at, bases.get(key, 0)))
        bases[key] = bases.get(key, 0) + 1
    return found


def books_in(zone: str) -> Draft:
    said = BooksSet(base=0, version=1, zone=zone)
    return Draft("books/1", "books", START, said)


def registry(zone: str, listed: Sequence[PriceEntry], moved: Sequence[Draft]) -> list[Draft]:
    return [books_in(zone), *projects(START), listing(listed, START), *moved]


def lines_of(read: ReadSession, step: Step) -> list[Rated]:
    book = load_book(read)
    zone = book.rules.zone
    ends = FIRST - timedelta(days=1), FIRST + timedelta(hours=HOURS + 1)
    months = dict.fromkeys(month_of(to_us(at), zone) for at in ends)
    return [line for month in months for line in month_lines(read, book, month, step=step)]


def sums(lines: Sequence[Rated]) -> dict[tuple[object, ...], list[int]]:
    """Tokens, requests and cost by all that tells lines apart but the time."""
    found: dict[tuple[object, ...], list[int]] = {}
    for line in lines:
        cost = cost_of_rated(line)
        rate = None if line.rate is None else line.rate.name
        name = (line.project_id, line.key_id, line.model, line.basis, rate)
        numbers = [line.totals.requests, *line.totals.tokens, line.failed_attempts]
        numbers += [line.busy_us or 0, cost.pico or 0]
        old = found.setdefault(name, [0] * len(numbers))
        found[name] = [a + b for a, b in zip(old, numbers, strict=True)]
    return found


def by_request(read: ReadSession) -> list[Rated]:
    """Each request for itself, at the rate of its own instant."""
    sheets = Sheets(load_book(read))
    found: list[Rated] = []
    for row in known_requests(read, [f"r{number}" for number in range(9)]).values():
        assert row.accepted_at is not None
        one = rated_request(row, sheets.at(to_us(row.accepted_at)))
        if one is not None:
            found += split(one)
    return found


@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.sampled_from(ZONES), entries(FIRST, HOURS), moves(), requests(), st.data())
def test_lines_are_the_sums_of_requests(
    make_ledger: Make,
    zone: str,
    listed: list[PriceEntry],
    moved: list[Draft],
    drafts: list[Draft],
    data: st.DataObject,
) -> None:
    """By hour, by day and by month, with whatever bands, projects and parts of an hour there are;
    and the same whatever came first, prices or usage."""
    told = registry(zone, listed, moved)
    events = scribed(told, "/cli/1")
    used = data.draw(st.permutations(scribed(drafts, "/gw/1")))
    with tempfile.TemporaryDirectory() as directory:
        seen: list[list[object]] = []
        for number, late in enumerate((False, True)):
            with make_ledger(Path(directory), "one") as ledger:
                cut = data.draw(st.integers(0, len(used))) if late else len(used)
                feeder = Feeder(ledger, "usage")
                parts = [used[:cut], used[cut:]]
                feeder.feed(parts[0])
                Feeder(ledger, "registry").feed(events)
                feeder.feed(parts[1])
                with ledger.read() as read:
                    wanted = sums(by_request(read))
                    for step in STEPS:
                        lines = lines_of(read, step)
                        assert sums(lines) == wanted, (number, step)
                        assert [one.start_us for one in lines] == sorted(
                            one.start_us for one in lines
                        )
                    seen.append([bill(read, None, GROUPS), *_charged(read, wanted)])
        assert seen[0] == seen[1]


def _charged(read: ReadSession, wanted: dict[tuple[object, ...], list[int]]) -> list[object]:
    """The charges and the bill of all months; they come to the same as the single requests."""
    book = load_book(read)
    months = ("2026-10", "2026-11")
    found = [one for month in months for one in charges(read, book, month, step="day")]
    cost = sum(numbers[-1] for numbers in wanted.values())
    assert sum(one.cost_pico or 0 for one in found) == cost
    for one in found:
        priced = one.unit_pico is not None
        assert one.cost_pico == (one.quantity * (one.unit_pico or 0) if priced else None)
    by = [bill(read, None, by) for by in ((), ("model",), GROUPS)]
    assert {_total(lines) for lines in by} == {cost}
    return [found, by]


def _total(lines: Sequence[BillLine]) -> int:
    return sum(pico_of(line.cost) for line in lines if line.cost is not None)


def test_a_month_begins_within_an_hour_of_utc(ledger: Ledger, tmp_path: Path) -> None:
    """In Kolkata a month begins at half past an hour, and its hourly parts begin with it."""
    books = Books(tmp_path, ledger)
    begin = datetime(2026, 10, 31, 18, 30, tzinfo=UTC)
    listed = [entry("p", START, "*", per_unit=dict.fromkeys(BUCKETS, "1"))]
    books.add(*registry("Asia/Kolkata", listed, []))
    books.add(say.finished("r1", begin - MICROSECOND), say.finished("r2", begin))
    with ledger.read() as read:
        book = load_book(read)
        for step in STEPS:
            (last,) = month_lines(read, book, "2026-10", step=step)
            (line,) = month_lines(read, book, "2026-11", step=step)
            assert line.start_us == to_us(begin) and line.totals.requests == 1
            assert last.totals.requests == 1
        days = [(line.day, line.requests) for line in bill(read, None, ("day",))]
    assert days == [("2026-10-31", 1), ("2026-11-01", 1)]


def test_a_band_of_the_night_has_its_own_line(ledger: Ledger, tmp_path: Path) -> None:
    """Before, within and behind the hour that Berlin's clocks show twice."""
    books = Books(tmp_path, ledger)
    night = Band(name="night", days=[7], start=120, end=180, per_unit={"other_out": "1"})
    listed = entry(
        "p",
        START,
        "*",
        per_unit=dict.fromkeys(BUCKETS, "3"),
        zone="Europe/Berlin",
        bands=[night],
    )
    books.add(listing([listed], START))
    change = datetime(2026, 10, 25, tzinfo=UTC)
    hours = (-1, 0, 1, 2)
    usage = Usage(other_out=10**6)
    books.add(
        *(
            say.finished(f"r{n}", change + timedelta(hours=n, minutes=59), usage=usage)
            for n in hours
        )
    )
    with ledger.read() as read:
        found = [(line.band, line.requests, line.cost) for line in bill(read, "2026-10", ())]
        parts = [
            ((one.start_us - to_us(change)) // 3_600_000_000, one.rate.band)
            for one in month_lines(read, load_book(read), "2026-10", step="hour")
            if one.rate is not None
        ]
    # 00:59 and 01:59 in summer; at 02:59 it is night, and an hour later again; then 03:59.
    assert parts == [(-1, None), (0, "night"), (1, "night"), (2, None)]
    assert sorted(found, key=str) == [("night", 2, "2"), (None, 2, "6")]


def test_a_key_that_moves_takes_nothing_along(ledger: Ledger, tmp_path: Path) -> None:
    books = Books(tmp_path, ledger)
    move = FIRST + timedelta(minutes=20)
    listed = [
        entry("all", START, "*", per_unit=dict.fromkeys(BUCKETS, "1")),
        entry("own", START, "*", scope="project/prj-2", per_unit=dict.fromkeys(BUCKETS, "2")),
    ]
    moved = [assigned("key-1", "prj-1", START), assigned("key-1", "prj-2", move, 1)]
    books.add(*registry("UTC", listed, moved))
    for n, at in enumerate((move - MICROSECOND, move, move + timedelta(hours=3))):
        books.add(say.finished(f"a{n}", at), say.finished(f"b{n}", at, "key-2"))
    with ledger.read() as read:
        lines = bill(read, "2026-10", ("project", "key"))
    assert [(line.project_id, line.key_id, line.requests, line.cost) for line in lines] == [
        (None, "key-2", 3, "0.000048"),
        ("prj-1", "key-1", 1, "0.000016"),
        ("prj-2", "key-1", 2, "0.000064"),
    ]


def test_charges_beside_tokens(ledger: Ledger, tmp_path: Path) -> None:
    """A request, a second of a backend and a failed attempt, each to the last digit."""
    books = Books(tmp_path, ledger)
    charged = {"request": "0.5", "gpu_second": "0.36", "failed_attempt": "0.001"}
    prices = {**dict.fromkeys(BUCKETS, "0"), **charged}
    books.add(listing([entry("p", START, "m", per_unit=prices)], START))
    took: dict[str, Any] = {"duration_us": 2_000_001, "overhead_us": 1_000}
    books.add(
        *(say.attempted("r1", n, FIRST, backend_id=f"b-{n}") for n in (1, 2, 3)),
        say.finished("r1", FIRST, attempts=3, **took),
        say.abandoned("r2", FIRST + timedelta(hours=1)),
        say.finished("r3", FIRST, usage=Usage(), basis="none", attempts=2, **took),
        say.finished("r4", FIRST, model="other", attempts=2, **took),
    )
    with ledger.read() as read:
        found = {
            (one.model, one.basis, one.bucket): (one.quantity, one.unit, one.cost_pico)
            for one in charges(read, load_book(read), "2026-10", step="day")
        }
        attempts = {
            one.attempt.attempt: one.cost.pico
            for part in priced_attempts(read)
            for one in part
            if one.attempt.request_id == "r1"
        }
        lines = bill(read, "2026-10")
    assert found["m", "reported", "request"][:2] == (1, 1)
    assert found["m", "reported", "gpu_second"] == (1_999_001, 1_000_000, 1_999_001 * 360_000)
    assert found["m", "reported", "failed_attempt"] == (2, 1, 2_000_000_000)
    assert not any(basis == "none" for _, basis, _ in found)
    assert [bucket for model, _, bucket in found if model == "other"] == [
        "other_out",
        "uncached_in",
    ]
    assert attempts[1] == attempts[2] == 1_000_000_000
    # Together they are the request: 0.5 + 1.999001 x 0.36 + 2 x 0.001
    assert sum(cost or 0 for cost in attempts.values()) == 1_221_640_360_000
    by_basis = {(line.model, line.basis): line for line in lines}
    assert by_basis["m", "reported"].cost == "1.22164036"
    assert by_basis["m", "reported"].charges == {
        "failed_attempt": 2,
        "gpu_second": 1_999_001,
        "request": 1,
    }
    assert by_basis["m", "none"].cost is None and by_basis["m", "none"].charges == {}


def test_charges_of_whole_hours_are_read_from_the_roll_up(ledger: Ledger, tmp_path: Path) -> None:
    """A month of a million requests is billed by its hours, whatever there is a price for. So the
    requests themselves are missed in the hour only in which the price begins."""
    books = Books(tmp_path, ledger)
    prices = {"gpu_second": "0.36", "failed_attempt": "0.001"}
    begin = FIRST + timedelta(minutes=30)
    books.add(listing([entry("p", begin, "m", per_unit=prices)], START))
    took: dict[str, Any] = {"duration_us": 2_000_001, "overhead_us": 1_000, "usage": Usage()}
    moments = [FIRST + timedelta(minutes=40 * n) for n in range(9)]
    books.add(
        *(say.finished(f"r{n}", at, attempts=n, **took) for n, at in enumerate(moments)),
        say.abandoned("gone", moments[-1]),
    )
    with ledger.read() as read:
        before = bill(read, "2026-10", ())
    assert [line.charges for line in before if line.basis == "reported"] == [
        {},
        {"failed_attempt": 28, "gpu_second": 8 * 1_999_001},
    ]
    with ledger.write() as tx:
        tx.execute(delete(tables.requests))
    with ledger.read() as read:
        after = bill(read, "2026-10", ())
    # Of the first hour: r0, ahead of the price, and r1 behind it, whose only call did not fail.
    assert [line.charges for line in after if line.basis == "reported"] == [
        {"failed_attempt": 28, "gpu_second": 7 * 1_999_001}
    ]
    assert [line for line in after if line.basis != "reported"] == [
        line for line in before if line.basis != "reported"
    ]


def test_a_charge_says_how_it_came_about(ledger: Ledger, tmp_path: Path) -> None:
    books = Books(tmp_path, ledger)
    books.add(
        listing(
            [
                entry("p", START, "*", per_unit={"other_out": "0.002"}, unit=1000),
                entry("d", START, "*", scope="key/key-1", discount="12.5"),
            ],
            START,
        ),
        say.finished("r1", FIRST, usage=Usage(other_out=1500)),
    )
    with ledger.read() as read:
        (one,) = charges(read, load_book(read), "2026-10")
    assert one == Charge(
        start_us=to_us(FIRST),
        key_id="key-1",
        project_id=None,
        model="m",
        basis="reported",
        bucket="other_out",
        quantity=1500,
        list_pico=2_000_000,
        unit_pico=1_750_000,
        cost_pico=1500 * 1_750_000,
        currency="USD",
        price_id="p",
        price_version=1,
        band=None,
        unit=1000,
        requests=1,
        corrects=None,
        kind="usage",
        discount_id="d",
    )
