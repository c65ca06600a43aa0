"""What the process that empties the spools of a data directory is, whichever it is.

The embedded runner and the relay to Kafka take the same lock, so that there is one of them, and end
for the same reasons.
"""

import contextlib
import gc
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from ledger.clock import Clock
from ledger.words import counted
from streams.local.layout import Layout
from streams.log.lock import FileLock

Say = Callable[[str], None]

IDLE_PAUSE_SECONDS: Final = 0.25
"""Between two looks at what does not move."""

TROUBLE_PAUSE_SECONDS_MAX: Final = 5.0
"""The longest wait after an error: the ledger may be locked by a rebuild, the disk may be full."""

SAID_MAX: Final = 1000
"""Different things of one log that are remembered to have been said."""

NICENESS: Final = 15
"""The gateway goes first on a busy machine: the ledger may be seconds behind, an answer may not."""

GC_OBJECTS: Final = 50_000
"""New objects between two collections; what is read at once makes more, few of them in cycles. With
Python's own 700 a tenth of the CPU went into looking for them."""


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


def against(conflicts: int) -> str:
    """That so many records cannot be true beside what the ledger holds, in words. Pure."""
    one = "record contradicts what the ledger holds, or is no event; it is set aside"
    many = "records contradict what the ledger holds, or are no events; they are set aside"
    return counted(conflicts, one, many)


class Once:
    """Says each thing once: a log in a bad state would repeat itself for ever. Beyond `SAID_MAX`
    different things it does."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._said: set[str] = set()

    def __call__(self, words: str) -> bool:
        """Say `words` unless that was done before; true if it was not."""
        if words in self._said:
            return False
        if len(self._said) < SAID_MAX:
            self._said.add(words)
        self._say(words)
        return True

    def forget(self) -> None:
        """All is well again: what comes from now on is news."""
        self._said.clear()


class Due:
    """What is to be done every so often, and when each of it was done last."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._done: dict[str, float] = {}

    def now(self, what: str, every_seconds: float) -> bool:
        """True if `what` is due, which it then is no more; at first everything is."""
        at = self._clock.monotonic()
        if at - self._done.get(what, float("-inf")) < every_seconds:
            return False
        self._done[what] = at
        return True

    def put_off(self, what: str, seconds: float) -> None:
        """Do `what`, which was due, later than else by `seconds`."""
        self._done[what] += seconds


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


def collect_seldom() -> None:
    """Collect garbage as seldom as thousands of small objects at a time want it. What there is now
    is never looked at again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_OBJECTS, 20, 50)


@contextmanager
def alone(layout: Layout, say: Say, *, watch_stdin: bool) -> Iterator[Stop | None]:
    """Be the one that empties the spools of a data directory for the length of the block, which is
    given what may end it; null if that was asked before nobody else was at work. Blocks until then.
    """
    layout.make()
    os.nice(NICENESS)
    collect_seldom()
    stop = Stop(watch_stdin=watch_stdin)
    stop.install()
    lock = wait_for_lock(layout, stop, say)
    if lock is None:
        yield None
        return
    try:
        yield stop
    finally:
        lock.release()
