"""What the usage and costs APIs add up: against a count by hand, and against the bill."""

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.cli.reading import costs as costs_body
from gateway.cli.reading import usage as usage_body
from gateway.wire.organization import Ask
from ledger.amounts import decimal_text
from ledger.clock import to_us
from ledger.errors import BadQuery
from ledger.events import BUCKETS, BooksSet, Draft, KeyAssigned, OrganizationSet, ProjectSet
from ledger.events import Usage as Tokens
from ledger.folds.cost import cost_of_rated
from ledger.folds.rating import Rated
from ledger.folds.usage import ZERO, Totals
from ledger.sql import usage as usage_module
from ledger.sql.adjust import adjustments
from ledger.sql.costs import costs
from ledger.sql.rated import month_lines
from ledger.sql.replay import load_book
from ledger.sql.usage import STEPS, Step, UsageAsk, Used, usage
from tests.ledger.ledgers import Make
from tests.support.books import Books
from tests.support.events import SOURCE, corrected, finished, key_issued, period_closed, price

FIRST = datetime(2026, 10, 30, 21, 40, tzinfo=UTC)
HOURS = 60
KEYS, MODELS = ("key-1", "key-2", "key-3"), ("m", "n")


class Request(msgspec.Struct, frozen=True):
    """One request as it was made, to count by hand."""

    at: datetime
    key_id: str
    model: str
    usage: Tokens


def requests() -> list[Request]:
    """A fixed crowd, many of them at the edges of hours, some of which nothing is known."""
    chance = random.Random(7)
    found = []
    for _ in range(220):
        at = FIRST + timedelta(seconds=chance.randrange(HOURS * 3600))
        if chance.random() < 0.3:
            at = at.replace(minute=0, second=0)
        counts = {name: chance.choice([None, 0, chance.randrange(900)]) for name in BUCKETS}
        found.append(Request(at, chance.choice(KEYS), chance.choice(MODELS), Tokens(**counts)))
    return found


REQUESTS = requests()
MOVES: dict[str, list[tuple[datetime, str | None]]] = {
    "key-1": [(FIRST - timedelta(days=9), "p-1"), (FIRST + timedelta(hours=7, minutes=11), "p-2")],
    "key-2": [
        (FIRST + timedelta(hours=3, minutes=30), "p-1"),
        (FIRST + timedelta(hours=20, minutes=30), None),
        (FIRST + timedelta(hours=41, minutes=30), "p-1"),
    ],
}


def registry(zone: str = "UTC") -> Iterator[Draft]:
    begin = FIRST - timedelta(days=10)
    books = BooksSet(base=0, version=1, zone=zone)
    yield Draft("books/1", "books", begin, books)
    organization = OrganizationSet(organization_id="o", base=0, version=1)
    yield Draft("o/1", "o", begin, organization)
    for project_id in ("p-1", "p-2"):
        project = ProjectSet(project_id=project_id, organization_id="o", base=0, version=1)
        yield Draft(f"{project_id}/1", project_id, begin, project)
    for key_id in KEYS:
        yield key_issued(key_id)
    for key_id, moves in MOVES.items():
        for number, (at, whose) in enumerate(moves):
            moved = KeyAssigned(key_id=key_id, project_id=whose, base=number, version=number + 1)
            yield Draft(f"{key_id}/assigned/{number}", key_id, at, moved)
    yield price("price-1", {"uncached_in": "0.5", "other_out": "1.25"}, start=begin)
    # From within an hour on, and with a bucket that has no price.
    dearer = dict.fromkeys(BUCKETS, "2")
    yield price("price-2", dearer, start=FIRST + timedelta(hours=9, minutes=17), base=1)


def fill(books: Books, zone: str = "UTC") -> None:
    ends = (
        finished(f"r-{number}", one.at, one.key_id, one.model, usage=one.usage)
        for number, one in enumerate(REQUESTS)
    )
    books.add(*registry(zone), *ends)


@pytest.fixture(scope="module")
def full(make_ledger: Make, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Books]:
    directory = tmp_path_factory.mktemp("full")
    with make_ledger(directory, "usage") as ledger:
        books = Books(directory, ledger)
        fill(books)
        yield books


