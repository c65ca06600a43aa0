"""Organizations, projects, tags and memberships as facts: what a command makes of the book."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from gateway.cli.account_facts import (
    TAGS_MAX,
    assigned,
    books_set,
    closed,
    find,
    organization,
    parse_tag,
    project,
    retagged,
    tagged,
    unused_name,
)
from gateway.cli.books import parse_issuer, parse_zone
from gateway.cli.failure import Stop
from gateway.cli.keys import issue, moved, revoke
from ledger.events import Draft, payload_of
from ledger.folds.accounts import keys_in
from ledger.folds.book import Book, Refused, fold_book
from ledger.folds.money import project_at
from streams.codec import decode, encode
from tests.support.events import period_closed

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)
KINDS = ("organization", "project", "key")
NAMES = {
    "organization": {"o1": "Uni"},
    "project": {"p1": "Vision", "p2": "Text"},
    "key": {"k1": "Ada", "k2": "Ada"},
}


def taken(book: Book, draft: Draft) -> Book | Refused:
    event = decode(encode(draft, "/cli/test/1", 1, NOW))
    return fold_book(book, event, payload_of(event))


def folded(book: Book, draft: Draft) -> Book:
    after = taken(book, draft)
    assert not isinstance(after, Refused), after
    return after


@pytest.fixture(name="book")
def some_book() -> Book:
    """One organization with two projects; one of two keys works for the first."""
    book = folded(Book(), organization(Book(), "o1", {"cost": "4711"}, False, NOW))
    for id_ in ("p1", "p2"):
        book = folded(book, project(book, id_, "o1", {}, False, NOW))
    for id_ in ("k1", "k2"):
        book = folded(book, issue(id_, f"secret of {id_}", None, NOW))
    return folded(book, assigned(book, "k1", "p1", {"env": "prod"}, NOW))


def test_a_key_moves_with_its_tags_and_its_past_stays(book: Book) -> None:
    book = folded(book, moved(book, "k1", "p2", LATER))
    members = book.members["k1"]
    assert members[-1].tags == {"env": "prod"}
    assert project_at(members, LATER) == "p2"
    assert project_at(members, LATER - timedelta(microseconds=1)) == "p1"
    assert project_at(members, NOW - timedelta(microseconds=1)) is None
    assert keys_in(book, "p1") == [] and keys_in(book, "p2") == ["k1"]
    with pytest.raises(Stop, match="project p2 already"):
        moved(book, "k1", "p2", LATER)
    with pytest.raises(Stop, match="no project already"):
        moved(book, "k2", None, LATER)
    book = folded(book, moved(book, "k1", None, LATER))
    assert project_at(book.members["k1"], LATER) is None


def test_tags_of_a_key_leave_it_where_it_is(book: Book) -> None:
    book = folded(book, tagged(book, "key", "k1", [("team", "a")], ["env"], LATER))
    assert [one.tags for one in book.members["k1"]] == [{"env": "prod"}, {"team": "a"}]
    assert project_at(book.members["k1"], LATER) == "p1"
    book = folded(book, tagged(book, "key", "k2", [("team", "b")], (), LATER))
    assert book.members["k2"][-1].project_id is None
    book = folded(book, tagged(book, "organization", "o1", [("cost", "1")], (), LATER))
    assert book.organizations["o1"].tags == {"cost": "1"}
    book = folded(book, tagged(book, "project", "p1", [("x", "")], (), LATER))
    assert (book.projects["p1"].tags, book.projects["p1"].organization_id) == ({"x": ""}, "o1")


def test_of_two_changes_at_once_one_wins_and_no_id_is_used_twice(book: Book) -> None:
    makes: tuple[Callable[[], Draft], ...] = (
        lambda: tagged(book, "organization", "o1", [("a", "1")], (), NOW),
        lambda: tagged(book, "project", "p1", [("a", "1")], (), NOW),
        lambda: moved(book, "k1", "p2", LATER),
        lambda: books_set(book, "Europe/Berlin", None, None, NOW),
    )
    for make in makes:
        one, other = make(), make()
        assert one.id != other.id
        refused = taken(folded(book, one), other)
        assert isinstance(refused, Refused) and "by now" in refused.reason


def test_what_works_keeps_its_project_open(book: Book) -> None:
    with pytest.raises(Stop, match=r"holds project p1, project p2, .* close them first"):
        closed(book, "organization", "o1", False, NOW)
    with pytest.raises(Stop, match=r"holds key k1, .* keys move"):
        closed(book, "project", "p1", False, NOW)
    with pytest.raises(Stop, match="open already"):
        closed(book, "project", "p1", True, NOW)
    book = folded(book, revoke(book.keys["k1"], NOW))
    book = folded(book, closed(book, "project", "p1", False, NOW))
    with pytest.raises(Stop, match="closed already"):
        closed(book, "project", "p1", False, NOW)
    with pytest.raises(Stop, match="project p1 is closed and takes nothing new"):
        moved(book, "k2", "p1", LATER)
    # Tags of what is there already may change.
    book = folded(book, tagged(book, "key", "k1", [("a", "1")], (), LATER))
    book = folded(book, closed(book, "project", "p2", False, NOW))
    book = folded(book, closed(book, "organization", "o1", False, NOW))
    assert book.organizations["o1"].closed and book.organizations["o1"].tags == {"cost": "4711"}
    with pytest.raises(Stop, match="organization o1 is closed"):
        project(book, "p3", "o1", {}, False, NOW)
    with pytest.raises(Stop, match="organization o1 is closed"):
        closed(book, "project", "p1", True, NOW)
    book = folded(book, closed(book, "organization", "o1", True, NOW))
    assert not folded(book, closed(book, "project", "p1", True, NOW)).projects["p1"].closed


def test_things_are_found_by_id_by_name_and_by_kind(book: Book) -> None:
    for which, wanted in {
        "o1": ("organization", "o1"),
        "Vision": ("project", "p1"),
        "project/Vision": ("project", "p1"),
        "project/p2": ("project", "p2"),
        "key_system": ("key", "key_system"),
    }.items():
        assert find(book, NAMES, which, KINDS) == wanted
    with pytest.raises(Stop, match=r"2 things are called 'Ada'; .* key/k1, key/k2"):
        find(book, NAMES, "Ada", KINDS)
    book = folded(book, revoke(book.keys["k1"], NOW))
    assert find(book, NAMES, "Ada", KINDS) == ("key", "k2")
    with pytest.raises(Stop, match="did you mean 'Vision'"):
        find(book, NAMES, "vison", ("project",))
    with pytest.raises(Stop, match="no project with the id or name 'o1'"):
        find(book, NAMES, "o1", ("project",))
    with pytest.raises(Stop, match="accounts list"):
        find(Book(), {}, "x", ("project",))


def test_an_open_name_is_used_once(book: Book) -> None:
    with pytest.raises(Stop, match="project p1 is called 'Vision' already"):
        unused_name(book, NAMES, "project", "Vision")
    assert unused_name(book, NAMES, "project", "Uni") == "Uni"
    book = folded(book, revoke(book.keys["k1"], NOW))
    book = folded(book, closed(book, "project", "p1", False, NOW))
    assert unused_name(book, NAMES, "project", "Vision") == "Vision"


@pytest.mark.parametrize("text", ["x", "=1", "a b=1", "-a=1", "a=\x1b[0m", "a=" + "x" * 201])
def test_what_is_no_tag(text: str) -> None:
    with pytest.raises(ValueError, match="tag"):
        parse_tag(text)


def test_tags() -> None:
    assert parse_tag("a=b=c") == ("a", "b=c") and parse_tag("cost:center=") == ("cost:center", "")
    assert retagged({"a": "1", "b": "2"}, [("a", "3"), ("c", "4")], ["b"]) == {"a": "3", "c": "4"}
    with pytest.raises(Stop, match="did you mean 'team'"):
        retagged({"team": "a"}, (), ["teem"])
    with pytest.raises(Stop, match="at most 50"):
        retagged({}, [(f"t{n}", "") for n in range(TAGS_MAX + 1)])


def test_how_the_books_are_kept_changes_by_what_is_given() -> None:
    book = folded(Book(), books_set(Book(), "Europe/Berlin", None, "The Lab", NOW))
    assert (book.rules.zone, book.rules.rounding, book.rules.issuer) == (
        "Europe/Berlin",
        "half_even",
        "The Lab",
    )
    book = folded(book, books_set(book, None, "half_up", "", NOW))
    assert (book.rules.zone, book.rules.rounding, book.rules.issuer) == (
        "Europe/Berlin",
        "half_up",
        None,
    )
    with pytest.raises(Stop, match="like that already"):
        books_set(book, "Europe/Berlin", None, None, NOW)
    book = folded(book, period_closed({}, "2026-11", zone="Europe/Berlin"))
    refused = taken(book, books_set(book, "UTC", None, None, NOW))
    assert isinstance(refused, Refused) and "zone Europe/Berlin already" in refused.reason
    assert folded(book, books_set(book, None, "down", None, NOW)).rules.rounding == "down"


def test_a_zone_is_a_name_and_an_issuer_one_line() -> None:
    assert parse_zone("Asia/Kathmandu") == "Asia/Kathmandu"
    for text in ("+01:00", "Europe/Berln", "../etc/passwd", "CET-1", ""):
        with pytest.raises(ValueError, match="there is no time zone"):
            parse_zone(text)
    with pytest.raises(ValueError, match="did you mean Europe/Berlin"):
        parse_zone("Europe/Berln")
    assert parse_issuer(" The Lab ") == "The Lab"
    with pytest.raises(ValueError, match="one line"):
        parse_issuer("a\nb")
