"""A server of a development machine as one value: started, waited for, stopped, killed."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from time import sleep
from typing import Final

import msgspec

from gateway.dev.errors import DevFailed
from gateway.dev.leash import Order
from ledger.clock import SystemClock

START_SECONDS_MAX: Final = 120.0
"""Both servers are there in seconds; a machine that compiles beside it takes longer."""
STOP_SECONDS_MAX: Final = 30.0
POLL_SECONDS: Final = 0.02
LOG_LINES_SHOWN: Final = 12


class Server:
    """One server process on a leash. What it says is in `log`."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        log: Path,
        stop_signal: signal.Signals,
        user: int | None = None,
    ) -> None:
        self.name, self.log = name, log
        self._order = Order(
            argv=tuple(argv),
            log=str(log),
            stop_signal=stop_signal,
            stop_seconds_max=STOP_SECONDS_MAX,
            user=user,
        )
        self._leash: subprocess.Popen[bytes] | None = None
        self._pid = 0

    @property
    def pid(self) -> int:
        """The server's own PID. Raises `DevFailed` if it is not started."""
        if self._leash is None:
            raise DevFailed(f"{self.name} is not started")
        return self._pid

    @property
    def alive(self) -> bool:
        """True while the process runs."""
        return self._leash is not None and self._leash.poll() is None

    def start(self, ready: Callable[[], bool]) -> None:
        """Start it and wait until `ready` holds. Raises `DevFailed` with what it said last."""
        if self.alive:
            raise DevFailed(f"{self.name} runs already")
        self._leash = subprocess.Popen(
            [sys.executable, "-m", "gateway.dev.leash"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._leash.stdin is not None and self._leash.stdout is not None
        self._leash.stdin.write(msgspec.json.encode(self._order) + b"\n")
        self._leash.stdin.flush()
        first_line = self._leash.stdout.readline()
        self._leash.stdout.close()
        try:
            if not first_line:
                raise DevFailed(f"{self.name} cannot be run: {self._order.argv[0]}")
            self._pid = int(first_line)
            self._wait(ready)
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """End it in order, by force if it does not go. Returns when it is gone."""
        leash = self._leash
        if leash is None:
            return
        try:
            self._let_go()
            leash.wait(STOP_SECONDS_MAX + 5)
        finally:
            # Also when a second Ctrl-C cuts the wait short.
            if leash.poll() is None:
                self.kill()
            self._leash = None

    def kill(self) -> None:
        """`kill -9`, and wait until it is gone."""
        leash = self._leash
        if leash is None:
            return
        # The leash reaps the server, so while the leash is there this PID is no one else's.
        if self._pid and leash.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        self._let_go()
        leash.wait()
        self._leash, self._pid = None, 0

    def said(self) -> str:
        """The last lines of its log, for a message."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        lines = text.splitlines()[-LOG_LINES_SHOWN:]
        return "\n".join([f"it said (all of it is in {self.log}):", *lines]) if lines else "silent"

    def _let_go(self) -> None:
        leash = self._leash
        if leash is not None and leash.stdin is not None:
            with suppress(BrokenPipeError):
                leash.stdin.close()

    def _wait(self, ready: Callable[[], bool]) -> None:
        clock = SystemClock()
        end = clock.monotonic() + START_SECONDS_MAX
        while not ready():
            if not self.alive:
                raise DevFailed(f"{self.name} ended while it started; {self.said()}")
            if clock.monotonic() > end:
                raise DevFailed(
                    f"{self.name} is not ready after {START_SECONDS_MAX:.0f} s; {self.said()}"
                )
            sleep(POLL_SECONDS)


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on now, all different."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def listens(port: int) -> bool:
    """True if somebody takes connections at `port` of 127.0.0.1."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
