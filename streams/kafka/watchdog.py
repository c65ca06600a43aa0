"""Sees a reader that stands still although there is something to read, and ends its process.

A client that never fetches one of its partitions again looks healthy from outside: it heartbeats,
it raises nothing. A thread of its own judges, so that a loop that hangs is seen as well.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Final

from ledger.clock import Clock

LOOKS_IN_STALL: Final = 6
"""How often the thread judges in the time that a stall may take."""


class Watchdog:
    """Judges what the reader tells by `look` and `excuse`. `on_stall` gets the words, once."""

    def __init__(self, clock: Clock, seconds: float, on_stall: Callable[[str], None]) -> None:
        self._clock = clock
        self._seconds = seconds
        self._on_stall = on_stall
        self._looked = clock.monotonic()
        self._still: dict[str, tuple[int, float]] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        """Begin to judge."""
        self._looked = self._clock.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """Judge no more."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def look(self, logs: Mapping[str, tuple[int, int]]) -> None:
        """Where each log that should move stands now: its position and its end."""
        now = self._clock.monotonic()
        still: dict[str, tuple[int, float]] = {}
        for log, (position, end) in logs.items():
            if position < end:
                since = self._still.get(log, (position, now))
                still[log] = since if since[0] == position else (position, now)
        self._still, self._looked = still, now

    def excuse(self) -> None:
        """Nothing can move at the moment, for a reason that is known and was said."""
        self._still, self._looked = {}, self._clock.monotonic()

    def verdict(self) -> str | None:
        """Why this reader is stuck; null while it is not."""
        now = self._clock.monotonic()
        for log, (position, since) in list(self._still.items()):
            if now - since > self._seconds:
                return (
                    f"{log} stands at {position} for {now - since:.0f} seconds although more is "
                    "there to read; this process ends so that it is started anew"
                )
        if now - self._looked > self._seconds:
            return (
                f"the reader has not looked around for {now - self._looked:.0f} seconds; this "
                "process ends so that it is started anew"
            )
        return None

    def _watch(self) -> None:
        while not self._ended.wait(self._seconds / LOOKS_IN_STALL):
            words = self.verdict()
            if words is not None:
                self._on_stall(words)
                return
