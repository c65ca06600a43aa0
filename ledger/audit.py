"""Holds what was written against what was counted: logs, ledger, projections and exports.

It reads the ledger through one session, so on a live gateway it compares one moment: each log is
handed in up to the ledger's position in it. It changes nothing, and a difference is a value.
"""

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path

import msgspec

from ledger.clock import from_us
from ledger.events import (
    Event,
    RequestAccepted,
    RequestAttempted,
    SourceClosed,
    SourceMark,
    same_fact,
)
from ledger.events.usage import NOTHING_KNOWN
from ledger.export.check import check_export
from ledger.export.manifest import Manifest
from ledger.folds.attempts import AttemptRow, merged, told_by
from ledger.folds.causes import finding
from ledger.folds.conservation import Cell, Conservation, cell_of
from ledger.folds.requests import REQUEST_TYPES, RequestRow, fold_request
from ledger.sql import chain_checks, checks
from ledger.sql.attempts import count_attempts, known_attempts
from ledger.sql.periods import parted
from ledger.sql.projections import Fact, runs
from ledger.sql.reconcile import fell_silent, first_reading, heard_until, reconcile, settled
from ledger.sql.replay import counted_reaches, load_book, stored_facts
from ledger.sql.reratings import reratings
from ledger.sql.session import ReadSession
from ledger.sql.tables import NOT_KEPT_TOPICS, NOT_TAKEN_TOPICS
from ledger.sql.writer import position
from ledger.words import counted

FINDINGS_MAX = 100
"""Findings of one check that are told one by one; of the others only the number is."""

GAPS_MAX = 10
"""Gaps of one source that are named."""

RUN = 2000
"""Events of a log that are compared at a time."""

Progress = Callable[[str, int], None]
"""Told the name of the check at work and how many things it has looked at."""

Say = Callable[[str], None]


class LogContents(msgspec.Struct):
    """One log, as it is on disk: `events` are all that it still holds below the ledger's position.

    `where` names it for a person. `broken` says why reading it stopped early; it may be set while
    `events` is read. `end` is the offset behind its last record, null if that is not known.
    """

    log: str
    where: str
    events: Iterable[Event]
    broken: str | None = None
    end: int | None = None


class Finding(msgspec.Struct, frozen=True):
    """One difference: the check that found it, and what parts from what, in words."""

    check: str
    says: str


class Report(msgspec.Struct):
    """What an audit found. `looked_at` counts by check; `notes` are worth knowing and not wrong."""

    findings: list[Finding] = []
    notes: list[str] = []
    looked_at: dict[str, int] = {}

    @property
    def clean(self) -> bool:
        """True if nothing parts."""
        return not self.findings


class _Check:
    """Collects what one check says; beyond `FINDINGS_MAX` it only counts."""

    def __init__(self, name: str, report: Report, progress: Progress) -> None:
        self._name, self._report, self._progress = name, report, progress
        self._said = self._looked_at = 0

    def say(self, words: str) -> None:
        self._said += 1
        if self._said <= FINDINGS_MAX:
            self._report.findings.append(Finding(self._name, words))

    def looked_at(self, count: int) -> None:
        self._looked_at += count
        self._progress(self._name, self._looked_at)

    def end(self) -> None:
        self._report.looked_at[self._name] = self._looked_at
        if self._said > FINDINGS_MAX:
            more = self._said - FINDINGS_MAX
            self._report.findings.append(Finding(self._name, f"and {more} more of this kind"))


def audit(
    read: ReadSession,
    logs: Iterable[LogContents] = (),
    exports: Iterable[tuple[Path, Manifest]] = (),
    *,
    progress: Progress = lambda check, done: None,
) -> Report:
    """Compare everything that there is to compare, in the one moment that `read` sees.

    Each log must be read up to `ledger.sql.writer.position(read, log)` with this same `read`, and
    no further. Raises `LedgerUnavailable`, and `UnknownEvent` for events of a newer version.
    """
    report = Report()
    kept = Conservation()
    steps: tuple[tuple[str, Callable[[_Check], None]], ...] = (
        ("set aside", lambda check: _set_aside(read, check)),
        ("logs", lambda check: _logs(read, logs, check)),
        ("completeness", lambda check: _complete(read, check)),
        ("requests", lambda check: _requests(read, check, kept)),
        ("conservation", lambda check: _conserved(kept, check)),
        ("usage", lambda check: _usage(read, check)),
        ("registry", lambda check: _registry(read, check)),
        ("prices", lambda check: _prices(read, check, report.notes)),
        ("months", lambda check: _months(read, check)),
        ("chains", lambda check: _chains(read, check)),
        ("exports", lambda check: _exports(read, exports, check, report.notes)),
        ("engines", lambda check: _engines(read, check, report.notes)),
    )
    for name, step in steps:
        check = _Check(name, report, progress)
        step(check)
        check.end()
    return report


