"""Backends as facts, and how far a drain is: what the commands make of book and views, no file."""

from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cli.backend_facts import (
    CONFIGURED,
    Said,
    backend_json,
    backends_table,
    changed,
    registered,
    removed,
    shown,
    state_of,
)
from gateway.cli.draining import drained, places
from gateway.cli.failure import Stop
from gateway.routing.drain import INTERVAL_DEFAULT_US, Running, longest_wait_us
from gateway.settings import BackendSettings
from ledger.events import Draft, payload_of
from ledger.folds.book import Book, Refused, fold_book
from ledger.folds.routing import RoutingView
from streams.codec import decode, encode
from tests.support.events import START, after

NOW = START


def folded(book: Book, *drafts: Draft) -> Book:
    """`book` with `drafts` as every reader of the registry log will see it."""
    for number, draft in enumerate(drafts, 1):
        event = decode(encode(draft, "/cli/test/1", number, NOW))
        after_it = fold_book(book, event, payload_of(event))
        assert not isinstance(after_it, Refused), after_it
        book = after_it
    return book


def with_gpu(**said: Any) -> Book:
    said = {"url": "http://gpu:8000", "key": "env:K", "models": ("m",)} | said
    return folded(Book(), registered(Book(), "gpu", Said(**said), NOW))


def view(gateway: str = "g1", backend_id: str = "gpu", **more: Any) -> RoutingView:
    values: dict[str, Any] = {
        "up": True,
        "source": f"/gateway/{gateway}/1",
        "sequence": 7,
        "observed_at": NOW,
        "expires_at": after(10),
        "appended_ms": 0,
        "offset": 0,
    }
    return RoutingView(backend_id=backend_id, gateway=gateway, **(values | more))


def test_what_is_not_said_stays() -> None:
    book = with_gpu(weight=10)
    book = folded(book, changed(book, "gpu", Said(weight=40), False, NOW))
    server = book.backends["gpu"]
    assert (server.url, server.key, server.models) == ("http://gpu:8000", "env:K", ("m",))
    assert (server.weight, server.version) == (40, 2)
    book = folded(book, changed(book, "gpu", Said(key=None), False, NOW))
    assert book.backends["gpu"].key is None and book.backends["gpu"].weight == 40


def test_one_that_is_only_configured_is_registered_by_its_first_change() -> None:
    book = folded(Book(), changed(Book(), "gpu", Said(draining=True), True, NOW))
    assert book.backends["gpu"].url is None and book.backends["gpu"].draining


def test_a_removed_backend_may_be_added_again_and_is_new_then() -> None:
    book = with_gpu(draining=True)
    book = folded(book, removed(book, "gpu", NOW))
    with pytest.raises(Stop, match="was removed at 2026-11-03"):
        changed(book, "gpu", Said(weight=1), False, NOW)
    book = folded(book, registered(book, "gpu", Said(url="http://b:1"), after(9)))
    server = book.backends["gpu"]
    assert server.registered_at == after(9) and not server.draining and server.key is None


def test_a_backend_is_added_once_and_a_wrong_name_is_met_with_the_nearest() -> None:
    book = with_gpu()
    with pytest.raises(Stop, match="is there already"):
        registered(book, "gpu", Said(url="http://b:1"), NOW)
    with pytest.raises(Stop, match="did you mean 'gpu'"):
        removed(book, "gpv", NOW)


def test_what_is_listed_is_of_registry_settings_and_views() -> None:
    book = folded(
        with_gpu(),
        registered(Book(), "conf", Said(weight=30), NOW),
        registered(Book(), "gone", Said(url="http://gone:1"), NOW),
    )
    book = folded(book, removed(book, "gone", NOW))
    settings = [BackendSettings(url="http://conf:1", name="conf")]
    views = [
        view(in_flight=3),
        view("g2", up=False, fault="refused", in_flight=1),
        view("g2", "far"),
        view("g3", "old", expires_at=after(-1)),
        view("g1", "gone"),
    ]
    listed = shown(book, settings, views, NOW)
    assert [(one.backend_id, one.source) for one in listed] == [
        ("conf", "configured"),
        ("far", "heard of"),
        ("gpu", "registry"),
    ]
    conf, far, gpu = listed
    assert conf.url == "http://conf:1" and conf.weight == 30
    assert state_of(conf) == "no gateway tells of it" and state_of(far) == "up"
    assert state_of(gpu) == "up, but down for g2: refused"
    rows = backends_table(listed).rows
    assert [row[-1] for row in rows] == [None, 0, 4] and rows[1][2] == CONFIGURED
    assert [one["gateway"] for one in backend_json(gpu)["gateways"]] == ["g1", "g2"]  # type: ignore[attr-defined]


