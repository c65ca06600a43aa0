"""Where a scenario takes place, how often, and the check that ends every one of them.

A scenario is a function of a `Place` and `Rounds`. The suite calls it with a few rounds, the soak
(`python -m tests.soak`) with many: it is the same function.
"""

import contextlib
import itertools
import random
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tests.kill.books import Books, Check, Measured, check_bill
from tests.kill.client import Seen
from tests.kill.world import Fleet, World


class Rounds:
    """Numbers of rounds to play: `count` of them, or as many as begin within `minutes`."""

    def __init__(self, count: int | None = None, minutes: float | None = None) -> None:
        self._count = count
        self._end = None if minutes is None else time.monotonic() + 60 * minutes
        self.played = 0

    def __iter__(self) -> Iterator[int]:
        while (self._count is None or self.played < self._count) and (
            self._end is None or time.monotonic() < self._end
        ):
            yield self.played
            self.played += 1

    def runs(self, length: int) -> Iterator[Iterator[int]]:
        """The rounds in runs of `length`; each run must be played to its end before the next."""
        rounds = iter(self)
        for first in rounds:
            yield itertools.chain([first], itertools.islice(rounds, length - 1))


class Place:
    """A directory for worlds, the fleet behind them, and the seed of all dice."""

    def __init__(
        self, fleet: Fleet, root: Path, seed: int, say: Callable[[str], None] = print
    ) -> None:
        self.fleet, self.seed, self.say = fleet, seed, say
        self._root = root
        self._worlds = 0

    def dice(self, name: str) -> random.Random:
        """Dice of their own for each `name`, always the same for the same seed."""
        return random.Random(f"{self.seed}/{name}")

    def world(self, toml: str = "", root: Path | None = None) -> World:
        """A new data directory; `toml` is the gateway's configuration file."""
        return World(self.fleet, root or self.folder(), toml)

    @contextlib.contextmanager
    def small_disk(self, megabytes: int) -> Iterator[Path | None]:
        """A directory on a file system of this size, or null where mounting is not permitted."""
        path = self.folder()
        path.mkdir()
        size = f"size={megabytes}m"
        mount = ("mount", "-t", "tmpfs", "-o", size, "tollbook-test", str(path))
        try:
            mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
        except FileNotFoundError:
            mounted = False
        try:
            yield path if mounted else None
        finally:
            if mounted:
                subprocess.run(("umount", "-l", str(path)), check=True)

    def folder(self) -> Path:
        """A path that nothing is at yet."""
        self._worlds += 1
        return self._root / f"world-{self._worlds}"


def verify(
    world: World, crowd: Iterable[Seen], *, lost: Iterable[str] = (), bill: bool = False
) -> Measured:
    """Hold the books of a world at rest against what was seen; the audit must be clean.

    Whatever a killed process left behind is taken in by the audit itself, as by every command.
    """
    code, findings, errors = world.audit()
    assert (code, findings) == (0, []), f"the audit found {findings}: {errors}"
    books = Books(world.data)
    measured = Check(world, books).all(crowd, lost=lost)
    if bill:
        check_bill(world, books)
    return measured


Scenario = Callable[[Place, Rounds], Measured]
"""Plays the rounds at the place and returns what it measured. Fails where a promise is broken."""
