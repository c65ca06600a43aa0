"""Notices that a client has hung up while its answer is still on the way.

ASGI tells it only to who asks, and asking takes a task. Short answers are over before it matters,
so a call is only watched once it has been open for a while; one timer serves all calls, because a
timer for each was measured at 2 % of the CPU of a plain request.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from starlette.types import Receive

WATCH_AFTER_SECONDS = 0.05
"""A hang-up is seen at the latest twice this long after the request: far below a flush interval."""


class Watched:
    """One open call: `end` it on every way out."""

    __slots__ = ("_task", "ended", "gone", "receive", "since")

    def __init__(self, receive: Receive, gone: Callable[[], None], since: float) -> None:
        self.receive = receive
        self.gone = gone
        self.since = since
        self.ended = False
        self._task: asyncio.Task[None] | None = None

    def watch(self) -> None:
        """Begin to wait for the hang-up."""
        self._task = asyncio.create_task(self._until_gone())

    def end(self) -> None:
        """The answer is over, whichever way; a later hang-up says nothing."""
        self.ended = True
        if self._task is not None:
            self._task.cancel()

    async def _until_gone(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
        if not self.ended:
            self.gone()


class HangUpWatch:
    """All open calls that are too young to be watched, oldest first."""

    def __init__(self) -> None:
        self._young: deque[Watched] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, receive: Receive, gone: Callable[[], None]) -> Watched:
        """Call `gone` once if the client hangs up before the returned object is told to `end`."""
        loop = asyncio.get_running_loop()
        call = Watched(receive, gone, loop.time())
        self._young.append(call)
        if self._timer is None:
            self._timer = loop.call_later(WATCH_AFTER_SECONDS, self._sweep)
        return call

    def _sweep(self) -> None:
        loop, young = asyncio.get_running_loop(), self._young
        old = loop.time() - WATCH_AFTER_SECONDS
        while young and (young[0].ended or young[0].since <= old):
            call = young.popleft()
            if not call.ended:
                call.watch()
        self._timer = loop.call_later(WATCH_AFTER_SECONDS, self._sweep) if young else None
