"""Shows how far long work is: on standard error, on a terminal, after a second, gone when done."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

DELAY_SECONDS: Final = 1.0
"""Shorter work shows nothing: a bar that only flickers tells nobody anything."""


class Progressing:
    """Takes news of the work. Call it with how much is done, of how much (0: nobody knows)."""

    def __init__(self, what: str, *, visible: bool) -> None:
        self._what, self._done, self._total = what, 0, 0
        self._lock = threading.Lock()
        self._ended = False
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._timer = threading.Timer(DELAY_SECONDS, self._show)
        self._timer.daemon = True
        if visible:
            self._timer.start()

    def __call__(self, done: int, total: int) -> None:
        """Tell how far the work is."""
        self.step(self._what, done, total)

    def step(self, what: str, done: int, total: int = 0) -> None:
        """Tell which part is at work and how far it is."""
        self._what, self._done, self._total = what, done, total
        with self._lock:
            self._update()

    def end(self) -> None:
        """Take the bar away. After this nothing is shown."""
        self._timer.cancel()
        with self._lock:
            self._ended = True
            if self._bar is not None:
                self._bar.stop()

    def _show(self) -> None:
        with self._lock:
            if self._ended:
                return
            # Imported only now: most commands end before this alone would have been loaded.
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TextColumn("{task.fields[count]}", markup=False),
                TimeElapsedColumn(),
            )
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(self._what, total=None, count="")
            self._update()
            self._bar.start()

    def _update(self) -> None:
        if self._bar is None or self._task is None:
            return
        count = f"{self._done:,}" + (f" of {self._total:,}" if self._total else "")
        self._bar.update(
            self._task,
            description=self._what,
            completed=self._done,
            total=self._total or None,
            count=count if self._done else "",
        )


@contextmanager
def progress(what: str) -> Iterator[Progressing]:
    """Show `what` while the block runs; what it is given takes news of the work."""
    told = Progressing(what, visible=sys.stderr.isatty())
    try:
        yield told
    finally:
        told.end()
