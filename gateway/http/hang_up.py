"""Notices that a client has hung up while its answer is still on the way.

ASGI tells it only to who asks, and asking takes a task. Short answers are over before it matters,
so a call is watched from the first heartbeat that finds it open; a timer for each call would cost
2 % of the CPU of a plain request.
"""

import asyncio
from collections.abc import Callable

from starlette.types import Receive


class HangUpWatch:
    """Watches one call. `end` it on every way out, whether or not it was begun."""

    __slots__ = ("_ended", "_gone", "_receive", "_task")

    def __init__(self, receive: Receive, gone: Callable[[], None]) -> None:
        self._receive = receive
        self._gone = gone
        self._ended = False
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Call `gone` once if the client hangs up, or has already, before `end`."""
        self._task = asyncio.create_task(self._until_gone())

    def end(self) -> None:
        """The answer is over, whichever way; a later hang-up says nothing."""
        self._ended = True
        if self._task is not None:
            self._task.cancel()

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self._ended:
            self._gone()