def project(key_id: str, at: datetime) -> str:
    begun = [project for since, project in MOVES.get(key_id, []) if since <= at]
    return (begun[-1] if begun else None) or ""


def by_hand(ask: UsageAsk) -> dict[Used, Totals]:
    found: dict[Used, Totals] = {}
    for one in REQUESTS:
        at, whose = to_us(one.at), project(one.key_id, one.at)
        start = max(ask.first_us, at - at % STEPS[ask.step])
        chosen = (
            ask.first_us <= at < ask.after_us
            and (ask.keys is None or one.key_id in ask.keys)
            and (ask.models is None or one.model in ask.models)
            and (ask.projects is None or whose in ask.projects)
        )
        if chosen:
            name = Used(
                start,
                whose if "project" in ask.by else "",
                one.key_id if "key" in ask.by else "",
                one.model if "model" in ask.by else "",
            )
            a, b, c, d, e = (count or 0 for count in one.usage.counts())
            ka, kb, kc, kd, ke = (int(count is not None) for count in one.usage.counts())
            alone = Totals(1, (a, b, c, d, e), (ka, kb, kc, kd, ke))
            found[name] = found.get(name, ZERO).plus(alone)
    return found


def some(values: tuple[str, ...]) -> st.SearchStrategy[frozenset[str] | None]:
    return st.none() | st.frozensets(st.sampled_from(values))


@st.composite
def asks(draw: st.DrawFn) -> UsageAsk:
    step: Step = draw(st.sampled_from(["minute", "hour", "day"]))
    minute = st.integers(-60, (HOURS + 30) * 60)
    first, after = sorted(draw(st.lists(minute, min_size=2, max_size=2, unique=True)))
    if draw(st.booleans()):
        first, after = first // 60 * 60, after // 60 * 60 + 60
    # At a quarter past nothing else lies, so that minutes fall on edges of hours too.
    begin = FIRST.replace(minute=0)
    return UsageAsk(
        first_us=to_us(begin + timedelta(minutes=first)),
        after_us=to_us(begin + timedelta(minutes=after)),
        step=step,
        by=draw(st.frozensets(st.sampled_from(["project", "key", "model"]))),
        projects=draw(some(("p-1", "p-2", "p-none"))),
        keys=draw(some((*KEYS, "key-none"))),
        models=draw(some(MODELS)),
    )


@given(ask=asks())
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_the_sums_are_those_counted_by_hand(full: Books, ask: UsageAsk) -> None:
    with full.ledger.read() as read:
        found = usage(read, load_book(read).members, ask)
    assert found == by_hand(ask)
    assert list(found) == sorted(found), "whatever the order of the database"


def test_an_answer_that_would_be_too_large_is_refused_in_words(
    full: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_module, "USED_MAX", 3)
    ask = UsageAsk(
        first_us=to_us(FIRST),
        after_us=to_us(FIRST + timedelta(hours=HOURS)),
        step="hour",
        by=frozenset({"key", "model"}),
    )
    with full.ledger.read() as read, pytest.raises(BadQuery, match="ask for a shorter time"):
        usage(read, {}, ask)


def days(first: datetime, count: int, seconds: int = 86_400) -> list[tuple[int, int]]:
    edges = [to_us(first + timedelta(seconds=n * seconds)) for n in range(count + 1)]
    return list(pairwise(edges))


Spent = Counter[tuple[str, str | None, str, str | None]]


