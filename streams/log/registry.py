"""The registry log: keys, prices and backends in one order, in a file that all commands append to.

Whoever appends holds the lock, so that of two commands exactly one is made from the newest state.
What the fold refuses is never written. Readers take no lock: they see whole frames or nothing.
Unlike a spool this log has many writers, each its own source, and it is never deleted.
"""

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ledger.clock import Clock
from ledger.errors import MalformedEvent, RegistryRefused
from ledger.events import Draft, Event, payload_of
from ledger.folds.book import Book, BookFold, Refused, fold_book
from streams.codec import decode, encode
from streams.errors import LogCorrupt, LogError
from streams.log.lock import FileLock
from streams.log.reader import Chunk, decoded
from streams.log.segment import frame, next_frame, scan
from streams.log.sync import sync_directory

LOG, LOCK = "log.seg", "lock"

LOCK_SECONDS_MAX: Final = 10.0
"""How long a command waits for others. Each holds the lock for milliseconds; ten seconds mean that
one of them hangs, and its person should hear of it."""
_LOCK_POLL_SECONDS: Final = 0.01


def advance(fold: BookFold, event: Event) -> bool:
    """Take one event of the registry log into `fold`; false for one that has no effect.

    Raises `UnknownEvent` for an event of a newer version: a book that leaves it out could open a
    door that was closed.
    """
    try:
        payload = payload_of(event)
    except MalformedEvent:
        # Poison: the runner writes it down, and every reader passes it over in the same way.
        return False
    return fold.take(event, payload) is None


def read_registry(path: Path, offset: int) -> Chunk:
    """All whole frames of the registry log at `path` from `offset` on; a missing file is empty.

    Raises `LogError` if the disk cannot be read.
    """
    for last_try in (False, True):
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if offset > size:
                    return Chunk(next_offset=offset, behind=True)
                file.seek(offset)
                data = file.read()
        except FileNotFoundError:
            return Chunk(next_offset=offset, behind=offset > 0)
        except OSError as wrong:
            raise LogError(f"{path} cannot be read: {wrong.strerror}") from wrong
        frames, end = scan(data)
        found = next_frame(data, end + 1)
        if found is None or last_try:
            break
        # Perhaps a torn tail was cut and written over between two pages of this read: read again.
    events, poison = decoded(frames, offset)
    broken = None
    if found is not None:
        broken = LogCorrupt(
            f"{path}: broken bytes at {offset + end}, {found - end} bytes before whole records; "
            "the registry is read no further. Put back a copy of this file that is whole"
        )
    return Chunk(
        events=events,
        poison=poison,
        next_offset=offset + end,
        waiting=len(data) - end,
        broken=broken,
    )


class RegistryLog:
    """Appends to the registry in `directory` as `source`. One short-lived object per command."""

    def __init__(self, directory: Path, source: str, *, clock: Clock) -> None:
        self.directory = directory
        self.source = source
        self._clock = clock
        self._last: dict[str, int] = {}

    def append(self, make: Callable[[Book], Draft]) -> Book:
        """Append what `make` makes of the newest book; returns the book with it.

        `make` is called once, under the lock, and may raise `RegistryRefused` itself. Blocks until
        the change is on the disk. Raises `RegistryRefused` if the fold does not take the event,
        `LogCorrupt` or `UnknownEvent` if the log cannot be read to its end, `LogError` if another
        command holds the lock for too long or the disk refuses; in all of them nothing is written.
        """
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            lock = self._take_lock()
            try:
                return self._append(make)
            finally:
                lock.release()
        except OSError as wrong:
            raise LogError(
                f"the registry {self.directory} could not be written: {wrong.strerror}; "
                "nothing was changed"
            ) from wrong

    def _append(self, make: Callable[[Book], Draft]) -> Book:
        path = self.directory / LOG
        chunk = read_registry(path, 0)
        if chunk.broken is not None:
            raise chunk.broken
        fold = BookFold(Book())
        for event in chunk.events:
            advance(fold, event)
        book = fold.book()
        draft = make(book)
        topic = draft.payload.TOPIC
        sequence = self._last.get(topic, 0) + 1
        record = encode(draft, self.source, sequence, self._clock.now())
        event = decode(record)
        folded = fold_book(book, event, payload_of(event))
        if isinstance(folded, Refused):
            raise RegistryRefused(folded.reason)
        try:
            data = frame([record])
        except ValueError as wrong:
            raise RegistryRefused(f"this change is too large to be recorded: {wrong}") from wrong
        self._write(path, data, chunk.next_offset)
        self._last[topic] = sequence
        return folded

    def _write(self, path: Path, data: bytes, end: int) -> None:
        """Put `data` at `end`, on the disk, or leave the log ending there."""
        new = not path.exists()
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            self._cut(path, fd, end)
            try:
                count = os.write(fd, data)
                if count < len(data):
                    raise OSError(errno.ENOSPC, f"the disk took {count} of {len(data)} bytes")
                os.fsync(fd)
            except OSError:
                os.ftruncate(fd, end)
                raise
        finally:
            os.close(fd)
        if new:
            sync_directory(self.directory)
            sync_directory(self.directory.parent)

    def _cut(self, path: Path, fd: int, end: int) -> None:
        """Put aside what stands behind the last whole frame: nobody has read it as a record.

        Most likely a killed command left it in its write. But a last record whose bits rotted
        looks the same, so the bytes are kept in a file beside the log.
        """
        size = os.fstat(fd).st_size
        if size > end:
            with path.open("rb") as file:
                file.seek(end)
                path.with_name(f"{path.name}.torn-{end}").write_bytes(file.read())
            os.ftruncate(fd, end)

    def _take_lock(self) -> FileLock:
        start = self._clock.monotonic()
        while (lock := FileLock.take(self.directory / LOCK)) is None:
            if self._clock.monotonic() - start > LOCK_SECONDS_MAX:
                raise LogError(
                    f"another command has held {self.directory / LOCK} for {LOCK_SECONDS_MAX:.0f} "
                    "seconds; nothing was changed, look for one that hangs and try again"
                )
            time.sleep(_LOCK_POLL_SECONDS)
        return lock


class RegistryTail:
    """Follows the registry log at `path`. Not safe from several threads.

    `book` is the newest state that could be read; it stays when `poll` raises.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._inode = -1
        self._offset = 0
        self.book = Book()

    def poll(self) -> Book | None:
        """The new book if the log has changed since the last call, else null. One `stat` if not.

        Raises `LogCorrupt`, `UnknownEvent` or `LogError` each time it is called while the log
        cannot be read to its end; what came before the trouble is in `book`.
        """
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            return None
        except OSError as wrong:
            raise LogError(f"{self._path} cannot be read: {wrong.strerror}") from wrong
        seen = (status.st_ino, status.st_size, status.st_mtime_ns)
        if seen == self._seen:
            return None
        # Another file, or one put back to an older copy: what we know may not be in it.
        anew = status.st_ino != self._inode or status.st_size < self._offset
        start = 0 if anew else self._offset
        chunk = read_registry(self._path, start)
        self._inode, self._offset = status.st_ino, start
        before = self.book
        fold = BookFold(Book() if anew else before)
        try:
            for event in chunk.events:
                # If this raises, the next poll folds these again, and refuses what it has.
                anew |= advance(fold, event)
        finally:
            if anew:
                self.book = fold.book()
        self._offset = chunk.next_offset
        if chunk.broken is not None:
            raise chunk.broken
        self._seen = seen
        return self.book if self.book is not before else None
