"""The embedded runner: one process per data directory that takes all logs into the ledger.

It reads the spools and the registry from where the ledger stands, adopts the spools of processes
that died, and deletes what is old. It keeps no state of its own: all it knows is in the ledger and
on disk, so it may be killed at any moment and started again.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from ledger.clock import Clock, SystemClock
from ledger.errors import LedgerError, PositionMoved
from ledger.sql.chain import STEP, advance
from ledger.sql.claim import claim
from ledger.sql.reconcile import latest
from ledger.sql.session import Ledger, open_ledger
from ledger.sql.sources import open_requests
from ledger.sql.writer import LedgerWriter
from streams.errors import RunnerError, StreamsError
from streams.local.adopter import Adopter
from streams.local.follower import Follower, RegistryFollower
from streams.local.layout import Layout
from streams.local.process import (
    IDLE_PAUSE_SECONDS,
    TROUBLE_PAUSE_SECONDS_MAX,
    Due,
    Say,
    Stop,
    alone,
    speaker,
)
from streams.local.reckoned import write_reckoned
from streams.local.retention import KEEP_BYTES
from streams.local.routed import Routed
from streams.local.spools import ADOPT_SECONDS, LOOK_SECONDS, RETENTION_SECONDS, Spools
from streams.log.lock import FileLock
from streams.log.spool import Durability

ROUTED_SECONDS: Final = 0.5
"""How often views of backends go into their file: gateways say them every two seconds."""

CHAIN_SECONDS: Final = 2.0
"""How often a chain that got far goes on; each time takes a tenth of a second at most."""

COMPARE_SECONDS: Final = 120.0
COMPARE_SHARE: Final = 0.02
"""Ledger and engines are compared so often, and never for more than this share of the time: while
they are, the spools wait."""

Progress = Callable[[int, int], None]
"""Told while catching up: bytes done, and bytes in all."""

BUSY_PAUSE_SECONDS: Final = 0.2
"""Between rounds: short after one that moved something, longer the longer nothing does."""


class Runner:
    """The work itself, one round at a time. The caller holds the runner's lock."""

    def __init__(
        self,
        layout: Layout,
        ledger: Ledger,
        clock: Clock,
        *,
        say: Say,
        name: str,
        keep_bytes: int = KEEP_BYTES,
        durability: Durability = "process",
    ) -> None:
        self._layout = layout
        self._ledger = ledger
        self._clock = clock
        self._say = say
        self._writer = LedgerWriter(ledger, clock)
        self._registry = self._registry_follower()
        self._routed = Routed(layout, say)
        self._spools = Spools(
            layout,
            clock,
            say,
            self._follow,
            lambda follower: follower.position,
            owner=f"/runner/{name}",
            taken="taken",
            keep_bytes=keep_bytes,
            durability=durability,
        )
        self._followers = self._spools.followers
        self._adopter = Adopter(ledger, self._spools.own_spool, say)
        self._due = Due(clock)

    def step(self) -> bool:
        """One round over all logs. True if anything moved. Raises what ledger and disk raise."""
        if self._due.now("look", LOOK_SECONDS):
            self._spools.look()
        moved = self._registry.pump()
        for follower in list(self._followers.values()):
            moved |= self._pump(follower)
        if self._due.now("adopt", ADOPT_SECONDS):
            moved |= self._adopt()
        if self._due.now("retain", RETENTION_SECONDS):
            self._spools.retain()
        if self._due.now("compare", COMPARE_SECONDS):
            self._compare()
        if self._due.now("chain", CHAIN_SECONDS):
            advance(self._ledger, STEP)
        if self._due.now("routed", ROUTED_SECONDS):
            self._routed.write(self._clock.now())
        return moved

    def catch_up(self, progress: Progress | None = None) -> None:
        """Take in everything that is on disk now, and adopt every spool whose writer is dead.

        What living writers add meanwhile is left for later, so that this comes to an end.
        """
        self._spools.look()
        self._registry.pump()
        followers = list(self._followers.values())
        ends = [follower.end() for follower in followers]
        starts = [min(f.position, end) for f, end in zip(followers, ends, strict=True)]
        done, total = 0, sum(ends) - sum(starts)
        for follower, start, end in zip(followers, starts, ends, strict=True):
            while follower.position < end and self._pump(follower):
                if progress is not None:
                    progress(done + follower.position - start, total)
            done += end - start
        if self._adopt() and self._spools.own is not None:
            self._drain(self._followers[self._spools.own.directory.name])
        self._routed.write(self._clock.now())
        self._spools.retain()

    def live(self) -> list[str]:
        """The names of the spools, other than our own, whose writers live."""
        return self._spools.live()

    def close(self) -> None:
        """The orderly end: close our own source, with its last word in the ledger."""
        try:
            own = self._spools.say_last()
            if own is not None:
                self._drain(own)
                self._spools.settle_own(own)
        finally:
            self._spools.close()
        self._routed.write(self._clock.now())

    def forget(self) -> None:
        """Start over from what the ledger says: another writer has moved a position."""
        self._spools.forget()
        self._registry = self._registry_follower()
        self._spools.look()

    def _registry_follower(self) -> RegistryFollower:
        return RegistryFollower(self._layout.registry_log, self._ledger, self._writer, self._say)

    def _follow(self, directory: Path) -> Follower:
        return Follower(directory, self._writer, self._say, self._open_in_ledger, self._routed.take)

    def _open_in_ledger(self, source: str) -> list[str]:
        with self._ledger.read() as read:
            return [row.request_id for row in open_requests(read, source)]

    def _pump(self, follower: Follower) -> bool:
        """One chunk of one spool. True if anything moved."""
        try:
            moved = follower.pump()
            follower.failing = False
            if moved:
                return True
        except OSError as wrong:
            self._spools.failed(follower, wrong)
            return False
        self._spools.settle_if_adopted(follower)
        return False

    def _drain(self, follower: Follower) -> None:
        while self._pump(follower):
            pass

    def _adopt(self) -> bool:
        """Adopt every spool whose lock is free. True if there was any.

        All of them are read to their ends before the first is closed: one of them may be that of
        a runner that had begun to close another.
        """
        with self._spools.dead(self._followers.values()) as dead:
            for follower in dead:
                self._drain(follower)
            whole = [one for one in dead if not one.halted and not one.failing]
            return self._spools.adopt(whole, self._adopter.adopt)

    def _compare(self) -> None:
        """Hold the last hours of the ledger against the engines' counters, for the metrics."""
        began = self._clock.monotonic()
        with self._ledger.read() as read:
            found = latest(read, self._clock.now())
        if found is not None:
            write_reckoned(self._layout.root, found)
        self._due.put_off("compare", (self._clock.monotonic() - began) / COMPARE_SHARE)


