"""What a gateway says of its backends: on time, at every change, and never at a request's cost."""

from datetime import timedelta

import msgspec

from gateway.backends.pool import Backend
from gateway.observer import OBSERVE_SECONDS, VIEW_SECONDS, Observer
from gateway.routing.breaker import Breaker
from gateway.sharing import Told
from gateway.wire.scrape import Page
from ledger.events import BackendObserved, payload_of
from streams.log.memory import MemoryJournal
from tests.streams.builders import FakeClock


def backend_of(name: str) -> Backend:
    return Backend(name, "http://h", key=None, engine=None, models=None, any_model=True)


def house() -> tuple[FakeClock, MemoryJournal, Backend, Observer]:
    clock = FakeClock()
    journal = MemoryJournal("/gateway/test/1", clock=clock)
    backend = backend_of("b-1")
    told = Told(30, 29.62518, 59.5, 0.25, "it got too much")
    observer = Observer(
        "box#1", [backend, backend_of("b-2")], journal, clock, lambda _: 7, lambda _: told
    )
    return clock, journal, backend, observer


def said(journal: MemoryJournal) -> list[BackendObserved]:
    found = [payload_of(event) for event in journal.events()]
    return [one for one in found if isinstance(one, BackendObserved)]


def test_each_backend_is_said_on_time_and_at_a_change() -> None:
    clock, journal, backend, observer = house()
    observer.tick()
    observer.tick()
    assert [one.backend_id for one in said(journal)] == ["b-1", "b-2"]
    backend.learn(200, b'{"data":[]}')
    backend.requests, backend.failures, backend.in_flight = 3, 1, 2
    backend.first_token(0.05)
    observer.tick()
    last = said(journal)[-1]
    assert len(said(journal)) == 3 and last.up and last.fault is None and last.gateway == "box#1"
    assert (last.requests, last.failures, last.in_flight, last.first_token_us) == (3, 1, 2, 50_000)
    assert last.expires_at == clock.now() + timedelta(seconds=VIEW_SECONDS)
    clock.advance(OBSERVE_SECONDS)
    observer.tick()
    assert len(said(journal)) == 5
    assert len({event.id for event in journal.events()}) == 5


def test_a_spool_that_is_nearly_full_is_left_to_requests() -> None:
    _, journal, _, observer = house()
    journal.close()
    observer.tick()
    assert said(journal) == []


def test_all_that_is_known_of_an_engine_and_its_breaker_is_told() -> None:
    clock, journal, backend, observer = house()
    clock.advance(100)
    backend.signals.reading()
    page = Page(running=3, waiting=1, kv_usage=0.43754, prefix_hits=7, prefix_queries=9)
    backend.signals.take(page, clock.monotonic())
    backend.between_tokens(0.008)
    clock.advance(1.5)
    backend.breaker = Breaker("half_open", clock.monotonic() - 4, answered=1)
    backend.draining = True
    observer.tick()
    first = said(journal)[0]
    assert (first.running, first.waiting, first.kv_usage) == (3, 1, "0.4375")
    assert (first.prefix_hits, first.prefix_queries, first.read_us) == (7, 9, 1_500_000)
    assert (first.state, first.state_us, first.successes) == ("half_open", 4_000_000, 1)
    assert (first.errors, first.share, first.between_tokens_us) == ("0", "0.1", 8000)
    assert (first.draining, first.drain_us) == (True, 7)
    assert (first.picks, first.expected, first.picks_us) == (30, "29.6252", 59_500_000)
    assert (first.share_before, first.share_off) == ("0.25", "it got too much")


def test_every_field_of_an_observation_is_set_by_the_observer() -> None:
    _, journal, backend, observer = house()
    backend.failed("no answer")
    backend.first_token(0.1)
    backend.between_tokens(0.1)
    backend.signals.take(
        Page(running=1, waiting=1, kv_usage=1.0, prefix_hits=1, prefix_queries=1), 0.0
    )
    observer.tick()
    told = msgspec.structs.asdict(said(journal)[0])
    assert [name for name, value in told.items() if value is None] == []


def test_a_breaker_that_never_moved_is_as_it_is_since_the_start() -> None:
    clock = FakeClock()
    clock.advance(7200)  # the machine is up for long
    journal = MemoryJournal("/gateway/test/1", clock=clock)
    observer = Observer("box", [backend_of("b-1")], journal, clock)
    clock.advance(3)
    observer.tick()
    assert (said(journal)[0].state, said(journal)[0].state_us) == ("closed", 3_000_000)


def test_what_is_not_known_is_null_and_never_zero() -> None:
    _, journal, _, observer = house()
    observer.tick()
    last = said(journal)[-1]
    unknown = (last.running, last.waiting, last.kv_usage, last.prefix_hits, last.read_us)
    assert unknown == (None,) * 5
    assert (last.first_token_us, last.between_tokens_us) == (None, None)


def test_a_breaker_that_moves_and_a_drain_that_begins_are_said_at_once() -> None:
    _, journal, backend, observer = house()
    observer.tick()
    backend.breaker = Breaker("open")
    observer.tick()
    backend.draining = True
    observer.tick()
    observer.tick()
    assert [one.backend_id for one in said(journal)] == ["b-1", "b-2", "b-1", "b-1"]


def test_the_last_word_tells_how_things_stand_and_is_good_for_nobody_else() -> None:
    clock, journal, backend, observer = house()
    observer.tick()
    backend.first_token(0.05)
    observer.say_last()
    last = said(journal)[-2:]
    assert [one.backend_id for one in last] == ["b-1", "b-2"]
    assert last[0].first_token_us == 50_000
    assert last[0].expires_at == clock.now()


def test_backends_come_and_go() -> None:
    clock = FakeClock()
    journal = MemoryJournal("/gateway/test/1", clock=clock)
    backends = {"a": backend_of("a")}
    observer = Observer("box", backends.values(), journal, clock)
    observer.tick()
    backends["b"] = backend_of("b")
    observer.tick()
    del backends["a"]
    clock.advance(OBSERVE_SECONDS)
    observer.tick()
    assert [one.backend_id for one in said(journal)] == ["a", "b", "b"]
