"""One month of the ledger as Parquet files with a manifest: `tollbook export --month`.

The files are made beside their place, read back, held against the ledger's own roll-up, and only
then put there. Their bytes depend on the month's facts alone: a second run gives the same ones.
"""

import fcntl
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec
import pyarrow as pa

from ledger.clock import to_us
from ledger.errors import ExportFailed
from ledger.export.bill import batches_of, bill_lines, costs_of, prices_before
from ledger.export.columns import BILL_COLUMNS, ENDED_EVENT, Column
from ledger.export.manifest import (
    BILL,
    FORMAT,
    MANIFEST,
    REQUESTS,
    ExportedFile,
    Manifest,
    describe,
)
from ledger.export.parquet import read_back, write_parquet
from ledger.export.rows import FILE_COLUMNS, request_batches
from ledger.export.sums import Span, Sums, by_roll_up
from ledger.identity import mint_id
from ledger.sql import tables
from ledger.sql.bill import month_range
from ledger.sql.session import Ledger, ReadSession

Progress = Callable[[int, int], None]
"""Told how many of how many rows are written, after each row group."""

_TEMPORARY = ".writing-"
"""Start of the name of a directory in which files are made; what is left of one is removed."""


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """What an export did. `change` says how the files relate to those of an earlier run."""

    directory: Path
    manifest: Manifest
    change: Literal["new", "same", "replaced"]


def export_month(
    ledger: Ledger, month: str, out_dir: Path, *, progress: Progress = lambda done, total: None
) -> Exported:
    """Export the UTC `month` (2026-11) of `ledger` into `out_dir/<month>/`.

    The files of an earlier run stay until the new ones are whole and checked. Raises `BadQuery` for
    no month, `ExportFailed` if the files do not come back as they should, or another export is at
    work in `out_dir`; `OSError` if the disk refuses.
    """
    first, after = month_range(month)
    out_dir.mkdir(parents=True, exist_ok=True)
    with _alone(out_dir):
        fresh = out_dir / f"{_TEMPORARY}{mint_id()}"
        fresh.mkdir()
        try:
            with ledger.read() as read:
                manifest = _write(read, month, (to_us(first), to_us(after)), fresh, progress)
            change = _put(fresh, out_dir / month, manifest)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return Exported(directory=out_dir / month, manifest=manifest, change=change)


def _write(read: ReadSession, month: str, span: Span, fresh: Path, progress: Progress) -> Manifest:
    """Write and check every file of the month; the manifest comes last."""
    rolled = by_roll_up(read, span)
    ends = _Ends()
    batches = ends.watch(request_batches(read, span))
    for done in write_parquet(fresh / REQUESTS, FILE_COLUMNS, batches):
        progress(done, rolled.requests)
    lines = bill_lines(read, month)
    for _ in write_parquet(fresh / BILL, BILL_COLUMNS, batches_of(lines, BILL_COLUMNS)):
        pass
    files = [
        _checked(fresh / REQUESTS, FILE_COLUMNS, "count(*)", rolled),
        _checked(fresh / BILL, BILL_COLUMNS, "sum(requests)", rolled),
    ]
    cost, unpriced = costs_of(lines)
    manifest = Manifest(
        format=FORMAT,
        month=month,
        requests=rolled.requests,
        open=_open(read, span),
        tokens=rolled.tokens,
        known=rolled.known,
        cost=cost,
        unpriced=unpriced,
        prices=prices_before(read, span[1]),
        position={source: {"requests": last} for source, last in ends.last.items()},
        files=files,
    )
    (fresh / MANIFEST).write_bytes(manifest.encode())
    return manifest


class _Ends:
    """Sees the batches go by, and keeps the last event of each source that ended a request."""

    def __init__(self) -> None:
        self.last: Counter[str] = Counter()

    def watch(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for name in batch.column(ENDED_EVENT.name).to_pylist():
                if name is not None:
                    source, _, sequence = name.rpartition(":")
                    self.last[source] = max(self.last[source], int(sequence))
            yield batch


def _checked(path: Path, columns: tuple[Column, ...], count: str, rolled: Sums) -> ExportedFile:
    """The entry of a file that came back with the sums of the roll-up. Raises `ExportFailed`."""
    found, rows = read_back(path, columns, count)
    for what, here, there in (
        ("requests", found.requests, rolled.requests),
        ("tokens", found.tokens, rolled.tokens),
    ):
        if here != there:
            raise ExportFailed(
                f"{path.name} would hold {what} {here}, and the ledger's roll-up says {there}; "
                "nothing was exported: run `tollbook audit`, which names the difference, and "
                "`tollbook rebuild`, which makes the roll-up anew from the events"
            )
    _on_disk(path)
    return describe(path, rows)


def _open(read: ReadSession, span: Span) -> int:
    requests = tables.requests
    statement = (
        requests.select()
        .with_only_columns(requests.c.request_id)
        .where(requests.c.accepted_us >= span[0], requests.c.accepted_us < span[1])
        .where(requests.c.state == "open")
    )
    return sum(len(part) for part in read.stream(statement))


@contextmanager
def _alone(out_dir: Path) -> Iterator[None]:
    """Hold `out_dir` against a second export, and clear away what a killed one left."""
    with (out_dir / ".lock").open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ExportFailed(
                f"another export is writing into {out_dir}; wait for it to end and try again"
            ) from None
        for left in out_dir.glob(f"{_TEMPORARY}*"):
            shutil.rmtree(left)
        yield


def _put(fresh: Path, place: Path, manifest: Manifest) -> Literal["new", "same", "replaced"]:
    """Move the whole directory `fresh` to its place."""
    if not place.exists():
        fresh.rename(place)
        _on_disk(place.parent)
        return "new"
    if _same(place, manifest):
        return "same"
    if not (place / MANIFEST).exists() and any(place.iterdir()):
        raise ExportFailed(
            f"{place} holds something that is no export; move it away, or export elsewhere"
        )
    # A directory cannot be replaced in one step. A crash between these two leaves no export of the
    # month, which the next run makes again; it never leaves a mixture.
    old = place.parent / f"{_TEMPORARY}{mint_id()}"
    place.rename(old)
    fresh.rename(place)
    _on_disk(place.parent)
    shutil.rmtree(old)
    return "replaced"


def _same(place: Path, manifest: Manifest) -> bool:
    """True if `place` holds exactly what was just made; its bytes are then left alone."""
    try:
        return (place / MANIFEST).read_bytes() == manifest.encode() and all(
            describe(place / file.name, file.rows) == file for file in manifest.files
        )
    except OSError:
        return False  # a file is missing or unreadable: replace them all


def _on_disk(path: Path) -> None:
    """Wait until `path` survives a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