say = speaker("runner")


def run_once(
    data: Path,
    *,
    keep_bytes: int = KEEP_BYTES,
    durability: Durability = "process",
    name: str = "cli",
    progress: Progress | None = None,
    ledger: Path | str | None = None,
) -> bool:
    """Bring the ledger of `data` up to date once, adoption included. Blocks until it is. `ledger`
    is a path or URL for `open_ledger`; null is the file in `data`.

    False if a runner is at work there: then it is up to date within moments anyway. Raises
    `RunnerError` if there is no data directory or its disk fails, and what the ledger raises.
    """
    layout = Layout(data)
    if not data.is_dir():
        raise RunnerError(f"there is no data directory {data}; `tollbook serve` makes one")
    try:
        lock = FileLock.take(layout.runner_lock)
        if lock is None:
            return False
        try:
            with _open(layout, ledger, durability) as opened:
                runner = Runner(
                    layout,
                    opened,
                    SystemClock(),
                    say=say,
                    name=name,
                    keep_bytes=keep_bytes,
                    durability=durability,
                )
                try:
                    runner.catch_up(progress)
                finally:
                    runner.close()
        finally:
            lock.release()
    except OSError as wrong:
        raise RunnerError(
            f"the disk of {data} failed: {wrong}; the ledger is not up to date"
        ) from wrong
    return True


def run_forever(
    data: Path,
    *,
    keep_bytes: int = KEEP_BYTES,
    durability: Durability = "process",
    stop_on_stdin_eof: bool = False,
    name: str = "runner",
    ledger: Path | str | None = None,
) -> int:
    """Be the runner of `data` until SIGTERM, Ctrl-C, or the end of standard input if so asked.
    `ledger` is as for `run_once`.

    Waits while another runner is at work. Returns the exit code: 0 for an orderly end, 1 if the
    last round failed and something is left for the next runner.
    """
    layout = Layout(data)
    with alone(layout, say, watch_stdin=stop_on_stdin_eof) as stop:
        if stop is None:
            return 0
        opened = _open_when_possible(layout, ledger, durability, stop)
        if opened is None:
            return 1
        with opened:
            runner = Runner(
                layout,
                opened,
                SystemClock(),
                say=say,
                name=name,
                keep_bytes=keep_bytes,
                durability=durability,
            )
            return _loop(runner, stop)


def _open(layout: Layout, target: Path | str | None, durability: Durability) -> Ledger:
    """The ledger of a data directory, wherever it is; one at a URL belongs to one directory.

    The caller holds the runner's lock.
    """
    ledger = open_ledger(target or layout.ledger, durability=durability)
    if isinstance(target, str):
        try:
            claim(ledger, layout.identity())
        except BaseException:
            ledger.close()
            raise
    return ledger


def _open_when_possible(
    layout: Layout, target: Path | str | None, durability: Durability, stop: Stop
) -> Ledger | None:
    pause = IDLE_PAUSE_SECONDS
    while True:
        try:
            return _open(layout, target, durability)
        except LedgerError as wrong:
            say(f"{wrong}; trying again, the spools keep everything meanwhile")
        if stop.asked or stop.parent_gone:
            return None
        stop.wait(pause)
        pause = min(2 * pause, TROUBLE_PAUSE_SECONDS_MAX)


def _loop(runner: Runner, stop: Stop) -> int:
    pause = trouble_pause = BUSY_PAUSE_SECONDS
    while not stop.asked:
        try:
            moved = runner.step()
            if stop.parent_gone and not runner.live():
                break
            pause = BUSY_PAUSE_SECONDS if moved else min(pause * 1.2, IDLE_PAUSE_SECONDS)
            trouble_pause = BUSY_PAUSE_SECONDS
        except PositionMoved as moved_by_other:
            say(f"{moved_by_other}; reading the positions again")
            runner.forget()
        except (LedgerError, StreamsError, OSError) as wrong:
            if stop.parent_gone:
                # An orphan that cannot go on must not keep the next gateway's runner from its lock.
                break
            say(f"{wrong}; trying again, the spools keep everything meanwhile")
            trouble_pause = pause = min(2 * trouble_pause, TROUBLE_PAUSE_SECONDS_MAX)
        stop.wait(pause)
    try:
        runner.catch_up()
        runner.close()
    except (LedgerError, StreamsError, OSError) as wrong:
        say(f"{wrong}; what is left is taken in by the next runner")
        return 1
    return 0
