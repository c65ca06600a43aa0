"""Who is alive: a lock that the kernel gives back when its process dies, however it dies.

`flock` belongs to the open file, which a forked child shares: a child that lived on would keep its
dead parent's spool from being adopted. So the descriptor is closed on exec (`os.open` does that)
and, for a plain fork, by a hook in the child.
"""

import fcntl
import os
import weakref
from pathlib import Path
from typing import Self

_held: "weakref.WeakSet[FileLock]" = weakref.WeakSet()


class FileLock:
    """An exclusive lock on `path`, held until `release` or the end of this process."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd
        _held.add(self)

    @classmethod
    def take(cls, path: Path) -> Self | None:
        """The lock on `path`, or null if anybody (this process too) holds it. Does not block.

        The file is made if it is missing; it is never removed, for a second file of that name could
        be locked beside the first. Raises `OSError` if it cannot be opened.
        """
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        except OSError:
            os.close(fd)
            raise
        return cls(path, fd)

    def release(self) -> None:
        """Give the lock back. Safe twice."""
        if self._fd >= 0:
            # Unlocked by name, so that no copy of the descriptor can keep it.
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            self._drop()

    def _drop(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def held(path: Path) -> bool:
    """True if a living process holds the lock on `path`. Only looks: nothing is made or kept.

    The look itself takes a shared lock for an instant, in which another's `take` may fail; takers
    try again. A missing file is held by nobody.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _drop_in_child() -> None:
    for lock in list(_held):
        # Closing without unlocking: the lock stays with the parent.
        lock._drop()


os.register_at_fork(after_in_child=_drop_in_child)
