"""What a serving process has of the one before it, and of its neighbours."""

from datetime import timedelta

import msgspec
import pytest

from gateway.backends.pool import Backend, Pool
from gateway.memory import LOOK_SECONDS, Memory
from ledger.folds.routing import RoutingView
from tests.gateway.test_scraper import Pages
from tests.streams.builders import FakeClock

OWN = "/gateway/box/2"


class House:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.pool = Pool([_backend("a"), _backend("b")], Pages((200, b"")), self.clock)
        self.known: list[RoutingView] = []
        self.complete = True
        self.memory = Memory(
            "box", OWN, self.pool, lambda: self.known, lambda: self.complete, self.clock
        )

    def view(self, backend: str, gateway: str, age: float = 1.0, **more: object) -> RoutingView:
        """A view that was said so many seconds ago."""
        at = self.clock.now() - timedelta(seconds=age)
        said = {
            "backend_id": backend,
            "gateway": gateway,
            "up": True,
            "source": f"/gateway/{gateway}/1",
            "sequence": 1,
            "observed_at": at,
            "expires_at": at + timedelta(seconds=10),
            "appended_ms": 0,
            "offset": 0,
            "state": "closed",
            "share": "1",
        }
        return msgspec.convert(said | more, RoutingView)

    def look(self) -> None:
        self.clock.advance(LOOK_SECONDS)
        self.memory.tick()

    def others(self) -> list[int]:
        return [backend.others_in_flight for backend in self.pool.backends.values()]


def _backend(name: str) -> Backend:
    return Backend(name, "http://h", key=None, engine=None, models=None, any_model=True)


@pytest.fixture
def house() -> House:
    return House()


def test_a_start_goes_on_where_the_last_process_of_this_name_ended(house: House) -> None:
    own = house.view("a", "box", state="open", share="0", first_token_us=41, between_tokens_us=7)
    house.known = [house.view("a", "other", first_token_us=1), own, house.view("b", "box")]
    house.memory.start()
    a, b = house.pool.backends.values()
    assert (a.breaker.state, a.first_token_us, a.between_tokens_us) == ("open", 41, 7)
    assert b.breaker.state == "closed"
    assert house.memory.before["a"] == own and len(house.memory.before) == 2


def test_the_last_word_of_an_orderly_end_is_believed_although_it_has_run_out(house: House) -> None:
    now = house.clock.now()
    house.known = [house.view("a", "box", 2.0, state="open", share="0", expires_at=now)]
    house.memory.start()
    assert house.pool.backends["a"].breaker.state == "open"


def test_an_old_view_never_means_that_a_backend_is_down(house: House) -> None:
    house.known = [house.view("a", "box", 3600.0, state="open", share="0")]
    house.memory.start()
    assert house.pool.backends["a"].breaker.state == "half_open"


def test_without_any_view_a_process_begins_as_one_that_knows_nothing(house: House) -> None:
    house.memory.start()
    assert {one.breaker.state for one in house.pool.backends.values()} == {"closed"}
    assert house.pool.live_gateways == 1


def test_a_snapshot_is_begun_from_and_then_all_that_is_known(house: House) -> None:
    house.complete = False
    house.known = [house.view("a", "box", first_token_us=1)]
    house.memory.start()
    backend = house.pool.backends["a"]
    assert backend.first_token_us == 1
    house.known = [house.view("a", "box", first_token_us=2)]
    house.look()
    assert backend.first_token_us == 1, "not again and again from what is no more than a part"
    house.complete = True
    house.look()
    assert backend.first_token_us == 2
    house.known = [house.view("a", "box", first_token_us=3)]
    house.look()
    assert backend.first_token_us == 2, "it has begun"


def test_what_others_see_is_not_put_over_what_own_probes_have_shown(house: House) -> None:
    house.complete = False
    house.memory.start()
    house.known = [
        house.view("a", "other", state="open", share="0"),
        house.view("b", "box", state="open", share="0"),
    ]
    house.complete = True
    house.look()
    assert [one.breaker.state for one in house.pool.backends.values()] == ["closed", "open"]


def test_where_nothing_of_its_own_is_known_it_begins_from_what_others_see(house: House) -> None:
    house.known = [house.view("a", "other", state="open", share="0", first_token_us=7)]
    house.memory.start()
    a = house.pool.backends["a"]
    assert (a.breaker.state, a.first_token_us) == ("open", 7)
    assert house.memory.before == {}


