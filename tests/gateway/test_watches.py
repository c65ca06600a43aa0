"""One task for each backend: they come and go with it, and a fault of ours is told by name."""

import asyncio
import logging

import pytest

from gateway.backends.backend import Backend
from gateway.backends.watches import Watches

log = logging.getLogger("tollbook.test")


def backend(name: str) -> Backend:
    url = f"http://{name}.invalid"
    return Backend(name, url, key=None, engine=None, models=None, any_model=True)


class House:
    """Watches that tell when they begin and end; each does what `doing` is then."""

    def __init__(self, *, again: bool = False) -> None:
        self.said: list[str] = []
        self.fault: Exception | None = None
        self.hold = asyncio.Event()
        self.watches = Watches(self.watch, log, "backend %s is left alone", again=again)

    async def watch(self, backend: Backend) -> None:
        self.said.append(f"{backend.backend_id} begins")
        try:
            await self.hold.wait()
        finally:
            self.said.append(f"{backend.backend_id} ends")
        if self.fault is not None:
            raise self.fault


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_tasks_follow_the_backends() -> None:
    house, one, two, three = House(), backend("one"), backend("two"), backend("three")
    house.watches.follow([one, two])
    await settle()
    house.watches.follow([two, three])
    house.watches.follow([two, three])
    await settle()
    assert house.said == ["one begins", "two begins", "one ends", "three begins"]
    await house.watches.stop()
    assert house.said[4:] == ["two ends", "three ends"]


async def test_another_backend_of_the_same_name_is_another() -> None:
    house = House()
    house.watches.follow([backend("one")])
    await settle()
    house.watches.follow([backend("one")])
    await settle()
    assert sorted(house.said) == ["one begins", "one begins", "one ends"]
    await house.watches.stop()


@pytest.mark.parametrize("again", [False, True])
async def test_a_fault_is_told_by_name_and_begins_anew_only_where_that_is_wanted(
    caplog: pytest.LogCaptureFixture, again: bool
) -> None:
    house = House(again=again)
    house.fault = ValueError("of ours")
    house.watches.follow([backend("one")])
    await settle()
    house.hold.set()
    await asyncio.sleep(0)
    house.hold.clear()
    await settle()
    (told,) = caplog.records
    assert told.getMessage() == "backend one is left alone"
    assert told.exc_info is not None and told.exc_info[1] is house.fault
    assert house.said == ["one begins", "one ends", *["one begins"] * again]
    await house.watches.stop()
    assert len(caplog.records) == 1, "what is cancelled is no fault"


async def test_stopping_waits_for_one_that_ended_before_and_takes_its_time() -> None:
    one, done, seen = backend("one"), asyncio.Event(), list[object]()

    async def watch(backend: Backend) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            # As the relay does, which writes the end of a cut request in peace.
            seen.append(watches.still(backend))
            await done.wait()
            seen.append("over")

    watches = Watches(watch, log, "%s")
    watches.begin(one)
    await settle()
    watches.end(one)
    stopping = asyncio.create_task(watches.stop())
    await settle()
    assert seen == [False] and not stopping.done()
    done.set()
    await stopping
    assert seen == [False, "over"]


async def test_of_two_tasks_for_one_backend_only_the_later_is_still_its() -> None:
    one, still = backend("one"), []

    async def watch(backend: Backend) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            still.append(watches.still(backend))

    async def later(backend: Backend) -> None:
        still.append(watches.still(backend))

    watches = Watches(watch, log, "%s")
    watches.begin(one)
    await settle()
    watches.end(one)
    watches.begin(one, later)
    await settle()
    assert sorted(still) == [False, True]
    await watches.stop()
