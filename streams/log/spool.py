"""The spool: a process's own log on disk, the first place where anything is recorded.

One directory for each process start, held by a lock while its writer lives. Offsets are logical:
they run on over segment files, each named by the offset it starts at. Writing happens inline, one
`write` for each append, because that is cheaper than handing it to a thread; only `fsync` goes to
one. This module never reads records back (`reader` does) and never deletes any.
"""

import os
import shutil
import sys
from collections import deque
from pathlib import Path
from typing import Final, Literal, NoReturn, Self

from ledger.clock import Clock
from ledger.events import Draft, RequestAccepted
from streams.codec import encode
from streams.errors import LogError, SpoolFailed, SpoolFull
from streams.log.chains import Chains
from streams.log.lock import FileLock
from streams.log.segment import HEADER_BYTES, frame
from streams.log.sync import GroupSync, sync_directory

Durability = Literal["process", "power"]

LIMIT_BYTES: Final = 1 << 30
RESERVE_BYTES: Final = 4 << 20
SEGMENT_BYTES: Final = 8 << 20
"""Small enough that consumed segments go soon, large enough that turning costs nothing: at 20,000
events/s a segment fills in under a second, at 20 events/s in a quarter of an hour."""

CONSUMED_AGE_SECONDS_MAX: Final = 0.25
"""How old our reading of the consumed mark may be when the limit is near."""
RETRY_SECONDS: Final = 1.0
"""After the disk refused a write: how long new requests are refused before it is tried again."""

LINKED_AT_ONCE: Final = 64
"""Appends that `link` puts into the chains: a tenth of a millisecond."""
UNLINKED_MAX: Final = 16_384
"""Appends that may wait for it, some 10 MB, where nobody calls `link`."""

SOURCE, LOCK, RESERVE, CONSUMED, ADOPTED = "source", "lock", "reserve", "consumed", "adopted"
UNBORN_PREFIX: Final = ".new-"


def segment_name(start: int) -> str:
    """The file name of the segment whose first byte has logical offset `start`."""
    return f"{start:020d}.seg"


