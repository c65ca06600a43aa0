"""Durability `power`: one `fsync` on a thread for all callers that wait at that moment.

Nothing here writes, and nothing here runs for durability `process`.
"""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from streams.errors import SpoolFailed


class GroupSync:
    """Waits until a log's bytes are on the disk. `end` tells the log's present end.

    `directory` holds the log's files; whoever renames it says so here.

    A failed `fsync` is final (`failed` says why): the kernel may have dropped the pages and report
    the next `fsync` as good, so no later success can be believed.
    """

    def __init__(self, directory: Path, fd: int, end: Callable[[], int]) -> None:
        self.directory = directory
        self._fds = [fd]
        self._end = end
        self._synced = 0
        self._running: asyncio.Task[None] | None = None
        self.failed: str | None = None

    def turned(self, fd: int) -> None:
        """The log goes on in `fd`. The descriptor before it is closed here, once it is synced."""
        self._fds.append(fd)

    async def wait(self, target: int) -> None:
        """Return once every byte below `target` is on the disk. Raises `SpoolFailed`."""
        while self._synced < target:
            if self.failed is not None:
                raise SpoolFailed(self.failed)
            if self._running is None or self._running.done():
                self._running = asyncio.create_task(self._sync())
            # A caller that is cancelled must not take the others' fsync with it.
            await asyncio.shield(self._running)

    async def _sync(self) -> None:
        reached = self._end()
        fds = list(self._fds)
        # Copies, so that a close meanwhile cannot hand the thread somebody else's descriptor.
        copies = [os.dup(fd) for fd in fds]
        try:
            await asyncio.to_thread(_sync_files, copies, self.directory if fds[1:] else None)
        except OSError as wrong:
            self.failed = f"fsync in {self.directory} failed: {wrong.strerror}"
            raise SpoolFailed(self.failed) from wrong
        for fd in fds[:-1]:
            self._fds.remove(fd)
            os.close(fd)
        self._synced = reached

    def sync_now(self) -> None:
        """Sync all that is written, at once. Blocks. Raises `SpoolFailed`."""
        try:
            for fd in self._fds:
                os.fsync(fd)
            sync_directory(self.directory)
        except OSError as wrong:
            self.failed = f"fsync in {self.directory} failed: {wrong.strerror}"
            raise SpoolFailed(self.failed) from wrong
        self._synced = max(self._synced, self._end())

    def close(self) -> None:
        """Sync and close every descriptor. Blocks; for the orderly end only."""
        for fd in self._fds:
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        self._fds.clear()


def _sync_files(fds: list[int], directory: Path | None) -> None:
    """Sync and close `fds`, then sync `directory`, which makes the names of new files last."""
    try:
        for fd in fds:
            os.fsync(fd)
    finally:
        for fd in fds:
            os.close(fd)
    if directory is not None:
        sync_directory(directory)


def sync_directory(directory: Path) -> None:
    """Make names made or changed in `directory` last through a power cut. Blocks."""
    fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
