"""A child process that is started again when it dies, and that ends with its parent.

Its standard input is a pipe that only the parent holds: at its end the child knows that the parent
is gone, however it died. Children get their own session, so that Ctrl-C in a terminal reaches only
the parent, which then stops them in order.
"""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Sequence

from ledger.clock import Clock

log = logging.getLogger("tollbook.supervisor")

RESTART_SECONDS_MIN, RESTART_SECONDS_MAX = 0.2, 10.0
"""Back-off of a child that dies again and again: soon at first, and never a busy loop."""

STEADY_SECONDS = 30.0
"""A child that lived this long has started well; its next death is met with the short back-off."""


class Child:
    """One supervised process. `restarts` counts how often it had to be started again."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        clock: Clock,
        *,
        first_line: bytes = b"",
        pass_fds: Sequence[int] = (),
    ) -> None:
        self.name = name
        self.restarts = 0
        self._argv = argv
        self._clock = clock
        self._first_line = first_line
        self._pass_fds = tuple(pass_fds)
        self._process: asyncio.subprocess.Process | None = None
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        """True while the process runs."""
        return self._process is not None and self._process.returncode is None

    def start(self) -> None:
        """Begin to keep it alive, in the background."""
        self._task = asyncio.create_task(self._keep())

    async def stop(self, seconds: float) -> None:
        """SIGTERM, then SIGKILL after `seconds`. Returns when it is gone."""
        self._stop.set()
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(seconds):
                    await process.wait()
            except TimeoutError:
                log.error("%s did not stop within %.0f s and was killed", self.name, seconds)
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
        if self._task is not None:
            await self._task

    async def _keep(self) -> None:
        pause = RESTART_SECONDS_MIN
        while not self._stop.is_set():
            began = self._clock.monotonic()
            try:
                ended = _ending(await self._run())
            except OSError as wrong:
                ended = f"it could not be started: {wrong}"
            if self._stop.is_set():
                return
            if self._clock.monotonic() - began > STEADY_SECONDS:
                pause = RESTART_SECONDS_MIN
            self.restarts += 1
            log.error("%s ended (%s); it is started again", self.name, ended)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stop.wait()
            pause = min(pause * 2, RESTART_SECONDS_MAX)

    async def _run(self) -> int:
        process = self._process = await asyncio.create_subprocess_exec(
            *self._argv,
            stdin=asyncio.subprocess.PIPE,
            pass_fds=self._pass_fds,
            start_new_session=True,
        )
        if self._stop.is_set():
            process.terminate()
        if self._first_line:
            assert process.stdin is not None, "it was made with a pipe"
            process.stdin.write(self._first_line)
        return await process.wait()


def _ending(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
