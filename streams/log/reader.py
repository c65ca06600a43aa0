"""Reading a spool, while it is written or after its writer died. Never writes, never locks.

What is handed on is only ever whole frames in order. Where bytes are missing or broken the reader
says so in a value; what to do about it is the caller's decision.
"""

import os
from pathlib import Path
from typing import Final

import msgspec

from ledger.events import Event
from streams.codec import decode, decode_all
from streams.errors import CodecError, LogCorrupt
from streams.log.segment import FRAME_BYTES_MAX, HEADER_BYTES, Frame, next_frame, records, scan
from streams.log.spool import CONSUMED, SOURCE, consumed_mark, segment_name

READ_BYTES: Final = 2 << 20
"""Read at once by default: about 4,000 records. More than any frame, so that a window which holds
no whole frame is proof of broken bytes."""

_WINDOW_BYTES_MIN: Final = FRAME_BYTES_MAX + HEADER_BYTES


class BadRecord(msgspec.Struct, frozen=True):
    """Bytes in a whole frame that are not an event record; `offset` is logical."""

    offset: int
    reason: str
    record: bytes


class Missing(msgspec.Struct, frozen=True):
    """Logical offsets `start` to `end` are in no file any more."""

    start: int
    end: int


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """What one read gave.

    `events` and `poison` are in order and end at `next_offset`. `waiting` counts bytes behind it
    that are no whole frame yet: a write under way, or, once the writer is dead, a torn tail.
    `broken` says that bytes at `next_offset` are broken for good: nothing can be read past them.
    `missing` names a gap in front of the events; `behind` is true if the asked offset is beyond
    the end of the log, as after a directory was put back to an older copy.
    """

    events: list[Event] = []
    poison: list[BadRecord] = []
    next_offset: int
    waiting: int = 0
    broken: LogCorrupt | None = None
    missing: Missing | None = None
    behind: bool = False

    @property
    def empty(self) -> bool:
        """True if there was nothing to hand on."""
        return not self.events and not self.poison and self.missing is None


class Segment(msgspec.Struct, frozen=True, order=True):
    """One segment file: its logical start and its size in bytes when it was looked at."""

    start: int
    size: int

    @property
    def end(self) -> int:
        """The logical offset behind its last byte."""
        return self.start + self.size