class SpoolWriter:
    """The only writer of one spool; implements `streams.log.port.Journal`.

    Not safe from several threads. `create` makes one; there is no way to open an old one for
    writing, since sequences are never continued.
    """

    def __init__(
        self,
        directory: Path,
        source: str,
        lock: FileLock,
        clock: Clock,
        limit_bytes: int,
        reserve_bytes: int,
        segment_bytes: int,
        durability: Durability,
    ) -> None:
        self.directory = directory
        self.source = source
        self._lock = lock
        self._clock = clock
        self._limit_bytes = limit_bytes
        self._reserve_bytes = reserve_bytes
        self._full_at = limit_bytes - reserve_bytes
        self._segment_bytes = segment_bytes
        self._start = self._end = self._consumed = 0
        self._last: dict[str, int] = {}
        self._chains = Chains()
        self._unlinked: deque[bytes] = deque()
        self._failed: str | None = None
        self._has_reserve = True
        self._refuse_until = self._looked_at = -1.0
        self._fd = _open_segment(directory, 0)
        self._consumed_fd = os.open(directory / CONSUMED, os.O_RDONLY | os.O_CLOEXEC)
        self._sync = (
            GroupSync(directory, self._fd, lambda: self._end) if durability == "power" else None
        )

    @classmethod
    def create(
        cls,
        directory: Path,
        source: str,
        *,
        clock: Clock,
        limit_bytes: int = LIMIT_BYTES,
        reserve_bytes: int = RESERVE_BYTES,
        segment_bytes: int = SEGMENT_BYTES,
        durability: Durability = "process",
    ) -> Self:
        """A new spool at `directory` for `source`, which must be new with every process start.

        It is made under a hidden name and locked before it gets its own, so nobody can see it
        unlocked and take its writer for dead. Raises `SpoolFailed` if the disk refuses.
        """
        if not 0 < reserve_bytes < limit_bytes:
            raise ValueError(f"a spool limit of {limit_bytes} with a reserve of {reserve_bytes}")
        unborn = directory.parent / (UNBORN_PREFIX + directory.name)
        lock = None
        try:
            unborn.mkdir(parents=True)
            lock = FileLock.take(unborn / LOCK)
            assert lock is not None, "a directory that was made just now is locked by nobody"
            (unborn / SOURCE).write_text(source + "\n", encoding="utf-8")
            (unborn / CONSUMED).write_bytes(bytes(8))
            _preallocate(unborn / RESERVE, reserve_bytes)
            writer = cls(
                unborn, source, lock, clock, limit_bytes, reserve_bytes, segment_bytes, durability
            )
            if durability == "power":
                sync_directory(unborn)
            unborn.rename(directory)
            if durability == "power":
                sync_directory(directory.parent)
        except OSError as wrong:
            if lock is not None:
                lock.release()
            shutil.rmtree(unborn, ignore_errors=True)
            raise SpoolFailed(
                f"cannot start a spool at {directory}: {wrong.strerror}; it needs "
                f"{reserve_bytes} bytes and the right to write there"
            ) from wrong
        writer.directory = directory
        if writer._sync is not None:
            writer._sync.directory = directory
        return writer

    def append(self, *drafts: Draft) -> None:
        """Take all `drafts` in one write, or none. See `Journal.append`.

        When the disk refuses, a draft that opens a request is refused as `SpoolFull` and the
        reserve stays; any other may use up the reserve before it fails as `SpoolFailed`.
        """
        if not drafts:
            return
        if self._failed is not None:
            raise SpoolFailed(self._failed)
        opens, recorded, source = False, self._clock.now(), self.source
        last = self._last.copy()
        records = []
        for draft in drafts:
            payload = draft.payload
            opens = opens or type(payload) is RequestAccepted
            last[payload.TOPIC] = sequence = last.get(payload.TOPIC, 0) + 1
            records.append(encode(draft, source, sequence, recorded))
        if opens and not self.room():
            self._refuse()
        data = frame(records)
        if self._end - self._start >= self._segment_bytes:
            self._turn()
        self._write(data, opens)
        self._end += len(data)
        self._last = last
        self._unlinked.append(data)
        if len(self._unlinked) >= UNLINKED_MAX:
            self.heads()

    async def durable(self) -> None:
        """Wait until all appended bytes survive what the durability names. See `Journal`."""
        if self._sync is None:
            return
        try:
            await self._sync.wait(self._end)
        except SpoolFailed as failed:
            self._failed = self._failed or str(failed)
            raise

    def sync(self) -> None:
        """What `durable` does, blocking: for writers without an event loop."""
        if self._sync is None:
            return
        try:
            self._sync.sync_now()
        except SpoolFailed as failed:
            self._failed = self._failed or str(failed)
            raise

    def room(self) -> bool:
        """True while a new request may be accepted: below the limit, and the reserve is whole."""
        if self._failed is not None:
            return False
        if self._refuse_until >= 0 and not self._try_again():
            return False
        if self._end - self._consumed <= self._full_at:
            return True
        return self.unconsumed_bytes() <= self._full_at

    def last(self) -> dict[str, int]:
        """The last sequence of each topic written so far."""
        return dict(self._last)

    def heads(self) -> dict[str, str]:
        """The head of each topic's chain behind `last`. See `Journal.heads`."""
        while self.link():
            continue
        return self._chains.heads()

    def link(self) -> bool:
        """Put some of what was appended into the chains; true while there is more to do.

        `append` leaves that to idle moments, because a request waits for it.
        """
        for _ in range(min(LINKED_AT_ONCE, len(self._unlinked))):
            for record in self._unlinked.popleft()[HEADER_BYTES:].split(b"\n"):
                self._chains.take(record)
        return bool(self._unlinked)

    def written_bytes(self) -> int:
        """The logical end: bytes written since the start of this spool."""
        return self._end

    def unconsumed_bytes(self) -> int:
        """Bytes that neither ledger nor Kafka has taken, at most a quarter of a second ago."""
        now = self._clock.monotonic()
        if now - self._looked_at >= CONSUMED_AGE_SECONDS_MAX or self._looked_at < 0:
            self._looked_at = now
            mark = consumed_mark(os.pread(self._consumed_fd, 8, 0))
            # A mark that lies (a directory put back under our feet) is not believed: it would make
            # the limit count wrong for good.
            if self._consumed < mark <= self._end:
                self._consumed = mark
        return self._end - self._consumed

    def close(self) -> None:
        """The orderly end: give back the reserve and the lock. Safe twice; then it takes no more.

        Raises `SpoolFailed` if durability is `power` and the last `fsync` fails.
        """
        if self._fd < 0:
            return
        self._failed = self._failed or f"the spool {self.directory} is closed"
        try:
            if self._sync is not None:
                self._sync.close()
            else:
                os.close(self._fd)
        except OSError as wrong:
            raise SpoolFailed(f"fsync in {self.directory} failed: {wrong.strerror}") from wrong
        finally:
            self._fd = -1
            os.close(self._consumed_fd)
            (self.directory / RESERVE).unlink(missing_ok=True)
            self._lock.release()

    def _write(self, data: bytes, opens: bool) -> None:
        refused = self._attempt(data)
        if refused is None:
            return
        if opens:
            # The reserve is for the ends of requests that are open, not for new ones.
            self._refuse_until = self._clock.monotonic() + RETRY_SECONDS
            raise SpoolFull(f"the disk of the spool takes no more ({refused}); free space there")
        if self._has_reserve:
            self._has_reserve = False
            self._refuse_until = self._clock.monotonic() + RETRY_SECONDS
            (self.directory / RESERVE).unlink(missing_ok=True)
            refused = self._attempt(data)
            if refused is None:
                return
        raise SpoolFailed(
            f"the disk of the spool takes no more ({refused}) and its reserve is used up; "
            f"free space in {self.directory}"
        )

    def _attempt(self, data: bytes) -> str | None:
        """Write `data` at the end, or leave the file as it was and say why not."""
        try:
            count = os.write(self._fd, data)
            if count == len(data):
                return None
            refused = f"only {count} of {len(data)} bytes"
        except OSError as wrong:
            refused = wrong.strerror or type(wrong).__name__
        try:
            os.ftruncate(self._fd, self._end - self._start)
        except OSError as wrong:
            # Whatever came next would stand behind half a frame and could not be read.
            self._failed = f"{self.directory} cannot be cut back after a failed write: {wrong}"
            raise SpoolFailed(self._failed) from wrong
        return refused

    def _turn(self) -> None:
        """Go on in a new segment. If none can be made, the old one just grows on."""
        try:
            fd = _open_segment(self.directory, self._end)
        except OSError:
            return
        if self._sync is not None:
            self._sync.turned(fd)
        else:
            os.close(self._fd)
        self._fd, self._start = fd, self._end

    def _try_again(self) -> bool:
        """After the disk refused: true once the pause is over and the reserve is whole again."""
        now = self._clock.monotonic()
        if now < self._refuse_until:
            return False
        if not self._has_reserve:
            try:
                _preallocate(self.directory / RESERVE, self._reserve_bytes)
            except OSError:
                (self.directory / RESERVE).unlink(missing_ok=True)
                self._refuse_until = now + RETRY_SECONDS
                return False
            self._has_reserve = True
        self._refuse_until = -1.0
        return True

    def _refuse(self) -> NoReturn:
        if self._refuse_until >= 0:
            raise SpoolFull("the disk of the spool is full; new requests wait until it has space")
        raise SpoolFull(
            f"ledger or Kafka is {self.unconsumed_bytes()} bytes behind, the limit of the spool is "
            f"{self._limit_bytes}; new requests wait until it has caught up"
        )


def consumed_mark(data: bytes) -> int:
    """The logical offset in a `consumed` file; 0 if there are not 8 bytes."""
    return int.from_bytes(data, "big") if len(data) == 8 else 0


def _open_segment(directory: Path, start: int) -> int:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    return os.open(directory / segment_name(start), flags, 0o666)


def _preallocate(path: Path, size: int) -> None:
    """A file of `size` bytes that really holds them. Raises `OSError` if the disk has no room."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        if sys.platform == "linux":
            os.posix_fallocate(fd, 0, size)
        else:
            block = bytes(1 << 16)
            for start in range(0, size, len(block)):
                os.pwrite(fd, block[: size - start], start)
    finally:
        os.close(fd)


def incarnation_of(source: str) -> str:
    """The last part of a source's name: the name of its spool directory.

    Raises `LogError` if it cannot be one.
    """
    incarnation = source.rpartition("/")[2]
    if not incarnation.isalnum():
        raise LogError(f"the source {source!r} does not end in an incarnation")
    return incarnation
