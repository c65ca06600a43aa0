"""What a review found: a request whose body had not arrived at the stop left a traceback in the log
and its client without an answer."""

import asyncio

import pytest

from gateway.errors import Overloaded
from gateway.http.doors import _body


async def test_a_body_that_has_not_arrived_at_the_stop_is_refused_in_words() -> None:
    async def never() -> dict[str, object]:
        await asyncio.Event().wait()
        raise AssertionError

    async def door() -> str:
        with pytest.raises(Overloaded) as refused:
            await _body(never, b"100", 1000)
        await asyncio.sleep(0)  # the answer still goes out
        return refused.value.code

    task = asyncio.create_task(door())
    await asyncio.sleep(0)
    task.cancel("timeout graceful shutdown exceeded")
    assert await task == "shutting_down"
