"""The pool follows the registry: who comes, changes, drains and goes, and what stays of each."""

import asyncio
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from gateway.backends.following import RESOLVE_SECONDS, Follower, together, wanted_of
from gateway.backends.pool import Backend, Pool
from gateway.backends.port import Answer, Target
from gateway.settings import BackendSettings, SettingsError
from ledger.folds.book import Book, Server
from tests.streams.builders import FakeClock
from tests.support.events import START

LISTED = b'{"object":"list","data":[{"id":"m","owned_by":"vllm"}]}'


class Lists:
    """A client whose every server lists the model m."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def open(
        self, target: Target, path: str, body: bytes, headers: Mapping[str, str]
    ) -> Answer:
        raise AssertionError(path)

    async def fetch(
        self, target: Target, path: str, *, seconds: float, body: bytes | None = None
    ) -> tuple[int, bytes]:
        self.asked.append(f"{target.url} {target.authorization}")
        return 200, LISTED


class House:
    """A pool with the backend `conf` of the settings, and a registry that is what a test says."""

    def __init__(self) -> None:
        self.clock, self.client = FakeClock(), Lists()
        self.keys: dict[str, str] = {}
        settings = [BackendSettings(url="http://conf:1", name="conf")]
        conf = Backend("conf", "http://conf:1", key=None, engine=None, models=(), any_model=False)
        self.pool = Pool([conf], self.client, self.clock)
        self.follower = Follower(self.pool, settings, (), self.resolve, self.clock)

    def resolve(self, reference: str) -> str:
        try:
            return self.keys[reference]
        except KeyError:
            raise SettingsError(f"{reference} is not there") from None

    def follow(self, *servers: Server) -> None:
        self.follower.follow(Book(backends={one.backend_id: one for one in servers}))

    def __getitem__(self, backend_id: str) -> Backend:
        return self.pool.backends[backend_id]


def server(backend_id: str, url: str | None = None, **more: object) -> Server:
    values = {"version": 1, "registered_at": START} | more
    return Server(backend_id=backend_id, url=url, **values)  # type: ignore[arg-type]


def test_backends_come_change_and_go() -> None:
    async def story() -> None:
        house = House()
        await house.pool.start()
        house.follow(server("gpu", "http://gpu:1", weight=10))
        assert set(house.pool.backends) == {"conf", "gpu"} and house["gpu"].weight == 10
        await asyncio.sleep(0.01)
        assert house["gpu"].source == "registry" and house["gpu"].up
        assert "http://gpu:1 None" in house.client.asked
        first = house["gpu"]
        first.take()
        house.follow(server("gpu", "http://gpu:2"))
        assert house["gpu"] is first and first.in_flight == 1 and not first.up
        assert (first.url, first.weight) == ("http://gpu:2", 100)
        await asyncio.sleep(0.01)
        assert house.client.asked[-1] == "http://gpu:2 None" and house["gpu"].listed
        house.follow(server("gpu", "http://gpu:2", removed_at=START))
        assert set(house.pool.backends) == {"conf"}
        first.give_back(None)
        assert first.in_flight == 0
        await house.pool.stop()

    asyncio.run(story())


def test_a_weight_or_a_drain_touches_nothing_else() -> None:
    async def story() -> None:
        house = House()
        house.follow(server("gpu", "http://gpu:1"))
        await house.pool.start()
        asked = len(house.client.asked)
        house.follow(server("gpu", "http://gpu:1", weight=5, draining=True))
        gpu = house["gpu"]
        assert (gpu.weight, gpu.draining, gpu.up) == (5, True, True)
        assert gpu.view(0.0).draining and len(house.client.asked) == asked
        await house.pool.stop()

    asyncio.run(story())


def test_the_registry_stands_over_the_settings() -> None:
    house = House()
    house.follow(server("conf", weight=3, draining=True))
    assert (house["conf"].weight, house["conf"].draining) == (3, True)
    assert house["conf"].url == "http://conf:1"
    house.follow(server("conf", "http://other:1"))
    assert house["conf"].url == "http://other:1" and not house["conf"].draining
    house.follow(server("conf", removed_at=START))
    assert not house.pool.backends
    house.follow()
    assert house["conf"].url == "http://conf:1"


def test_a_key_that_is_not_there_holds_the_backend_back_until_it_is() -> None:
    async def story() -> None:
        house = House()
        await house.pool.start()
        said = server("gpu", "http://gpu:1", key="env:GPU")
        house.follow(said)
        await asyncio.sleep(0.01)
        held = house["gpu"].held
        assert held == "env:GPU is not there" and house["gpu"].view(0.0).draining
        assert house["gpu"].fault == held
        assert not any("gpu" in one for one in house.client.asked)
        house.keys["env:GPU"] = "secret-of-the-server"
        house.clock.advance(RESOLVE_SECONDS)
        house.follow(said)
        assert house["gpu"].held is None
        await asyncio.sleep(0.01)
        assert house.client.asked[-1] == "http://gpu:1 Bearer secret-of-the-server"
        await house.pool.stop()

    asyncio.run(story())


def test_a_backend_whose_key_is_not_there_any_more_is_down() -> None:
    async def story() -> None:
        house = House()
        await house.pool.start()
        house.follow(server("gpu", "http://gpu:1"))
        await asyncio.sleep(0.01)
        assert house["gpu"].up
        house.follow(server("gpu", "http://gpu:1", key="env:GPU"))
        gpu = house["gpu"]
        assert (gpu.up, gpu.fault) == (False, "env:GPU is not there")
        await house.pool.stop()

    asyncio.run(story())


def test_a_missing_key_is_looked_for_again_without_any_change() -> None:
    house = House()
    book = Book(backends={"gpu": server("gpu", "http://gpu:1", key="env:GPU")})
    house.follower.follow(book)
    house.keys["env:GPU"] = "secret-of-the-server"
    house.follower.follow(book)
    assert house["gpu"].held is not None
    house.clock.advance(RESOLVE_SECONDS)
    house.follower.follow(book)
    assert house["gpu"].held is None


def test_two_names_of_one_address_are_not_both_used() -> None:
    house = House()
    house.follow(server("twin", "http://conf:1"))
    assert set(house.pool.backends) == {"conf"}
    assert "conf of this gateway's settings has the same address" in house.follower.notes()[0]
    house.follow(server("twin", "HTTP://CONF:01"))
    assert set(house.pool.backends) == {"conf"}, "however it is written"
    house.follow(server("twin", "http://conf:1"), server("conf", removed_at=START))
    assert set(house.pool.backends) == {"twin"} and not house.follower.notes()


_URLS = st.none() | st.sampled_from(["http://a:1", "http://b:1", "http://c:1"])


@given(
    st.dictionaries(
        st.sampled_from("abcd"),
        st.tuples(_URLS, st.booleans(), st.integers(0, 100), st.booleans()),
    )
)
def test_what_is_removed_is_nowhere_and_no_address_is_there_twice(
    said: dict[str, tuple[str | None, bool, int, bool]],
) -> None:
    settings = [BackendSettings(url=f"http://{name}:1", name=name) for name in "ab"]
    servers = {
        name: server(
            name, url, removed_at=START if gone else None, weight=weight, draining=draining
        )
        for name, (url, gone, weight, draining) in said.items()
    }
    found, _ = together(wanted_of(settings, ()), servers, ())
    assert not {name for name, one in servers.items() if one.removed_at} & set(found)
    for name, wanted in found.items():
        if name in servers:
            said_of = servers[name]
            assert (wanted.weight, wanted.draining) == (said_of.weight, said_of.draining)
    ours = [wanted.url for name, wanted in found.items() if wanted.source == "configured"]
    theirs = [wanted.url for wanted in found.values() if wanted.source == "registry"]
    assert len(set(ours)) == len(ours) and not set(ours) & set(theirs)
