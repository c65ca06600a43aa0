"""The kinds of files that a month can be exported as, and what each writes into its directory.

A writer gets one snapshot of the ledger and an empty directory; what it wrote is read back by
another library and held against the ledger before anybody sees it.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa

from ledger.chain import root_of
from ledger.errors import BadQuery, ExportFailed
from ledger.events import BUCKETS
from ledger.export.archive import manifest_heads, write_archive
from ledger.export.archive_columns import ARCHIVE
from ledger.export.bill import batches_of, bill_lines, unpriced_in
from ledger.export.cells import Cells
from ledger.export.columns import BILL_COLUMNS
from ledger.export.csv import write_csv
from ledger.export.facts import Month, prices_before
from ledger.export.focus.columns import VERSIONS, file_columns
from ledger.export.focus.lines import holdable, left_out
from ledger.export.focus.metadata import METADATA, metadata
from ledger.export.focus.rows import Setting, focus_batches
from ledger.export.focus.rules import check_focus
from ledger.export.manifest import (
    BILL,
    FOCUS,
    FORMAT,
    PARQUET,
    REQUESTS,
    ChainHead,
    ExportedFile,
    LeftOut,
    Manifest,
    describe,
)
from ledger.export.opened import Opened, types_in
from ledger.export.parquet import write_parquet
from ledger.export.read_back import Found, Reading, read_back
from ledger.export.rows import FILE_COLUMNS, request_batches
from ledger.export.sums import Sums, by_roll_up
from ledger.folds.book import Book
from ledger.sql import tables
from ledger.sql.bill import BillLine, totals_of
from ledger.sql.session import ReadSession

CSV: Final = "csv"
PREFIX: Final = "focus-"

Progress = Callable[[int, int], None]
"""Told how many of how many rows are written, after each run of them."""


class Told(msgspec.Struct, frozen=True):
    """What the ledger says of a month, once for every kind of files."""

    rolled: Sums
    lines: list[BillLine]
    cost: dict[str, str]


class Written(msgspec.Struct, kw_only=True):
    """What a writer adds to the manifest. `heads` null: it did not look at the chains."""

    files: list[ExportedFile]
    position: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    left_out: LeftOut | None = None
    heads: list[ChainHead] | None = None
    before: list[ChainHead] | None = None
    previous_root: str | None = None


Writer = Callable[[ReadSession, Month, Told, Path, Progress], Written]


def write_format(
    read: ReadSession, month: Month, kind: str, directory: Path, progress: Progress
) -> Manifest:
    """Write and check every file of `month` as `kind`; gives the manifest, which is not written.

    Raises `BadQuery` for no kind, `ExportFailed` if the files do not come back as they should.
    """
    writer = WRITERS.get(kind)
    if writer is None:
        raise BadQuery(f"there is no format {kind!r}; it is one of {', '.join(WRITERS)}")
    lines = bill_lines(read, month.month, month.book)
    unpriced = unpriced_in(read, month.month, month.book, lines)
    told = Told(by_roll_up(read, month), lines, totals_of(lines))
    written = writer(read, month, told, directory, progress)
    period = month.period
    return Manifest(
        format=FORMAT,
        kind=kind,
        month=month.month,
        zone=month.zone,
        start=month.start,
        end=month.end,
        period=month.state,
        root=month.root,
        cut=None if period is None else {name: dict(cut) for name, cut in period.cut.items()},
        requests=told.rolled.requests,
        open=_open(read, month) if period is None else period.open,
        tokens=told.rolled.tokens,
        known=told.rolled.known,
        corrections=sum(1 for line in lines if line.kind != "usage"),
        cost=told.cost,
        unpriced=unpriced,
        prices=prices_before(month),
        position=written.position,
        left_out=written.left_out,
        heads=_heads(read, month) if written.heads is None else written.heads,
        before=written.before,
        previous_root=written.previous_root,
        files=written.files,
    ).sealed()


def _heads(read: ReadSession, month: Month) -> list[ChainHead] | None:
    """The heads of all chains at the month's cut, if they still make its root."""
    if month.period is None:
        return None
    heads = manifest_heads(read, month.period.cut)
    root = root_of({(one.source, one.topic): (one.sequence, one.head) for one in heads})
    if root != month.period.root:
        raise ExportFailed(
            f"the events of {month.month} make the root {root}, and {month.period.root} was noted "
            "when it was closed: events in the ledger were changed since; nothing was exported: "
            "`tollbook audit` names the source"
        )
    return heads