def test_nothing_is_put_over_what_own_requests_have_shown(house: House) -> None:
    house.complete = False
    house.memory.start()
    backend = house.pool.backends["a"]
    backend.give_back(backend.take())
    house.known = [house.view("a", "box", first_token_us=2)]
    house.complete = True
    house.look()
    assert backend.first_token_us is None


def test_others_have_in_flight_what_they_say_while_it_is_good(house: House) -> None:
    house.known = [
        house.view("a", "one", in_flight=3),
        house.view("a", "two", in_flight=4),
        house.view("b", "two", in_flight=5),
        house.view("a", "gone", age=11.0, in_flight=100),
        house.view("a", "box", in_flight=1000),
        house.view("c", "one", in_flight=7),
        house.view("a", "box", in_flight=1000, source=OWN),
    ]
    house.memory.start()
    assert (house.others(), house.pool.live_gateways) == ([7, 5], 3)
    house.known = [house.view("b", "two", in_flight=1)]
    house.memory.tick()
    assert house.others() == [7, 5], "not more often than it has to be"
    house.look()
    assert (house.others(), house.pool.live_gateways) == ([0, 1], 2)
    house.clock.advance(10)
    house.look()
    assert (house.others(), house.pool.live_gateways) == ([0, 0], 1), "its view has run out"


def test_a_gateway_that_said_its_last_word_has_nothing_anywhere(house: House) -> None:
    house.known = [house.view("a", "one", in_flight=3)]
    house.memory.start()
    assert (house.others(), house.pool.live_gateways) == ([3, 0], 2)
    now = house.clock.now()
    house.known = [
        house.view("a", "one", age=0.0, in_flight=3, sequence=2, expires_at=now),
    ]
    house.look()
    assert (house.others(), house.pool.live_gateways) == ([0, 0], 1)


@pytest.mark.parametrize("wrong", [-3600.0, -15.0, 15.0, 3600.0])
def test_a_gateway_whose_clock_is_wrong_counts_while_it_is_heard(
    house: House, wrong: float
) -> None:
    house.memory.start()
    for sequence in range(1, 5):
        house.known = [house.view("a", "one", age=-wrong, in_flight=sequence, sequence=sequence)]
        house.clock.advance(1.5)
        house.look()
    assert (house.others(), house.pool.live_gateways) == ([4, 0], 2)
    house.clock.advance(10)
    house.look()
    assert (house.others(), house.pool.live_gateways) == ([0, 0], 1), "it is heard no more"


@pytest.mark.parametrize("ahead", [15.0, 3600.0, 1e8])
def test_a_gateway_that_is_gone_does_not_count_for_as_long_as_its_clock_was_ahead(
    house: House, ahead: float
) -> None:
    house.known = [house.view("a", "one", age=-ahead, in_flight=9)]
    house.memory.start()
    assert house.others() == [9, 0], "it may live"
    house.clock.advance(10)
    house.look()
    assert (house.others(), house.pool.live_gateways) == ([0, 0], 1)


def test_no_view_is_good_for_ever_whatever_it_says(house: House) -> None:
    house.memory.start()
    for sequence in (1, 2):
        later = house.clock.now() + timedelta(days=10_000)
        house.known = [
            house.view("a", "one", sequence=sequence, in_flight=9, expires_at=later),
        ]
        house.look()
    assert house.others() == [9, 0]
    house.clock.advance(60)
    house.look()
    assert house.others() == [0, 0]


def test_gateways_that_come_and_go_leave_nothing_behind(house: House) -> None:
    for number in range(50):
        house.known = [house.view("a", f"pod-{number}")]
        house.look()
    assert len(house.memory._heard) == 1


def test_a_later_process_of_the_same_name_is_told_of_while_it_lives(house: House) -> None:
    house.known = [house.view("a", "box"), house.view("a", "other", source="/gateway/other/9")]
    house.memory.start()
    assert not house.memory.notes()
    house.known.append(house.view("b", "box", source="/gateway/box/3"))
    house.look()
    assert "another process serves as box" in house.memory.notes()[0]
    house.clock.advance(10)
    house.look()
    assert not house.memory.notes()


def test_nothing_may_be_told_while_it_could_take_the_place_of_what_is_to_be_remembered(
    house: House,
) -> None:
    house.complete = False
    house.memory.start()
    assert house.memory.is_awaited
    house.complete = True
    house.look()
    assert not house.memory.is_awaited


def test_one_that_serves_from_a_snapshot_waits_for_no_memory(house: House) -> None:
    house.complete = False
    house.memory.start()
    house.pool.backends["a"].requests += 1
    house.look()
    assert not house.memory.is_awaited
