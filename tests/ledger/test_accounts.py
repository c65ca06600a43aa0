"""Accounts: what is left of money when usage is priced, names, and where a key's use belongs."""

import tempfile
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from gateway.cli.account_facts import assigned, books_set, organization, project, tagged
from gateway.cli.credits import months_of
from gateway.cli.money_facts import budgeted, moved, undone
from ledger.clock import to_us
from ledger.events import BUCKETS, Draft, Event, Usage
from ledger.folds.book import Book, Refused, fold_book
from ledger.sql.accounts import balance, budgets, loose_of, standings, tree
from ledger.sql.names import erase_name, set_name
from ledger.sql.replay import load_book
from ledger.sql.session import Ledger, ReadSession
from tests.ledger.ledgers import Feeder, Make, in_files
from tests.support import events as say
from tests.support.books import Books
from tests.support.events import START, Scribe, after

DAY = timedelta(days=1)
BEFORE = START - DAY
END = START + 60 * DAY
ALL = to_us(END)
EACH = dict.fromkeys(BUCKETS, "1")
"""A unit of currency for a million tokens: a token costs 10^6 pico."""


class Registry:
    """A registry log of one command after another, folded as it is written into a ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self.book, self._feeder, self._scribe = Book(), Feeder(ledger, "registry"), Scribe("/cli/1")
        self._unwritten: list[Event] = []

    def add(self, *drafts: Draft, write: bool = True) -> None:
        """Take `drafts`; without `write` they reach the ledger with the next ones."""
        for draft in drafts:
            event = self._scribe.write(draft)
            after_it = fold_book(self.book, event, draft.payload)
            assert not isinstance(after_it, Refused), after_it
            self.book = after_it
            self._unwritten.append(event)
        if write:
            self._feeder.feed(self._unwritten)
            self._unwritten = []


def with_projects(ledger: Ledger, since: datetime) -> Registry:
    """Two projects of one organization, and a price that holds from an instant on."""
    made = Registry(ledger)
    made.add(organization(made.book, "o1", {"cost": "1"}, False, since), write=False)
    for id_ in ("p1", "p2"):
        made.add(project(made.book, id_, "o1", {}, False, since), write=False)
    made.add(say.price("eur", EACH, start=since, currency="EUR"))
    return made


@pytest.fixture
def registry(ledger: Ledger) -> Registry:
    return with_projects(ledger, BEFORE)


def used(out: int) -> Usage:
    return Usage(uncached_in=0, cached_in=0, cache_write_in=0, reasoning_out=0, other_out=out)


def put(book: Book, account: str, amount: str, at: datetime = BEFORE) -> Draft:
    return moved(book, "top_up", account, "EUR", amount, "paid", at, at)


def left(ledger: Ledger, account: str, until: int = ALL, currency: str = "EUR") -> int:
    """The balance in millionths of the currency."""
    with ledger.read() as read:
        pico = balance(read, load_book(read), account, currency, until)
    assert pico % 10**6 == 0
    return pico // 10**6


def test_a_balance_is_what_came_in_minus_what_was_used(registry: Registry, books: Books) -> None:
    registry.add(put(registry.book, "project/p1", "1"), put(registry.book, "organization/o1", "5"))
    registry.add(assigned(registry.book, "key-1", "p1", {}, BEFORE))
    books.add(*say.life("r1", usage=used(300)), *say.life("r2", key_id="key-2", usage=used(50)))
    assert left(books.ledger, "project/p1") == 1_000_000 - 300
    assert left(books.ledger, "project/p2") == 0
    assert left(books.ledger, "organization/o1") == 5_000_000
    assert left(books.ledger, "project/p1", currency="USD") == 0
    registry.add(undone(registry.book, registry.book.entries[0], "it bounced", after(1)))
    assert left(books.ledger, "project/p1") == -300


def test_what_a_key_used_stays_where_it_was_when_it_moves(registry: Registry, books: Books) -> None:
    """The time at which a request was accepted decides, and not when it ended."""
    registry.add(assigned(registry.book, "key-1", "p1", {}, BEFORE))
    registry.add(assigned(registry.book, "key-1", "p2", {}, after(60)))
    registry.add(assigned(registry.book, "key-1", None, {}, after(120)))
    books.add(*say.life("r1", after(59), usage=used(1), ended=after(500)))
    books.add(*say.life("r2", after(60), usage=used(10)))
    books.add(*say.life("r3", after(119), usage=used(100)))
    books.add(*say.life("r4", after(120), usage=used(1000)))
    books.add(*say.life("r0", BEFORE - DAY, usage=used(10_000)))
    assert left(books.ledger, "project/p1") == -1
    assert left(books.ledger, "project/p2") == -110


def test_a_balance_at_an_instant(registry: Registry, books: Books) -> None:
    registry.add(assigned(registry.book, "key-1", "p1", {}, BEFORE - 90 * DAY))
    registry.add(say.price("old", EACH, "m", BEFORE - 90 * DAY, 1, "EUR"))
    registry.add(put(registry.book, "project/p1", "1", after(10)))
    months = [START - 40 * DAY, START, after(20), START + 40 * DAY]
    for number, at in enumerate(months):
        books.add(*say.life(f"r{number}", at, usage=used(10**number)))
    assert left(books.ledger, "project/p1", to_us(START)) == -1
    assert left(books.ledger, "project/p1", to_us(after(9))) == -11
    assert left(books.ledger, "project/p1", to_us(after(10))) == 1_000_000 - 11
    assert left(books.ledger, "project/p1", to_us(after(21))) == 1_000_000 - 111
    assert left(books.ledger, "project/p1") == 1_000_000 - 1111


def test_what_has_no_price_is_shown_and_costs_nothing(registry: Registry, books: Books) -> None:
    registry.add(assigned(registry.book, "key-1", "p1", {}, BEFORE))
    registry.add(assigned(registry.book, "key-2", "p2", {}, BEFORE))
    books.add(*say.life("r1", usage=used(7)))
    books.add(*say.life("r2", model="strange", usage=used(40)))
    books.add(*say.life("r3", basis="none", usage=Usage(), outcome="backend_lost"))
    books.add(*say.life("r4", key_id="key-2", model="strange", usage=used(2)))
    with books.ledger.read() as read:
        found = standings(read, load_book(read), ALL)
    rows = [(one.account, one.currency, one.balance, one.unpriced, one.unknown) for one in found]
    assert rows == [
        ("project/p1", "EUR", -7 * 10**6, 40, 1),
        ("project/p2", None, 0, 2, 0),
    ]


def test_budgets_and_what_is_left_of_them(registry: Registry, books: Books) -> None:
    registry.add(books_set(registry.book, "Asia/Kolkata", None, None, BEFORE))
    registry.add(assigned(registry.book, "key-1", "p1", {}, BEFORE))
    months = months_of("Asia/Kolkata", "2026-11", "2026-12", START)
    registry.add(budgeted(registry.book, "p1", months, "EUR", "0.001", "plan", START))
    first, second = (months[month] for month in ("2026-11", "2026-12"))
    assert second.minute == 30, "the month begins within an hour"
    books.add(*say.life("r1", after(5), usage=used(400)))
    books.add(*say.life("r2", second - timedelta(microseconds=1), usage=used(601)))
    books.add(*say.life("r3", second, usage=used(5)))
    books.add(*say.life("r4", first - timedelta(microseconds=1), usage=used(70)))
    with books.ledger.read() as read:
        found = budgets(read, load_book(read))
    assert [(one.month, one.budget, one.used, one.left) for one in found] == [
        ("2026-11", 10**9, 1001 * 10**6, -(10**6)),
        ("2026-12", 10**9, 5 * 10**6, 995 * 10**6),
    ]
    assert left(books.ledger, "project/p1") == -1006, "a budget is no money"


def test_the_tree_has_names_until_they_are_forgotten(registry: Registry, ledger: Ledger) -> None:
    registry.add(say.key_issued("key-1"), say.key_issued("key-2"))
    registry.add(assigned(registry.book, "key-1", "p2", {"env": "prod"}, BEFORE))
    registry.add(assigned(registry.book, "key_system", "p1", {}, BEFORE))
    registry.add(assigned(registry.book, "key-ghost", "p1", {}, BEFORE))
    registry.add(tagged(registry.book, "project", "p1", [("team", "a")], (), BEFORE))
    with ledger.write() as tx:
        set_name(tx, "organization", "o1", "Uni")
        set_name(tx, "project", "p2", "Vision")
        set_name(tx, "key", "key-1", "Ada")
    with ledger.read() as read:
        (payer,) = tree(read, load_book(read))
    assert (payer.id, payer.name, payer.tags, payer.closed) == ("o1", "Uni", {"cost": "1"}, False)
    one, other = payer.projects
    assert (one.id, one.name, one.tags, [key.name for key in one.keys]) == (
        "p1",
        None,
        {"team": "a"},
        ["system"],
    )
    (key,) = other.keys
    assert (key.id, key.name, key.tags, key.revoked) == ("key-1", "Ada", {"env": "prod"}, False)
    assert [one.id for one in loose_of(registry.book, {})] == ["key-2"]


def budget_used(read: ReadSession) -> dict[str, int]:
    """What was used of each month's budget, in millionths of the currency."""
    return {one.month: one.used // 10**6 for one in budgets(read, load_book(read))}


def test_nothing_of_a_forgotten_name_is_left_in_the_file(tmp_path: Path) -> None:
    """Also where the build of SQLite leaves what is deleted until its room is needed."""
    with in_files(tmp_path, "names") as made:
        for name, forget in (("Ada Lovelace", False), ("Ada King", True)):
            with made.write() as tx:
                tx.execute(text("PRAGMA secure_delete = OFF"))
                set_name(tx, "key", "key-1", name)
                assert not forget or erase_name(tx, "key", "key-1")
    held = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"Ada" not in held


instants = st.builds(
    lambda days, seconds: START + timedelta(days=days, seconds=seconds),
    st.integers(-40, 40),
    st.sampled_from((-1200, 0, 1, 7200)),
)
keys = st.sampled_from(("key-1", "key-2"))
projects = st.sampled_from(("p1", "p2"))
uses = st.lists(st.tuples(keys, instants, st.integers(0, 10**9)), max_size=8)
payments = st.lists(st.tuples(projects, instants, st.integers(1, 10**9)), max_size=4)
moves = st.lists(st.tuples(keys, instants, projects | st.none()), max_size=5)


@settings(max_examples=30)
@given(uses, payments, moves, instants)
def test_every_balance_is_the_sum_of_single_movements_and_requests(
    make_ledger: Make,
    spent: list[tuple[str, datetime, int]],
    paid: list[tuple[str, datetime, int]],
    moving: list[tuple[str, datetime, str | None]],
    until: datetime,
) -> None:
    """What the roll-up says month by month is what the requests are one by one."""
    moving.sort(key=lambda move: move[1])
    with tempfile.TemporaryDirectory() as directory, make_ledger(Path(directory), "sums") as made:
        registry, books = with_projects(made, START - 50 * DAY), Books(Path(directory), made)
        for key_id, at, project_id in moving:
            registry.add(assigned(registry.book, key_id, project_id, {}, at), write=False)
        registry.add(*(put(registry.book, f"project/{to}", str(n), at) for to, at, n in paid))
        lives = [
            say.life(f"r{number}", at, key_id, usage=used(tokens))
            for number, (key_id, at, tokens) in enumerate(spent)
        ]
        books.add(*(draft for life in lives for draft in life))
        with made.read() as read:
            found = standings(read, load_book(read), to_us(until))
        balances = {one.account: one.balance for one in found if one.currency == "EUR"}
        for project_id in ("p1", "p2"):
            wanted = sum(10**6 * n for to, at, n in paid if to == project_id and at <= until)
            for key_id, at, tokens in spent:
                there = [to for key, since, to in moving if key == key_id and since <= at]
                if at < until and there and there[-1] == project_id:
                    wanted -= tokens
            assert balances.get(f"project/{project_id}", 0) == wanted * 10**6


def test_a_closed_month_takes_nothing_from_a_balance_and_gives_nothing(
    registry: Registry, books: Books
) -> None:
    """What came too late for the closing is used as well: it lands in a later month."""
    registry.add(put(registry.book, "project/p1", "1"))
    registry.add(assigned(registry.book, "key-1", "p1", {}, BEFORE))
    months = months_of("UTC", "2026-11", "2026-12", START)
    registry.add(budgeted(registry.book, "p1", months, "EUR", "1", "plan", START))
    cut = books.add(*say.life("r1", usage=used(7)))[-1]
    assert left(books.ledger, "project/p1") == 1_000_000 - 7
    closing = say.period_closed({cut.source: {cut.topic: cut.sequence}}, prices=1, requests=1)
    registry.add(closing)
    assert left(books.ledger, "project/p1") == 1_000_000 - 7
    books.add(*say.life("r2", after(5), usage=used(60)))
    books.add(*say.life("r3", START + 30 * DAY, usage=used(500)))
    assert left(books.ledger, "project/p1") == 1_000_000 - 567
    # Within the month that it lands in, and within the closed one.
    assert left(books.ledger, "project/p1", to_us(START + 31 * DAY)) == 1_000_000 - 567
    assert left(books.ledger, "project/p1", to_us(after(60))) == 1_000_000 - 7
    with books.ledger.read() as read:
        assert budget_used(read) == {"2026-11": 7, "2026-12": 560}