def _set_aside(read: ReadSession, check: _Check) -> None:
    for (source, topic, sequence), event_id, reason in checks.set_aside(read):
        check.looked_at(1)
        check.say(f"{source}:{sequence} of {topic} ({event_id}) was set aside: {reason}")
    for log, offset, reason in checks.poisoned(read):
        check.looked_at(1)
        check.say(f"{log} holds a record at offset {offset} that was set aside: {reason}")


def _logs(read: ReadSession, logs: Iterable[LogContents], check: _Check) -> None:
    known = checks.reaches(read)
    for log in logs:
        seen: dict[tuple[str, str], int] = {}
        for run in runs(log.events, RUN):
            _compare_run(read, log, run, seen, check)
            check.looked_at(len(run))
        taken = position(read, log.log)
        if log.broken is not None:
            check.say(f"{log.where}: {log.broken}")
            continue
        if log.end is not None and log.end < taken:
            check.say(
                f"{log.where} ends at {log.end}, and the ledger has taken it up to {taken}: its end"
                " was lost or an older copy was put back; nothing that was counted is lost"
            )
            continue
        for (source, topic), last in seen.items():
            reached = known.get((source, topic))
            if reached is not None and reached.last > last:
                check.say(
                    f"{log.where} has {topic} of {source} up to {last}, and the ledger up to"
                    f" {reached.last}"
                )


def _compare_run(
    read: ReadSession,
    log: LogContents,
    run: list[Event],
    seen: dict[tuple[str, str], int],
    check: _Check,
) -> None:
    by_topic: dict[tuple[str, str], dict[int, Event]] = {}
    for event in run:
        by_topic.setdefault((event.source, event.topic), {})[event.sequence] = event
    for (source, topic), events in by_topic.items():
        if topic in NOT_TAKEN_TOPICS:
            continue
        first, last = min(events), max(events)
        low = min(first, seen.get((source, topic), first - 1) + 1)
        seen[source, topic] = max(last, seen.get((source, topic), 0))
        if topic in NOT_KEPT_TOPICS:
            continue
        known = checks.stretch(read, source, topic, low, last)
        for sequence, event in events.items():
            difference = _difference(read, known, sequence, event)
            if difference is not None:
                check.say(f"{log.where}: {event.name} of {topic} ({event.id}) {difference}")
        for sequence in sorted(known.stored.keys() - events.keys()):
            check.say(f"{log.where} lacks {source}:{sequence} of {topic}, which the ledger has")


def _difference(
    read: ReadSession, known: checks.Stretch, sequence: int, event: Event
) -> str | None:
    """How the ledger parts from one event of a log; null if it does not, or said so already."""
    stored = known.stored.get(sequence)
    if stored is None and sequence in known.renamed:
        stored = checks.event_with_id(read, known.renamed[sequence])
    if stored is not None:
        return None if same_fact(stored, event) else "says something else in the ledger"
    return None if sequence in known.aside else "is missing in the ledger"


def _complete(read: ReadSession, check: _Check) -> None:
    said = checks.reaches(read)
    reached = counted_reaches(read)
    for (source, topic), reach in reached.items():
        check.looked_at(1)
        if said.get((source, topic)) != reach:
            check.say(
                f"source_topics is wrong about {topic} of {source}: up to {reach.last} there are"
                f" {counted(reach.received, 'event')}; `tollbook rebuild` sets it right"
            )
        missing = reach.last - reach.received
        if missing:
            gaps = checks.gaps(read, source, topic, most=GAPS_MAX)
            named = ", ".join(f"{a}" if a == b else f"{a} to {b}" for a, b in gaps)
            check.say(f"{missing} of {topic} of {source} never came: {named}")
    for source, topic in said.keys() - reached.keys():
        if topic not in NOT_KEPT_TOPICS:
            check.say(f"source_topics tells of {topic} of {source}, of which there is no event")