def added(parts: Iterable[Rated]) -> tuple[Spent, Counter[tuple[str, str]]]:
    """Pico by key, project, model and currency; requests by key and model."""
    pico: Spent = Counter()
    count: Counter[tuple[str, str]] = Counter()
    for one in parts:
        cost = cost_of_rated(one)
        name = one.key_id, one.project_id, one.model, cost.currency
        pico[name] += cost.pico or 0
        count[one.key_id, one.model] += one.totals.requests
    return pico, count


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/New_York"])
@pytest.mark.parametrize("closed", [False, True])
def test_parts_of_any_length_add_up_to_the_bills_of_the_months(
    books: Books, zone: str, closed: bool
) -> None:
    fill(books, zone)
    if closed:
        cut = {SOURCE: {"requests": len(REQUESTS)}}
        books.add(period_closed(cut, "2026-10", zone=zone, prices=2))
        late = datetime(2026, 11, 1, 12, 7, tzinfo=UTC)
        books.add(price("price-3", {"uncached_in": "9"}, start=late, model="*"))
        # Both are of the closed month, and land in the next one.
        books.add(finished("r-late", FIRST + timedelta(hours=1), "key-1", "m"))
        books.add(corrected("r-0", Tokens(uncached_in=5), f"{SOURCE}:1", late))
    with books.ledger.read() as read:
        book = load_book(read)
        assert bool(book.periods) is closed
        billed = added(
            line
            for month in ("2026-10", "2026-11")
            for line in month_lines(read, book, month, step="span")
        )
        begin = datetime(2026, 10, 25, tzinfo=UTC)
        for parts in (days(begin, 20), days(begin, 60, 7 * 3600 + 1500)):
            assert added(one for _, one in costs(read, book, parts)) == billed
        landed = {one.kind for one in adjustments(read, book, "2026-11")}
    assert landed == ({"late", "corrected"} if closed else set())
    assert sum(billed[1].values()) == len(REQUESTS) + closed


def test_pages_hold_exact_costs_and_what_has_no_price(full: Books) -> None:
    start = int(FIRST.timestamp()) // 86_400 * 86_400
    ask = Ask(kind="costs", start=start, end=start + 7 * 86_400, width="1d", limit=7)
    with full.ledger.read() as read:
        book = load_book(read)
        body = costs_body(read, book, ask)
        lines = [
            line for m in ("2026-10", "2026-11") for line in month_lines(read, book, m, step="span")
        ]
        itemized = costs_body(read, book, msgspec.structs.replace(ask, group_by=("line_item",)))
    results = [one for bucket in msgspec.json.decode(body)["data"] for one in bucket["results"]]
    known = [one for one in results if one["x_amount_exact"] is not None]
    total = sum(cost_of_rated(line).pico or 0 for line in lines)
    assert sum(to_pico(one["x_amount_exact"]) for one in known) == total > 0
    digits = f'"value":{known[0]["x_amount_exact"]},'.encode()
    assert digits in body, "the number is written with its own digits"
    assert any(one["x_unpriced"] for one in results if one["amount"] is None)
    assert sum(one["x_unknown_requests"] for one in results) == sum(
        line.totals.requests
        for line in lines
        if cost_of_rated(line).pico is None and not cost_of_rated(line).unpriced
    )
    items = [one for bucket in msgspec.json.decode(itemized)["data"] for one in bucket["results"]]
    assert sum(to_pico(one["x_amount_exact"]) for one in items if one["amount"]) == total


def to_pico(text: str) -> int:
    whole, _, part = text.partition(".")
    pico = int(whole + part.ljust(12, "0"))
    assert decimal_text(pico) == text
    return pico


def test_unknown_tokens_are_counted_as_unknown(full: Books) -> None:
    start = int(FIRST.timestamp()) // 86_400 * 86_400
    ask = Ask(kind="usage", start=start, end=start + 7 * 86_400, width="1d", limit=7)
    with full.ledger.read() as read:
        body = usage_body(read, load_book(read), ask)
    results = [one for bucket in msgspec.json.decode(body)["data"] for one in bucket["results"]]
    for place, name in enumerate(BUCKETS):
        missing = sum(one.usage.counts()[place] is None for one in REQUESTS)
        assert sum(one["x_unknown_requests"].get(name, 0) for one in results) == missing
    assert sum(one["num_model_requests"] for one in results) == len(REQUESTS)


def test_a_ledger_without_usage_gives_empty_buckets(books: Books, tmp_path: Path) -> None:
    ask = Ask(kind="costs", start=0, end=200_000, width="1d", limit=7)
    with books.ledger.read() as read:
        page = msgspec.json.decode(costs_body(read, load_book(read), ask))
    assert [bucket["results"] for bucket in page["data"]] == [[], [], []]
    assert page["data"][-1]["end_time"] == 200_000