def _open(read: ReadSession, month: Month) -> int:
    requests = tables.requests
    statement = (
        requests.select()
        .with_only_columns(requests.c.request_id)
        .where(requests.c.accepted_us >= month.span[0], requests.c.accepted_us < month.span[1])
        .where(requests.c.state == "open")
    )
    return sum(len(part) for part in read.stream(statement))


def _tables_writer(write: Callable[..., Cells], requests: str, bill: str) -> Writer:
    """Every request and the finest lines of the bill, in two files of these names."""

    def write_tables(
        read: ReadSession, month: Month, told: Told, directory: Path, progress: Progress
    ) -> Written:
        ends: dict[str, int] = {}
        total = told.rolled.requests
        batches = request_batches(read, month, ends)
        rows = write(
            directory / requests, FILE_COLUMNS, batches, lambda done: progress(done, total)
        )
        lines = write(directory / bill, BILL_COLUMNS, batches_of(told.lines, BILL_COLUMNS))
        return Written(
            files=[
                _requests(directory / requests, rows, told.rolled),
                _bill(directory / bill, lines, told),
            ],
            position={source: {"requests": last} for source, last in ends.items()},
        )

    return write_tables


def _of_lines(lines: Sequence[BillLine]) -> Sums:
    """What the file of the bill has to add up to. A bucket that nobody knew is null in it."""
    buckets = _told_buckets(lines)
    return Sums(
        requests=sum(line.requests for line in lines),
        tokens={name: sum(cells) for name, cells in buckets.items()},
        known={name: len(cells) for name, cells in buckets.items()},
    )


def _told_buckets(lines: Sequence[BillLine]) -> dict[str, list[int]]:
    """The counts of each bucket over the lines that know it."""
    return {
        name: [count for line in lines if (count := getattr(line, name)) is not None]
        for name in BUCKETS
    }


def _requests(path: Path, wrote: Cells, wanted: Sums) -> ExportedFile:
    """The entry of the file of requests, which came back with the sums `wanted`."""
    return _checked(path, wrote, read_back(path, FILE_COLUMNS, wrote).sums, wanted)


def _bill(path: Path, wrote: Cells, told: Told) -> ExportedFile:
    """The entry of the file of the bill, which came back as the lines that were `told`."""
    found = read_back(path, BILL_COLUMNS, wrote, requests="requests", cost=("cost", "currency"))
    _same_cost(path, found, told.cost)
    return _checked(path, wrote, found.sums, _of_lines(told.lines))


def _checked(path: Path, wrote: Cells, found: Sums, wanted: Sums) -> ExportedFile:
    """The entry of a file that came back with the sums `wanted`. Raises `ExportFailed`."""
    for what, here, there in (
        ("requests", found.requests, wanted.requests),
        ("tokens", found.tokens, wanted.tokens),
        ("rows that know each bucket", found.known, wanted.known),
    ):
        if here != there:
            raise ExportFailed(
                f"{path.name} would hold {what} {here}, and the ledger's roll-up says {there}; "
                "nothing was exported: run `tollbook audit`, which names the difference, and "
                "`tollbook rebuild`, which makes the roll-up anew from the events"
            )
    on_disk(path)
    return describe(path, wrote.rows)


def _same_cost(path: Path, found: Found, cost: dict[str, str]) -> None:
    """Raise `ExportFailed` unless the file costs what the bill costs."""
    there = {currency: total for currency, total in cost.items() if total != "0"}
    if found.cost != there:
        raise ExportFailed(
            f"{path.name} would cost {found.cost}, and the bill says {there}; nothing was "
            "exported: run `tollbook audit`, which names the difference"
        )