class _Requests:
    """Folds every request anew and compares it with its row; notes what sources claim on the way.

    The events of one request come side by side, but a run may end between them.
    """

    def __init__(self, read: ReadSession, check: _Check, kept: Conservation) -> None:
        self._read, self._check, self._kept = read, check, kept
        self._folded: dict[str, RequestRow] = {}
        self._accepted: dict[str, Cell] = {}
        self._attempts: list[AttemptRow] = []
        self.count = self.attempts = 0
        self.claims: dict[tuple[str, str], int] = {}

    def take(self, facts: list[Fact]) -> None:
        last = None
        for fact in facts:
            payload = fact.payload
            if isinstance(payload, REQUEST_TYPES):
                last = payload.request_id
                row = fold_request(self._folded.get(last), fact.event, payload)
                self._folded[last] = row
                if isinstance(payload, RequestAccepted):
                    self._accepted[last] = cell_of(fact.event.source, fact.event.time)
                elif isinstance(payload, RequestAttempted):
                    self._attempts += told_by(fact.event, payload)
            elif isinstance(payload, SourceMark):
                self._claim(fact.event.source, payload.last)
            elif isinstance(payload, SourceClosed):
                self._claim(payload.closed_source, payload.last)
        unfinished = self._folded.pop(last, None) if last is not None else None
        waiting = [row for row in self._attempts if row.request_id == last]
        self._attempts = [row for row in self._attempts if row.request_id != last]
        self.compare()
        self._attempts = waiting
        if last is not None and unfinished is not None:
            self._folded[last] = unfinished

    def compare(self) -> None:
        """Compare all that is folded so far."""
        stored = checks.known_requests(self._read, list(self._folded))
        for request_id, row in self._folded.items():
            accepted = self._accepted.pop(request_id, None)
            self._kept.take(request_id, accepted, stored.get(request_id))
            if request_id not in stored:
                self._check.say(f"request {request_id} has events, but no row")
                continue
            self.count += 1
            for words in _parted(row, stored[request_id]):
                self._check.say(f"request {request_id}: {words}; `tollbook rebuild` sets it right")
        self._compare_attempts()
        self._check.looked_at(len(self._folded))
        self._folded.clear()

    def _compare_attempts(self) -> None:
        told = merged(self._attempts)
        stored = known_attempts(self._read, self._folded)
        for name in sorted(told.keys() | stored.keys()):
            if told.get(name) != stored.get(name):
                self._check.say(
                    f"attempt {name[1]} of request {name[0]}: its events say"
                    f" {told.get(name, 'nothing')}, its row says {stored.get(name, 'nothing')};"
                    " `tollbook rebuild` sets it right"
                )
        self.attempts += len(stored)

    def _claim(self, source: str, last: dict[str, int]) -> None:
        for topic, sequence in last.items():
            if topic in NOT_TAKEN_TOPICS:
                continue
            claimed = self.claims.get((source, topic), 0)
            self.claims[source, topic] = max(claimed, sequence)


def _parted(folded: RequestRow, stored: RequestRow) -> Iterator[str]:
    if not folded.billed:
        # What running totals told of an open request is in no kept event.
        stored = msgspec.structs.replace(stored, chunks=0, basis="none", usage=NOTHING_KNOWN)
        folded = msgspec.structs.replace(folded, chunks=0, basis="none", usage=NOTHING_KNOWN)
    if folded == stored:
        return
    for name in RequestRow.__struct_fields__:
        one, other = getattr(folded, name), getattr(stored, name)
        if one != other:
            yield f"its events say {name} {one}, its row says {other}"


def _requests(read: ReadSession, check: _Check, kept: Conservation) -> None:
    requests = _Requests(read, check, kept)
    for facts in stored_facts(read):
        requests.take(facts)
    requests.compare()
    if sum(1 for _ in checks.request_ids(read)) != requests.count:
        for request_id in checks.request_ids(read):
            if not checks.has_events(read, request_id):
                check.say(f"request {request_id} has a row, but no event")
                kept.take(request_id, None, checks.known_requests(read, [request_id])[request_id])
    rows = count_attempts(read)
    if rows != requests.attempts:
        check.say(
            f"the table of attempts has {counted(rows, 'row')}, and {requests.attempts:,} of them"
            " are of a request with events; `tollbook rebuild` sets it right"
        )
    known = checks.reaches(read)
    for (source, topic), claimed in requests.claims.items():
        reached = known.get((source, topic))
        last = reached.last if reached is not None else 0
        if last < claimed:
            check.say(f"{source} wrote {topic} up to {claimed}, and only {last} came")


