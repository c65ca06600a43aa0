"""Processes that this one looks after: started, waited for, and gone when they are no more needed.

Each stands in a session of its own, so that Ctrl-C reaches only whoever started it, who then ends
it in order. Each ends by itself when the pipe to its standard input does, so that nothing is left
even after `kill -9` of its starter.
"""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import sleep
from typing import Final

from gateway.wards import leash
from gateway.wards.errors import WardFailed
from ledger.clock import Clock

START_SECONDS_MAX: Final = 120.0
"""A model of 250 MB on a slow disk, a broker on a machine that compiles beside it; others are there
in seconds."""

STOP_SECONDS_MAX: Final = leash.STOP_SECONDS_MAX + 5
"""A leash needs a moment more than what hangs on it."""

POLL_SECONDS: Final = 0.02
LOG_LINES_SHOWN: Final = 12


class Ward:
    """One process that was started here, which must end when its standard input does.

    It is given `first_line`. What it says is put behind what is in `log` already; of one that is
    `heard`, only its errors.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        log: Path,
        first_line: bytes = b"",
        *,
        heard: bool = False,
    ) -> None:
        self.name, self.log = name, log
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if heard else out,
                stderr=out,
                start_new_session=True,
            )
        assert self._process.stdin is not None, "a pipe was asked for"
        self._stdin = self._process.stdin
        # A process that died at once is found by `wait_until`, with what it said.
        with suppress(BrokenPipeError):
            self._stdin.write(first_line)
            self._stdin.flush()

    @property
    def alive(self) -> bool:
        """True while the process runs."""
        return self._process.poll() is None

    def hear(self) -> bytes:
        """The one line that it says, if it is `heard`; empty if it ended without. Blocks."""
        assert self._process.stdout is not None, "it is not heard"
        with self._process.stdout as said:
            return said.readline()

    def wait_until(self, ready: Callable[[], bool], clock: Clock) -> None:
        """Wait until `ready` holds. Raises `WardFailed` if the process ends or takes too long."""
        end = clock.monotonic() + START_SECONDS_MAX
        while not ready():
            self.check()
            if clock.monotonic() > end:
                raise WardFailed(
                    f"{self.name} is not ready after {START_SECONDS_MAX:.0f} s; {self._said()}"
                )
            sleep(POLL_SECONDS)

    def check(self) -> None:
        """Raises `WardFailed` with what the process said last, if it has ended."""
        code = self._process.poll()
        if code is not None:
            how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise WardFailed(f"{self.name} {how}; {self._said()}")

    def let_go(self, seconds: float | None = None) -> None:
        """Close its standard input and wait until it is gone, at most for `seconds`."""
        with suppress(BrokenPipeError):
            self._stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def stop(self) -> None:
        """End it: first by closing its standard input, then by force. Returns when it is gone."""
        try:
            self.let_go(STOP_SECONDS_MAX)
        finally:
            # Also when a second Ctrl-C cuts the wait short. Its whole session goes with it; only
            # what it started ever joined it.
            if self.alive:
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()

    def _said(self) -> str:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        lines = text.splitlines()[-LOG_LINES_SHOWN:]
        return "\n".join([f"it said (all of it is in {self.log}):", *lines]) if lines else "silent"


@contextmanager
def ward(name: str, argv: Sequence[str], log: Path, first_line: bytes = b"") -> Iterator[Ward]:
    """`argv` as a process for the length of the block, with a new log. It must end when its
    standard input does."""
    log.unlink(missing_ok=True)
    process = Ward(name, argv, log, first_line)
    try:
        yield process
    finally:
        process.stop()


@contextmanager
def leashed(name: str, argv: Sequence[str], log: Path) -> Iterator[Ward]:
    """The same for an `argv` that does not look at its standard input."""
    with ward(name, leash.COMMAND, log, leash.Order(argv=tuple(argv)).line()) as process:
        yield process
