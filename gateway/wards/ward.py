"""Processes that the demo looks after: started, waited for, and gone when their block ends.

Each stands in a session of its own, so that Ctrl-C reaches only the demo, which then ends them in
order. Each ends by itself when the pipe to its standard input does, so that nothing is left even
after `kill -9` of the demo.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import sleep

from gateway.demo.errors import DemoFailed
from ledger.clock import Clock

START_SECONDS_MAX = 120.0
"""A model of 250 MB on a slow disk; a gateway is there in one."""

STOP_SECONDS_MAX = 30.0
POLL_SECONDS = 0.05
LOG_LINES_SHOWN = 8


class Ward:
    """One process that was started here. What it says is in `log`."""

    def __init__(self, name: str, argv: Sequence[str], log: Path, first_line: bytes = b"") -> None:
        self.name, self.log = name, log
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=out, stderr=out, start_new_session=True
            )
        assert self._process.stdin is not None, "a pipe was asked for"
        self._stdin = self._process.stdin
        # A process that died at once is found by `wait_until`, with what it said.
        with suppress(BrokenPipeError):
            self._stdin.write(first_line)
            self._stdin.flush()

    def wait_until(self, ready: Callable[[], bool], clock: Clock) -> None:
        """Wait until `ready` holds. Raises `DemoFailed` if the process ends or takes too long."""
        end = clock.monotonic() + START_SECONDS_MAX
        while not ready():
            self.check()
            if clock.monotonic() > end:
                raise DemoFailed(
                    f"{self.name} is not ready after {START_SECONDS_MAX:.0f} s; {self._said()}"
                )
            sleep(POLL_SECONDS)

    def check(self) -> None:
        """Raises `DemoFailed` with what the process said last, if it has ended."""
        code = self._process.poll()
        if code is not None:
            how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise DemoFailed(f"{self.name} {how}; {self._said()}")

    def stop(self) -> None:
        """End it: first by closing its standard input, then by force. Returns when it is gone."""
        with suppress(BrokenPipeError):
            self._stdin.close()
        try:
            self._process.wait(STOP_SECONDS_MAX)
        finally:
            # Also when a second Ctrl-C cuts the wait short. Its whole session goes with it; only
            # this process ever joined it.
            if self._process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()

    def _said(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
        return "\n".join([f"it said (all of it is in {self.log}):", *lines]) if lines else "silent"


@contextmanager
def ward(name: str, argv: Sequence[str], log: Path, first_line: bytes = b"") -> Iterator[Ward]:
    """`argv` as a process for the length of the block. It must end when its standard input does."""
    process = Ward(name, argv, log, first_line)
    try:
        yield process
    finally:
        process.stop()


def leashed(*argv: str) -> list[str]:
    """The command for `argv` that ends when its standard input does."""
    return [sys.executable, "-m", "gateway.demo.leash", *argv]


def take_port(host: str, port: int, option: str) -> int:
    """`port` if nobody listens on it, or a free one for 0. Raises `DemoFailed` if it is taken."""
    with socket.socket() as probe:
        # As every server does; without it a connection that fades out would count as taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as wrong:
            raise DemoFailed(
                f"port {port} on {host} cannot be taken: {wrong.strerror}. Another program has it, "
                f"perhaps a demo that still runs: stop that, or give another one by {option} "
                f"(0 takes a free one)"
            ) from wrong
        found: int = probe.getsockname()[1]
        return found