def _conserved(kept: Conservation, check: _Check) -> None:
    for words in kept.parted():
        check.say(words)
    check.looked_at(len(kept.cells))


def _usage(read: ReadSession, check: _Check) -> None:
    said = dict(checks.rolled_up(read))
    for cell, rolled in checks.added_up(read):
        check.looked_at(1)
        found = said.pop(cell, None)
        if found != rolled:
            check.say(
                f"usage_hourly has {found} at {cell}, and its requests add up to {rolled};"
                " `tollbook rebuild` sets it right"
            )
    for cell in said:
        check.say(f"usage_hourly has {cell}, in which no request counts")


def _chains(read: ReadSession, check: _Check) -> None:
    for words in chain_checks.parted(read, check.looked_at):
        check.say(words)


def _registry(read: ReadSession, check: _Check) -> None:
    stored, folded = checks.registry_rows(read)
    for name in sorted(stored.keys() | folded.keys()):
        check.looked_at(1)
        if stored.get(name) != folded.get(name):
            check.say(
                f"{name}: its events say {folded.get(name, 'nothing')}, its row says"
                f" {stored.get(name, 'nothing')}; `tollbook rebuild` sets it right"
            )


def _prices(read: ReadSession, check: _Check, notes: list[str]) -> None:
    for one in reratings(read):
        check.looked_at(1)
        notes.append(one.words)


def _months(read: ReadSession, check: _Check) -> None:
    book = load_book(read)
    for words in parted(read, book):
        check.say(words)
    if book.periods:
        check.looked_at(len(book.periods))


def _exports(
    read: ReadSession,
    exports: Iterable[tuple[Path, Manifest]],
    check: _Check,
    notes: list[str],
) -> None:
    for directory, manifest in exports:
        checked = check_export(read, directory, manifest)
        check.looked_at(1)
        for words in checked.differences:
            check.say(words)
        if checked.newer:
            notes.append(
                f"{counted(checked.newer, 'request')} of {manifest.month} ended after it was"
                " exported; export it again to take them in"
            )
        if checked.repriced:
            notes.append(
                f"{counted(checked.repriced, 'price')} of {manifest.month} came after it was"
                " exported, so its bill may be another; export it again to take them in"
            )


def _engines(read: ReadSession, check: _Check, notes: list[str]) -> None:
    """The engines' own counters, over the time that every source has told all of; and whether what
    is compared is what their readings say."""
    _readings(read, check)
    first, heard = first_reading(read), heard_until(read)
    if first is None or heard is None:
        return
    apart: datetime | None = None
    for window in settled(reconcile(read, first, heard), heard):
        check.looked_at(1)
        for side in window.sides:
            if side.beyond:
                check.say(finding(window, side))
                apart = window.end if apart is None else max(apart, window.end)
    for source, at in fell_silent(read):
        if apart is not None and at < apart:
            notes.append(
                f"{source} has told nothing since {at:%Y-%m-%dT%H:%M:%SZ} and is not closed: what"
                " it served at the end may not be here yet, and engines have counted it"
            )


def _readings(read: ReadSession, check: _Check) -> None:
    rows = 0
    for told in checks.told_counters(read):
        stored = checks.known_counters(read, told)
        rows += len(stored)
        for name, said in told.items():
            row = stored.get(name, {})
            for field, value in said.items():
                if row.get(field, "nothing") != value:
                    check.say(
                        f"the reading of {name[0]} at {from_us(name[1]):%Y-%m-%dT%H:%M:%SZ} by"
                        f" {name[2]}: its event says {field} {value}, its row says"
                        f" {row.get(field, 'nothing')}; `tollbook rebuild` sets it right"
                    )
                    break
    made_up = checks.count_counters(read) - rows
    if made_up:
        check.say(
            f"the table of engines' readings has {counted(rows + made_up, 'row')}, and {rows:,} of"
            " them have an event; `tollbook rebuild` sets it right"
        )
