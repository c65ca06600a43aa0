"""What goes on for each backend in the background: one task each, as long as it is there."""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine
from functools import partial
from typing import Any

from gateway.backends.backend import Backend

Watch = Callable[[Backend], Coroutine[Any, Any, None]]
"""What a task does for its backend, without end."""


class Watches:
    """One task for each backend, so that a server that hangs holds up no other's.

    Each does `watch`. Where a fault of ours ends one, `log` gets `words`, whose %s is the backend's
    name; with `again` another one begins in its place.
    """

    def __init__(
        self, watch: Watch, log: logging.Logger, words: str, *, again: bool = False
    ) -> None:
        self._watch = watch
        self._log = log
        self._words = words
        self._again = again
        self._tasks: dict[Backend, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def follow(self, backends: Collection[Backend]) -> None:
        """Begin with those of `backends` that are new, and end with those that are gone. Cheap."""
        for gone in self._tasks.keys() - set(backends):
            self.end(gone)
        for backend in backends:
            if backend not in self._tasks:
                self.begin(backend)

    def begin(self, backend: Backend, watch: Watch | None = None) -> None:
        """Begin with `backend`, which has no task now; with `watch` for this one in place of the
        usual."""
        task = asyncio.create_task((watch or self._watch)(backend))
        task.add_done_callback(partial(self._ended, backend))
        self._tasks[backend] = task

    def end(self, backend: Backend) -> None:
        """End the task of `backend`, if it has one. `stop` waits for what it does at its end."""
        task = self._tasks.pop(backend, None)
        if task is not None:
            task.cancel()
            self._ending.add(task)

    def end_all(self) -> None:
        """End every task."""
        for backend in list(self._tasks):
            self.end(backend)

    async def stop(self) -> None:
        """End every task, and wait until all are gone."""
        self.end_all()
        await asyncio.gather(*self._ending, return_exceptions=True)

    def still(self, backend: Backend) -> bool:
        """True if the task that asks is the one of `backend`. A task has to ask after it served a
        request, for the relay ends a cut one in peace and takes the cancellation back."""
        return self._tasks.get(backend) is asyncio.current_task()

    def _ended(self, backend: Backend, task: asyncio.Task[None]) -> None:
        self._ending.discard(task)
        if task.cancelled() or (fault := task.exception()) is None:
            return
        self._log.error(self._words, backend.backend_id, exc_info=fault)
        if self._again and self._tasks.get(backend) is task:
            self.begin(backend)