def test_a_drained_backend_is_safe_once_every_gateway_has_taken_note_and_is_done() -> None:
    views = [view("g1", in_flight=2, sequence=1), view("g2", sequence=1), view("g1", "other")]
    before = places(views, "gpu")
    seen = drained(views, "gpu", before, NOW)
    assert seen.unaware == ("g1", "g2") and seen.running == 2 and not seen.safe
    noted = [
        view("g1", in_flight=1, draining=True, sequence=2, drain_us=5_000_000),
        view("g2", draining=True, sequence=2, drain_us=None),
    ]
    seen = drained(noted, "gpu", before, NOW)
    assert (seen.running, seen.longest_us, seen.unaware) == (1, 5_000_000, ()) and not seen.safe
    done = [view(name, draining=True, sequence=3) for name in ("g1", "g2")]
    assert drained(done, "gpu", before, NOW).safe


def test_a_view_from_before_the_drain_does_not_count_though_it_was_drained_then_too() -> None:
    views = [view(draining=True)]
    assert drained(views, "gpu", places(views, "gpu"), NOW).unaware == ("g1",)
    anew = [view(draining=True, source="/gateway/g1/2")]
    assert drained(anew, "gpu", places(views, "gpu"), NOW).safe


def test_a_gateway_that_is_silent_may_still_send_unless_somebody_knows_better() -> None:
    views = [view("g1", draining=True), view("g2", observed_at=after(-11), expires_at=after(-1))]
    seen = drained(views, "gpu", {}, NOW)
    assert seen.silent == ("g2",) and not seen.safe
    assert drained(views, "gpu", {}, NOW, without=["g2"]).safe


def test_a_gateway_that_said_its_last_word_serves_no_more() -> None:
    ended = view("g2", observed_at=after(-60), expires_at=after(-60))
    assert drained([view("g1", draining=True), ended], "gpu", {}, NOW).safe


def test_a_process_that_serves_and_has_told_nothing_yet_may_send_requests() -> None:
    views = [view("g1", draining=True)]
    seen = drained(views, "gpu", {}, NOW, living=["/gateway/g1/1", "/gateway/g2/1"])
    assert seen.unaware == ("/gateway/g2/1",) and not seen.safe


def test_where_it_is_known_who_serves_a_killed_gateway_is_waited_for_by_nobody() -> None:
    views = [view("g1", draining=True), view("g2", observed_at=after(-11), expires_at=after(-1))]
    assert drained(views, "gpu", {}, NOW, living=["/gateway/g1/1"]).safe
    assert drained([view("g2", in_flight=3)], "gpu", {}, NOW, living=[]).safe
    assert drained(views, "gpu", {}, NOW, living=None).silent == ("g2",)


def test_the_longest_wait_is_that_of_the_longest_answer_and_ends_with_its_time_limit() -> None:
    short = Running(left=10, interval_us=20_000, before_us=0, limit_us=10**9)
    long = Running(left=100, interval_us=20_000, before_us=500_000, limit_us=10**9)
    assert longest_wait_us([]) is None
    assert longest_wait_us([short]) == 200_000
    assert longest_wait_us([short, long]) == 2_500_000
    endless = Running(left=None, interval_us=20_000, before_us=0, limit_us=7_000_000)
    assert longest_wait_us([short, endless]) == 7_000_000
    unknown = Running(left=3, interval_us=None, before_us=0, limit_us=10**9)
    assert longest_wait_us([unknown]) == 3 * INTERVAL_DEFAULT_US


@given(
    st.lists(
        st.builds(
            Running,
            left=st.none() | st.integers(0, 10**6),
            interval_us=st.none() | st.integers(0, 10**7),
            before_us=st.integers(0, 10**8),
            limit_us=st.integers(0, 10**9),
        ),
        min_size=1,
    )
)
def test_no_wait_is_longer_than_the_longest_time_limit(running: list[Running]) -> None:
    wait = longest_wait_us(running)
    assert wait is not None and 0 <= wait <= max(one.limit_us for one in running)


def test_a_moment_is_told_by_the_one_who_asks() -> None:
    soon: datetime = after(10)
    assert drained([view(draining=True)], "gpu", {}, soon).silent == ("g1",)