def _focus_writer(version: str) -> Writer:
    def write(
        read: ReadSession, month: Month, told: Told, directory: Path, progress: Progress
    ) -> Written:
        return _write_focus(read, month, told, directory, progress, version)

    return write


def _as_closed(month: Month) -> Book:
    """The book, with the tags of projects as they were when the month was closed or settled."""
    held = month.standing.period
    if held is None:
        return month.book
    return msgspec.structs.replace(month.book, projects=held.projects)


def _write_focus(
    read: ReadSession,
    month: Month,
    told: Told,
    directory: Path,
    progress: Progress,
    version: str,
) -> Written:
    """The charges of the month as FOCUS: the same rows as Parquet and as CSV, and the metadata."""
    setting = Setting(month.span, _as_closed(month), month.root)
    columns = file_columns(version)
    last = _Last()
    batches = last.watch(focus_batches(holdable(read, month.book, month.month), setting, version))
    path = directory / FOCUS
    expected = len(told.lines)
    wrote = write_parquet(path, columns, batches, lambda done: progress(done, max(done, expected)))
    text = path.with_suffix(".csv")
    # What the other library reads of the first goes into the second.
    again = Opened(path, types_in(path, columns)).reader()
    write_csv(text, columns, again, seconds=True)
    (directory / METADATA).write_bytes(metadata(month, version, last.end_us))
    for file in (path, text):
        _conforms(file, version, wrote, told.cost)
        on_disk(file)
    on_disk(directory / METADATA)
    files = [
        describe(path, wrote.rows),
        describe(text, wrote.rows),
        describe(directory / METADATA, 0),
    ]
    return Written(files=files, left_out=left_out(read, month.book, month.month))


class _Last:
    """Sees the batches go by, and keeps when the last of their charges ends."""

    def __init__(self) -> None:
        self.end_us: int | None = None

    def watch(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            ends = batch.column("ChargePeriodEnd").cast(pa.int64()).to_pylist()
            self.end_us = max(*ends, self.end_us or 0)
            yield batch


def _conforms(path: Path, version: str, wrote: Cells, cost: dict[str, str]) -> None:
    """Raise `ExportFailed` unless the file keeps every rule, holds what was written, and costs what
    the bill costs."""
    reading = Reading(file_columns(version), cost=("BilledCost", "BillingCurrency"))
    broken = check_focus(path, version, reading.take)
    if broken:
        raise ExportFailed(
            f"{path.name} would not be FOCUS {version}, and nothing was exported: "
            + "; ".join(broken)
        )
    _same_cost(path, reading.found(path, wrote), cost)


def _write_archive(
    read: ReadSession, month: Month, told: Told, directory: Path, progress: Progress
) -> Written:
    """The events of a closed month, from which its root can be made anew without us."""
    if (settled_with := month.standing.settled_with) is not None:
        raise ExportFailed(
            f"{month.month} is before {settled_with}, the first month that was closed, and was "
            "settled with it: it has no root of its own, and its events up to then are in the "
            f"archive of that month: tollbook export --month {settled_with} --format archive"
        )
    if month.period is None:
        raise ExportFailed(
            f"{month.month} is open, and only a closed month has a root that an archive can prove; "
            f"close it first: tollbook close {month.month}"
        )
    archived = write_archive(read, month.period, month.closed, directory, progress=progress)
    for file in archived.files:
        on_disk(directory / file.name)
    return Written(
        files=archived.files,
        heads=archived.heads,
        before=archived.before,
        previous_root=archived.previous_root,
    )


def on_disk(path: Path) -> None:
    """Wait until `path` survives a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


WRITERS: Final[dict[str, Writer]] = {
    PARQUET: _tables_writer(write_parquet, REQUESTS, BILL),
    CSV: _tables_writer(write_csv, "requests.csv", "bill.csv"),
    **{f"{PREFIX}{version}": _focus_writer(version) for version in VERSIONS},
    ARCHIVE: _write_archive,
}
"""Every kind of files by its name, in the order in which they are listed for a person."""
