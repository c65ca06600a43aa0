"""What the process that empties the spools of a data directory is, whichever it is.

The embedded runner and the relay to Kafka take the same lock, so that there is one of them, and end
for the same reasons.
"""

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Final

from streams.local.layout import Layout
from streams.log.lock import FileLock

Say = Callable[[str], None]

IDLE_PAUSE_SECONDS: Final = 0.25
"""Between two looks at what does not move."""

TROUBLE_PAUSE_SECONDS_MAX: Final = 5.0
"""The longest wait after an error: the ledger may be locked by a rebuild, the disk may be full."""

NICENESS: Final = 15
"""The gateway goes first on a busy machine: the ledger may be seconds behind, an answer may not."""


class Stop:
    """Why a running runner ends: a signal, or its parent's end of the pipe on its input."""

    def __init__(self, *, watch_stdin: bool) -> None:
        self.asked = False
        self.parent_gone = False
        self._watch_stdin = watch_stdin

    def install(self) -> None:
        """Take SIGTERM and Ctrl-C as being asked to stop. Only the main thread may."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._ask)
            signal.signal(signal.SIGINT, self._ask)

    def wait(self, seconds: float) -> None:
        """Sleep, but not past the moment when the parent goes."""
        if self.asked:
            return
        if not self._watch_stdin or self.parent_gone:
            time.sleep(seconds)
            return
        try:
            ready, _, _ = select.select([0], [], [], seconds)
            self.parent_gone = bool(ready) and not os.read(0, 4096)
        except (OSError, ValueError):
            # There is no standard input at all, so there is no parent to wait for.
            self.parent_gone = True

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True


def speaker(name: str) -> Say:
    """Says one line on standard error, as the process `name`.

    A parent that no longer reads it must not stop the books.
    """

    def say(words: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            print(f"tollbook {name}: {words}", file=sys.stderr, flush=True)

    return say


def wait_for_lock(layout: Layout, stop: Stop, say: Say) -> FileLock | None:
    """The runner's lock of a data directory, once nobody has it; null if told to stop before."""
    told = False
    while not stop.asked and not stop.parent_gone:
        lock = FileLock.take(layout.runner_lock)
        if lock is not None:
            return lock
        if not told:
            say(f"another runner is at work in {layout.root}; waiting for it to end")
            told = True
        stop.wait(IDLE_PAUSE_SECONDS)
    return None
