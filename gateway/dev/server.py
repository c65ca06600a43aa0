"""A server of a development machine as one value: started, waited for, stopped, killed."""

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from gateway.dev.errors import DevFailed
from gateway.wards import leash
from gateway.wards.ward import Ward
from ledger.clock import SystemClock


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
        self._order = leash.Order(
            argv=tuple(argv), log=str(log), stop_signal=stop_signal, user=user
        )
        self._leash: Ward | None = None
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
        return self._leash is not None and self._leash.alive

    def start(self, ready: Callable[[], bool]) -> None:
        """Start it and wait until `ready` holds. Raises `WardFailed` with what it said last."""
        if self.alive:
            raise DevFailed(f"{self.name} runs already")
        self._leash = Ward(self.name, leash.COMMAND, self.log, self._order.line(), heard=True)
        try:
            line = self._leash.hear()
            if not line:
                raise DevFailed(f"{self.name} cannot be run: {self._order.argv[0]}")
            self._pid = leash.told_pid(line)
            self._leash.wait_until(ready, SystemClock())
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """End it in order, by force if it does not go. Returns when it is gone."""
        if self._leash is not None:
            self._leash.stop()
            self._leash, self._pid = None, 0

    def kill(self) -> None:
        """`kill -9`, and wait until it is gone."""
        if self._leash is None:
            return
        # The leash reaps the server, so while the leash is there this PID is no one else's.
        if self._pid and self._leash.alive:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        self._leash.let_go()
        self._leash, self._pid = None, 0
