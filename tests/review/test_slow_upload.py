"""What a review found: a request still arriving at the stop left a traceback in the log and its
client without an answer, and one that never arrived held its connection until then."""

import asyncio

import pytest

from gateway.errors import ApiError, Overloaded, TooLate
from gateway.http.arrivals import Arrivals
from tests.streams.builders import FakeClock


async def refused(arrivals: Arrivals, *, by: type[ApiError]) -> str:
    """The code of the refusal of a body that never arrives; the task goes on behind it."""

    async def never() -> dict[str, object]:
        await asyncio.Event().wait()
        raise AssertionError

    with pytest.raises(by) as found:
        task = asyncio.current_task()
        assert task is not None
        await arrivals.body(task, never, b"100", 0.0)
    await asyncio.sleep(0)  # the answer still goes out
    return found.value.code


async def test_a_body_that_has_not_arrived_at_the_stop_is_refused_in_words() -> None:
    task = asyncio.create_task(refused(Arrivals(FakeClock(), 1000), by=Overloaded))
    await asyncio.sleep(0)
    task.cancel("timeout graceful shutdown exceeded")
    assert await task == "shutting_down"


async def test_a_body_that_does_not_arrive_is_refused_after_its_time() -> None:
    clock = FakeClock()
    arrivals = Arrivals(clock, 1000)
    task = asyncio.create_task(refused(arrivals, by=TooLate))
    await asyncio.sleep(0)
    arrivals.refuse_late(clock.monotonic() + 1)
    await asyncio.sleep(0)
    assert not task.done()
    arrivals.refuse_late(-1)
    arrivals.refuse_late(-1)
    assert await task == "request_timeout"
