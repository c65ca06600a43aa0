"""Which consumed segments are deleted: the oldest, once more than a set amount of them is kept.

They are kept at all because a ledger can be put back to an older copy, or lose its last commits in
a power cut: it then reads again. Never deleted is what the ledger has not taken, and what it takes
to close a request that is still open.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from streams.local.layout import GONE_PREFIX
from streams.log.lock import FileLock
from streams.log.spool import LOCK, segment_name

KEEP_BYTES: Final = 256 << 20

SPOOLS_KEPT_MAX: Final = 500
"""Settled spools beyond this go although they are small: every process start leaves one, and they
are listed and looked at one by one."""

UNBORN_SECONDS_MAX: Final = 3600.0
"""A spool is made within milliseconds; one that is unborn for an hour never will be."""


class OldSegment(msgspec.Struct, frozen=True):
    """One segment file on disk; `changed_ns` is when it was last written."""

    start: int
    size: int
    changed_ns: int


class KeptSpool(msgspec.Struct, frozen=True):
    """A spool as far as deleting goes.

    The ledger has taken everything below `consumed`; below `free_below` nothing is needed any
    more. A `settled` spool is adopted and consumed whole: it may go as a whole.
    """

    directory: Path
    segments: Sequence[OldSegment]
    consumed: int
    free_below: int
    settled: bool


class Plan(msgspec.Struct, frozen=True):
    """What to delete: single segment files, and whole spools."""

    segments: list[Path]
    spools: list[Path]


class _Candidate(NamedTuple):
    changed_ns: int
    directory: Path
    start: int
    size: int
    free: bool


def plan(
    spools: Sequence[KeptSpool], keep_bytes: int, spools_kept_max: int = SPOOLS_KEPT_MAX
) -> Plan:
    """What may go so that at most `keep_bytes` of consumed segments stay. Pure.

    Of each spool segments go from its front only, so that what stays has no gap.
    """
    candidates: list[_Candidate] = []
    for spool in spools:
        newest = 0
        for number, segment in enumerate(spool.segments, 1):
            if segment.start + segment.size > spool.consumed:
                break
            # A copied directory may have its times in any order; the front is the oldest still.
            newest = max(newest, segment.changed_ns)
            end = segment.start + segment.size
            is_last = number == len(spool.segments)
            free = spool.settled or (end <= spool.free_below and not is_last)
            entry = _Candidate(newest, spool.directory, segment.start, segment.size, free)
            candidates.append(entry)
    kept = sum(candidate.size for candidate in candidates)
    stopped: set[Path] = set()
    gone: dict[Path, list[int]] = {}
    for candidate in sorted(candidates):
        if kept <= keep_bytes:
            break
        if not candidate.free or candidate.directory in stopped:
            stopped.add(candidate.directory)
            continue
        gone.setdefault(candidate.directory, []).append(candidate.start)
        kept -= candidate.size
    settled = sorted(spool.directory for spool in spools if spool.settled)
    whole = set(settled[: max(0, len(settled) - spools_kept_max)])
    for spool in spools:
        deleted = len(gone.get(spool.directory, ()))
        if spool.settled and 0 < deleted == len(spool.segments):
            whole.add(spool.directory)
    files = [
        directory / segment_name(start)
        for directory, starts in gone.items()
        if directory not in whole
        for start in starts
    ]
    return Plan(files, sorted(whole))


def look(directory: Path, *, consumed: int, needed_from: int | None, settled: bool) -> KeptSpool:
    """The spool in `directory` as it is on disk now.

    `needed_from` is the lowest offset that an open request still needs; null if there is none.
    """
    segments = []
    for path in sorted(directory.glob("*.seg")):
        status = path.stat()
        segments.append(OldSegment(int(path.stem), status.st_size, status.st_mtime_ns))
    free_below = consumed
    if needed_from is not None:
        starts = [segment.start for segment in segments if segment.start <= needed_from]
        free_below = min(consumed, max(starts, default=0))
    return KeptSpool(directory, segments, consumed, free_below, settled)


def carry_out(what: Plan) -> None:
    """Delete what `what` says. Safe to repeat after a crash in between."""
    for path in what.segments:
        path.unlink(missing_ok=True)
    for directory in what.spools:
        gone = directory.with_name(GONE_PREFIX + directory.name)
        directory.rename(gone)
        shutil.rmtree(gone)


def clear_leftovers(leftovers: Sequence[Path], now_seconds: float) -> None:
    """Delete what was cut short in its deletion, or in its making long ago.

    `now_seconds` is seconds since 1970.
    """
    for directory in leftovers:
        if not directory.name.startswith(GONE_PREFIX):
            if now_seconds - directory.stat().st_mtime < UNBORN_SECONDS_MAX:
                continue
            lock = FileLock.take(directory / LOCK)
            if lock is None:
                continue
            lock.release()
        shutil.rmtree(directory, ignore_errors=True)