class SpoolReader:
    """Reads the spool in `directory`. Keeps one file open between reads; `close` lets it go."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._fd = -1
        self._start = 0

    def source(self) -> str:
        """The name of the writer. Raises `OSError` if it cannot be read."""
        return (self.directory / SOURCE).read_text(encoding="utf-8").strip()

    def told_source(self) -> str | None:
        """The name of the writer; null if its file does not tell."""
        try:
            return self.source() or None
        except (OSError, UnicodeDecodeError):
            return None

    def end(self) -> int:
        """The logical end of the spool on disk as it is now; 0 if the spool is gone."""
        try:
            segments = self.segments()
        except FileNotFoundError:
            return 0
        return segments[-1].end if segments else 0

    def consumed(self) -> int:
        """The logical offset below which the ledger has taken everything; 0 if never told."""
        try:
            return consumed_mark((self.directory / CONSUMED).read_bytes())
        except FileNotFoundError:
            return 0

    def segments(self) -> list[Segment]:
        """The segment files that exist, oldest first."""
        found = []
        with os.scandir(self.directory) as entries:
            for entry in entries:
                stem, _, suffix = entry.name.partition(".")
                if suffix == "seg" and stem.isdecimal():
                    found.append(Segment(int(stem), entry.stat().st_size))
        return sorted(found)

    def read(self, offset: int, max_bytes: int = READ_BYTES) -> Chunk:
        """Whole frames from the logical `offset` on, at most about `max_bytes` of them.

        Raises `OSError` only for a disk that cannot be read.
        """
        if self._fd < 0 or offset < self._start:
            chunk = self._find(offset)
            if chunk is not None:
                return chunk
        window = max(max_bytes, _WINDOW_BYTES_MIN)
        data = os.pread(self._fd, window, offset - self._start)
        if not data:
            return self._next_segment(offset, max_bytes)
        frames, end = scan(data)
        waiting = 0
        trouble = None
        if end == 0 or end < len(data) < window:
            trouble = self._trouble(offset + end)
            waiting = os.fstat(self._fd).st_size - (offset + end - self._start)
        events, poison = decoded(frames, offset)
        return Chunk(
            events=events,
            poison=poison,
            next_offset=offset + end,
            waiting=waiting,
            broken=trouble,
        )

    def close(self) -> None:
        """Let go of the open file. Reading again opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _find(self, offset: int) -> Chunk | None:
        """Open the segment that holds `offset`, or say why there is none."""
        self.close()
        segments = self.segments()
        holder = None
        for segment in segments:
            if segment.start <= offset:
                holder = segment
        if holder is None:
            if not segments:
                return Chunk(next_offset=offset, behind=offset > 0)
            return self._skip(offset, segments[0].start)
        if offset > holder.end:
            later = [s.start for s in segments if s.start > offset]
            if later:
                return self._skip(offset, later[0])
            return Chunk(next_offset=offset, behind=True)
        self._open(holder.start)
        return None

    def _open(self, start: int) -> None:
        path = self.directory / segment_name(start)
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._start = start

    def _skip(self, start: int, end: int) -> Chunk:
        return Chunk(next_offset=end, missing=Missing(start, end))

    def _next_segment(self, offset: int, max_bytes: int) -> Chunk:
        """At the end of the open segment: is there another one, or is this the end?"""
        size = os.fstat(self._fd).st_size
        if offset - self._start > size:
            return Chunk(next_offset=offset, behind=True)
        try:
            fd = os.open(self.directory / segment_name(offset), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return self._hole(offset)
        if offset == self._start:
            # An empty segment is the newest: its own name is what was just opened.
            os.close(fd)
            return Chunk(next_offset=offset)
        self.close()
        self._fd, self._start = fd, offset
        return self.read(offset, max_bytes)

    def _hole(self, offset: int) -> Chunk:
        """No segment starts at the end of this one: the newest, or the next ones are missing."""
        later = [s.start for s in self.segments() if s.start > offset]
        # The segment may have grown before the later one was made: then the next read finds it.
        if not later or os.fstat(self._fd).st_size > offset - self._start:
            return Chunk(next_offset=offset)
        self.close()
        return self._skip(offset, later[0])

    def _trouble(self, offset: int) -> LogCorrupt | None:
        """Why the bytes at `offset` can never become a frame; null if they still may."""
        within = offset - self._start
        # Looked for first: once there is a later segment, this one does not grow any more.
        later = any(segment.start > self._start for segment in self.segments())
        # Read again: a first read may have met a write under way, or one that was cut back.
        rest = os.pread(self._fd, os.fstat(self._fd).st_size - within, within)
        if scan(rest).frames or not rest:
            return None
        found = next_frame(rest, 1)
        if found is None and not later:
            return None
        behind = f"{found} bytes before whole records" if found else "before later segments"
        return LogCorrupt(
            f"{self.directory / segment_name(self._start)}: broken bytes at {within} (logical "
            f"offset {offset}), {behind}; this log is read no further, what is older is not touched"
        )


def decoded(frames: list[Frame], offset: int) -> tuple[list[Event], list[BadRecord]]:
    """The records in `frames` of a log whose scanned bytes began at the logical `offset`."""
    if not frames:
        return [], []
    whole = decode_all(b"\n".join([payload for _, payload in frames]))
    if whole is not None:
        return whole, []
    events: list[Event] = []
    poison: list[BadRecord] = []
    for start, payload in frames:
        for at, record in records(payload):
            try:
                events.append(decode(record))
            except CodecError as wrong:
                poison.append(BadRecord(offset + start + at, str(wrong), record))
    return events, poison
