"""What every process that empties the spools of a data directory does with them, whichever it is.

The embedded runner and the relay to Kafka look for new spools, close those of processes that died
by events in a spool of their own, and delete what is old. They differ in where events go.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

from ledger.clock import Clock
from ledger.events import Draft
from ledger.identity import mint_id
from ledger.words import counted
from streams.adoption import SpoolLife, closed
from streams.local.layout import Layout
from streams.local.process import Say
from streams.local.retention import KEEP_BYTES, carry_out, clear_leftovers, look, plan
from streams.log.lock import FileLock, held
from streams.log.spool import ADOPTED, CONSUMED, LOCK, RESERVE, Durability, SpoolWriter

OWN_RESERVE_BYTES: Final = 1 << 16
"""The own spool only ever gets closings; all of them together are small."""

LOOK_SECONDS: Final = 0.25
"""How often it is looked for new spools: a new key works within a second, and so does its first
use."""
ADOPT_SECONDS: Final = 0.5
RETENTION_SECONDS: Final = 10.0

DRAFTS_IN_ONE_APPEND: Final = 200
"""About 150 kB: far below the largest frame, even if every model name is a long one."""


class ConsumedMark:
    """Tells the writer of a spool how far whoever follows it is, so that it knows its room."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / CONSUMED
        self._fd = -1
        self._told = -1

    def tell(self, position: int) -> None:
        """Everything below `position` is where it goes, for good. Raises `OSError`."""
        if self._told == position:
            return
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        os.pwrite(self._fd, position.to_bytes(8, "big"), 0)
        self._told = position

    def close(self) -> None:
        """Let go of the open file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Followed(Protocol):
    """A spool that is followed to its end. `failing`: the disk refused the last time."""

    directory: Path
    name: str
    life: SpoolLife
    position: int
    failing: bool

    @property
    def halted(self) -> bool:
        """True if it cannot be read to its end."""
        ...

    def once(self, words: str) -> object:
        """Say `words` unless that was done before."""
        ...

    def close(self) -> None:
        """Let go of the open files."""
        ...


One = TypeVar("One", bound=Followed)


class Spools(Generic[One]):
    """The spools of one data directory that are followed, by name, and the own one of whoever does.

    `follow` makes the follower of a spool, `consumed` says up to which offset it never reads again,
    and `taken` is the word for what it does with events. `owner` is the first part of the own
    spool's source.
    """

    def __init__(
        self,
        layout: Layout,
        clock: Clock,
        say: Say,
        follow: Callable[[Path], One],
        consumed: Callable[[One], int],
        *,
        owner: str,
        taken: str,
        keep_bytes: int = KEEP_BYTES,
        durability: Durability = "process",
    ) -> None:
        self._layout = layout
        self._clock = clock
        self._say = say
        self._follow = follow
        self._consumed = consumed
        self._owner = owner
        self._taken = taken
        self._keep_bytes = keep_bytes
        self._durability = durability
        self._settled: set[str] = set()
        self._unreadable: set[str] = set()
        self.followers: dict[str, One] = {}
        self.own: SpoolWriter | None = None
        """The spool of whoever follows the others; null until it has something to say."""

    def look(self) -> None:
        """Begin to follow spools that are new. One that cannot be read stops no other."""
        for directory in self._layout.spool_directories():
            name = directory.name
            if name in self.followers or name in self._settled:
                continue
            try:
                self.followers[name] = self._follow(directory)
            except OSError as wrong:
                if name not in self._unreadable:
                    self._say(f"{directory} cannot be read: {wrong}; the other spools are")
                self._unreadable.add(name)

    def forget(self) -> None:
        """Let go of every follower, so that `look` makes them anew."""
        for one in self.followers.values():
            one.close()
        self.followers.clear()

    def live(self) -> list[str]:
        """The names of the spools, other than our own, whose writers live."""
        own = None if self.own is None else self.own.directory
        return [
            name
            for name, one in self.followers.items()
            if one.directory != own and held(one.directory / LOCK)
        ]

    def failed(self, one: One, wrong: OSError) -> None:
        """The disk fails under one spool, which must not stop the others; or the spool is gone."""
        one.failing = True
        if one.directory.exists():
            one.once(f"{one.name} cannot be read or marked: {wrong}")
        else:
            self._drop(one)
            self._say(f"{one.name} was removed; what was not {self._taken} yet is lost")

    def settle_if_adopted(self, one: One) -> None:
        """Once `one` gives nothing more: let go of it for good if it was adopted."""
        if not one.halted and (one.directory / ADOPTED).exists():
            self._settle(one)

    @contextmanager
    def dead(self, among: Iterable[One]) -> Iterator[list[One]]:
        """Those of `among` whose writers are dead; each is locked for the length of the block."""
        found: list[One] = []
        locks: list[FileLock] = []
        try:
            for one in among:
                lock = FileLock.take(one.directory / LOCK) if one.directory.exists() else None
                if lock is not None:
                    found.append(one)
                    locks.append(lock)
            yield found
        finally:
            for lock in locks:
                lock.release()

    def adopt(self, dead: Sequence[One], close: Callable[[One], None]) -> bool:
        """`close` each of `dead`, which are followed to their ends. True if there was any."""
        for one in dead:
            if one.directory.name in self.followers:
                close(one)
                self._settle(one)
        return bool(dead)

    def retain(self) -> None:
        """Delete what is old, and what was cut short in its deletion or in its making."""
        clear_leftovers(self._layout.leftovers(), self._clock.now().timestamp())
        spools = []
        for directory in self._layout.spool_directories():
            one = self.followers.get(directory.name)
            if directory.name in self._settled:
                spools.append(look(directory, consumed=1 << 63, needed_from=None, settled=True))
            elif one is not None:
                needed, consumed = one.life.oldest_open(), self._consumed(one)
                spools.append(look(directory, consumed=consumed, needed_from=needed, settled=False))
        carry_out(plan(spools, self._keep_bytes))

    def own_spool(self) -> SpoolWriter:
        """The own spool, made and followed when it is first asked for."""
        if self.own is None:
            incarnation = mint_id()
            self.own = SpoolWriter.create(
                self._layout.spool(incarnation),
                f"{self._owner}/{incarnation}",
                clock=self._clock,
                reserve_bytes=OWN_RESERVE_BYTES,
                durability=self._durability,
            )
            self.look()
        return self.own

    def say_last(self) -> One | None:
        """Close our own source. Returns the follower of our own spool, which has that word still
        to take; null if there is no such spool."""
        own = self.own
        if own is None:
            return None
        last, heads, now = own.last(), own.heads(), self._clock.now()
        own.append(closed(own.source, last, now, "itself", heads=heads))
        own.sync()
        return self.followers[own.directory.name]

    def settle_own(self, one: One) -> None:
        """After `say_last`: our own spool is adopted if `one` has all of it."""
        if self.own is not None and one.position == self.own.written_bytes():
            (self.own.directory / ADOPTED).touch()

    def close(self) -> None:
        """Let go of everything."""
        own, self.own = self.own, None
        if own is not None:
            own.close()
        for one in self.followers.values():
            one.close()

    def _settle(self, one: One) -> None:
        """Nothing more will come of this spool: it is adopted, and all of it is where it goes."""
        self._settled.add(one.directory.name)
        self._drop(one)

    def _drop(self, one: One) -> None:
        one.close()
        self.followers.pop(one.directory.name, None)


def testify(own: SpoolWriter, drafts: Sequence[Draft]) -> None:
    """Write what ends all that a dead spool left open. Raises `SpoolFailed`."""
    for start in range(0, len(drafts), DRAFTS_IN_ONE_APPEND):
        own.append(*drafts[start : start + DRAFTS_IN_ONE_APPEND])
    own.sync()


def died(source: str, requests: int) -> str:
    """That the process of `source` died, with `requests` open, in words. Pure."""
    if not requests:
        return f"{source} died; it left no request open"
    ended = counted(requests, "open request is", "open requests are")
    return (
        f"{source} died; its {ended} closed as abandoned, with the last running totals that it "
        "wrote"
    )


def mark_adopted(directory: Path) -> None:
    """Nobody need close this spool again; only after what closes it is on disk elsewhere."""
    (directory / ADOPTED).touch()
    (directory / RESERVE).unlink(missing_ok=True)
