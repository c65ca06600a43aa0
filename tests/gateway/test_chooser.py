"""Turns of `round_robin`, as the requests of one gateway take them."""

from collections import Counter

from gateway.backends.gauges import backend_gauges
from gateway.backends.pool import Backend, Pool
from gateway.call import Call
from gateway.chooser import Chooser
from gateway.routing import breaker as rule
from gateway.routing.policy import Rules, Ruling
from gateway.stats import Stats
from gateway.wire.endpoints import CHAT
from gateway.wire.requests import asked
from tests.gateway.test_scraper import Pages
from tests.streams.builders import FakeClock

BODY = b'{"model":"m"}'


class House:
    def __init__(self, count: int) -> None:
        self.names = [f"b-{number}" for number in range(count)]
        backends = [
            Backend(name, "http://h", key=None, engine=None, models=("m",), any_model=False)
            for name in self.names
        ]
        for backend in backends:
            backend.up = backend.listed = True
        self.pool = Pool(backends, Pages((200, b"")), FakeClock())
        self.chooser = Chooser(self.pool, Stats(), Ruling(Rules("round_robin")))

    def pick(self, *tried: str, only: str | None = None) -> str:
        call = Call("req_1", "key-1", CHAT, asked(BODY, CHAT), 0.0, body=BODY, only=only)
        backend = self.chooser.choose(call, tried)
        assert backend is not None
        return backend.backend_id


def test_second_tries_take_no_turn() -> None:
    house = House(2)
    first: Counter[str] = Counter()
    for _ in range(20):
        name = house.pick()
        first[name] += 1
        if name == "b-0":
            assert house.pick(name) == "b-1", "it failed there"
    assert first == {"b-0": 10, "b-1": 10}


def test_probes_take_no_turn() -> None:
    house = House(2)
    first: Counter[str] = Counter()
    for _ in range(20):
        first[house.pick()] += 1
        house.pick(only="b-0")
    assert first == {"b-0": 10, "b-1": 10}


def test_trials_that_are_shown_are_those_of_this_process() -> None:
    (backend,) = House(1).pool.backends.values()
    backend.breaker = rule.Breaker("half_open")
    shown = {
        gateways: {
            name: value for name, _, _, value in backend_gauges([backend], 0.0, {}, gateways)
        }["tollbook_backend_trials_left"]
        for gateways in (1, 2, 9)
    }
    assert shown == {1: rule.TRIALS, 2: rule.TRIALS // 2, 9: 1}
