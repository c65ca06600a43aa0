"""What a gateway says of its backends: on time, at every change, and never at a request's cost."""

from datetime import timedelta

from gateway.backends.pool import Backend
from gateway.observer import OBSERVE_SECONDS, VIEW_SECONDS, Observer
from ledger.events import BackendObserved, payload_of
from streams.log.memory import MemoryJournal
from tests.streams.builders import FakeClock


def house() -> tuple[FakeClock, MemoryJournal, Backend, Observer]:
    clock = FakeClock()
    journal = MemoryJournal("/gateway/test/1", clock=clock)
    backend = Backend("b-1", "http://h", key=None, engine=None, models=None, any_model=True)
    other = Backend("b-2", "http://i", key=None, engine=None, models=None, any_model=True)
    return clock, journal, backend, Observer("box#1", [backend, other], journal, clock)


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
