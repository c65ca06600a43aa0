"""`tollbook audit`: logs on disk against the ledger, the ledger against itself and its exports.

This is where the logs of `streams` meet the comparison of `ledger`. Each log is read up to the
position that the ledger's one snapshot has in it, so the audit works while a gateway serves.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from gateway.cli.data import current_ledger
from gateway.cli.failure import EXIT_FAILED
from gateway.cli.options import json_option
from gateway.cli.output import json_text, printable
from gateway.cli.place import Place, place_option
from gateway.cli.progress import progress
from ledger.words import counted

if TYPE_CHECKING:
    from ledger.audit import LogContents, Report
    from ledger.events import Event
    from ledger.sql.session import ReadSession
    from streams.local.layout import Layout


@click.command("audit", short_help="Compare spools, ledger, projections, exports, engines.")
@place_option
@json_option
def command(place: Place, as_json: bool) -> int:
    """Compare spools, ledger, projections, exports, and the engines' own counters where they were
    read for ten minutes and more. Exit code 1 and the differences if they part. Works on a live
    gateway, up to where its ledger stands."""
    from ledger.audit import audit
    from ledger.export.manifest import exports
    from streams.local.layout import Layout

    layout = Layout(place.data)
    with (
        current_ledger(place) as ledger,
        progress("auditing") as tell,
        ledger.read() as read,
    ):
        report = audit(read, logs(read, layout), exports(layout.exports), progress=tell.step)
    if as_json:
        click.echo(
            json_text(
                {
                    "clean": report.clean,
                    "findings": report.findings,
                    "notes": report.notes,
                    "looked_at": report.looked_at,
                }
            )
        )
    else:
        click.echo(report_text(report))
    return 0 if report.clean else EXIT_FAILED


def report_text(report: "Report") -> str:
    """What an audit found, for a person. Pure."""
    lines = [f"{finding.check}: {finding.says}" for finding in report.findings]
    lines += [f"note: {note}" for note in report.notes]
    counts = ", ".join(f"{name} {count:,}" for name, count in report.looked_at.items() if count)
    lines.append(f"looked at: {counts or 'nothing, there is nothing yet'}")
    differences = counted(len(report.findings), "difference")
    lines.append("clean: no difference" if report.clean else f"NOT CLEAN: {differences}")
    return "\n".join(printable(line) for line in lines)


def logs(read: "ReadSession", layout: "Layout") -> Iterator["LogContents"]:
    """Every log of a data directory, up to the position that `read` has in it."""
    from ledger.audit import LogContents
    from ledger.sql.writer import position
    from streams.local.layout import REGISTRY_LOG_NAME, log_name

    for directory in layout.spool_directories():
        name = log_name(directory)
        log = LogContents(log=name, where=f"spool {directory.name}", events=())
        log.events = _spool_events(directory, position(read, name), log)
        yield log
    registry = LogContents(log=REGISTRY_LOG_NAME, where="the registry log", events=())
    registry.events = _registry_events(
        layout.registry_log, position(read, REGISTRY_LOG_NAME), registry
    )
    yield registry


def _spool_events(directory: Path, until: int, log: "LogContents") -> Iterator["Event"]:
    """The events of a spool below `until`. Says in `log` where it ended, and if it is broken."""
    from streams.log.reader import SpoolReader
    from streams.log.spool import segment_name

    reader = SpoolReader(directory)
    with ExitStack() as stack:
        files: list[tuple[int, BinaryIO]] = []
        try:
            starts = [segment.start for segment in reader.segments() if segment.start < until]
        except FileNotFoundError:
            # Taken whole, kept for its time, and removed since the list of spools was made.
            return
        for start in starts:
            try:
                opened = (directory / segment_name(start)).open("rb")
            except FileNotFoundError:
                # Segments are removed from the oldest on: what was opened so far is on its way out.
                files.clear()
                continue
            files.append((start, stack.enter_context(opened)))
        for start, file in files:
            yield from _frames(file, start, until, log)
            if log.broken is not None:
                return
    if not files and until:
        # All of it was removed after it had been taken; there is no end to compare.
        log.end = None


def _registry_events(path: Path, until: int, log: "LogContents") -> Iterator["Event"]:
    """The events of the registry log below `until`, as `_spool_events`."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        log.end = 0
        return
    with file:
        yield from _frames(file, 0, until, log)


def _frames(file: BinaryIO, start: int, until: int, log: "LogContents") -> Iterator["Event"]:
    """The events of one file whose first byte has logical offset `start`, below `until`."""
    from streams.log.reader import decoded
    from streams.log.segment import next_frame, scan

    data = file.read(until - start)
    frames, end = scan(data)
    # Records that are no events were set aside in the ledger, which tells of them itself.
    events, _ = decoded(frames, start)
    log.end = start + end
    yield from events
    if next_frame(data, end + 1) is not None:
        log.broken = (
            f"{file.name} has broken bytes at {end} (logical offset {start + end}) before whole "
            "records; put back a whole copy of this file"
        )
