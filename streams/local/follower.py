"""Takes one log from disk into the ledger, batch by batch, from where the ledger stands.

The ledger's position is moved in the transaction that writes the batch, so a crash at any point
repeats at most a batch that changes nothing. Where a log cannot be read on, that is said once in
words, kept in the ledger where something may be lost, and the log is left alone.
"""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from ledger.errors import EventError, UnknownEvent
from ledger.events import Event, same_fact
from ledger.sql.replay import registry_facts
from ledger.sql.session import Ledger
from ledger.sql.writer import Batch, LedgerWriter, Poison, Said, said_by
from ledger.words import counted
from streams.adoption import SpoolLife
from streams.local.layout import REGISTRY_LOG_NAME, log_name
from streams.local.process import Once, Say, against
from streams.local.spools import ConsumedMark
from streams.log.reader import Chunk, SpoolReader
from streams.log.registry import read_registry
from streams.log.spool import ADOPTED, segment_name

BATCH_EVENTS_MAX: Final = 12_000
"""Events in one transaction: a quarter of a second of work, after which others get the ledger."""


class _Log:
    """What spools and the registry share: a batch into the ledger, and what cannot be read."""

    def __init__(self, name: str, writer: LedgerWriter, say: Say) -> None:
        self.name = name
        self._writer = writer
        self._say = say
        self.once = Once(say)
        self._stuck_at: int | None = None
        self.position = writer.position(name)

    def _write(self, chunk: Chunk, events: list[Event]) -> list[Said]:
        """Take `chunk`, read at our position, into the ledger; `events` are those to write.

        Returns what they say, or less where the log cannot be read on.
        """
        poison = [Poison(bad.offset, bad.reason, bad.record) for bad in chunk.poison]
        if poison:
            bad = counted(len(poison), "record is no event and is", "records are no events and are")
            self.once(
                f"{self.name}: {bad} set aside, the first at offset {poison[0].offset}: "
                f"{poison[0].reason}"
            )
        if chunk.missing is not None:
            words = (
                f"{self.name}: bytes {chunk.missing.start} to {chunk.missing.end} are gone from "
                "the disk, and this ledger had not taken them (an older copy was put back?); what "
                "they said is missing here"
            )
            self.once(words)
            poison.append(Poison(chunk.missing.start, words, b""))
        end = chunk.next_offset
        said: list[Said] = []
        while len(events) > BATCH_EVENTS_MAX:
            # The position stays: should we die in between, these come again as repetitions.
            said += self._batch(self.position, events[:BATCH_EVENTS_MAX], [])
            if self._stuck_at is not None:
                return said
            events = events[BATCH_EVENTS_MAX:]
        if chunk.broken is not None:
            self.once(f"{self.name}: {chunk.broken}")
            poison.append(Poison(end, str(chunk.broken), b""))
        return said + self._batch(end, events, poison)

    def _batch(self, next_offset: int, events: list[Event], poison: list[Poison]) -> list[Said]:
        if next_offset == self.position and not events and not poison:
            return []
        said = said_by(events)
        batch = Batch(self.name, self.position, next_offset, events, poison, said)
        try:
            written = self._writer.write(batch)
        except UnknownEvent as newer:
            self._stop_before(events, said, newer)
            return []
        if written.conflicts:
            self._say(
                f"{self.name}: up to {next_offset}, {against(written.conflicts)}, see `tollbook "
                "audit`"
            )
        self.position = next_offset
        return said

    def _stop_before(self, events: list[Event], said: list[Said], newer: UnknownEvent) -> None:
        """Write what comes before the first event of a newer version, and read no further."""
        count = next(n for n, payload in enumerate(said) if isinstance(payload, UnknownEvent))
        known = events[:count]
        self._stuck_at = self.position
        self.once(f"{self.name}: {newer}; it is read no further, nothing of it is lost")
        if known:
            self._writer.write(Batch(self.name, self.position, self.position, known))


class RegistryFollower(_Log):
    """The registry log. At the start it is read from its beginning, wherever the ledger stands.

    Unlike a spool it goes on growing after a data directory was put back to an older copy, and new
    events would then stand at offsets that the ledger believes to have read. Reading all again
    costs little: what `ledger` has already is left out.
    """

    def __init__(self, path: Path, ledger: Ledger, writer: LedgerWriter, say: Say) -> None:
        super().__init__(REGISTRY_LOG_NAME, writer, say)
        self._path = path
        self._ledger = ledger
        self._read_to: int | None = None
        self._seen: tuple[int, int, int] | None = None

    def pump(self) -> bool:
        """Take what is new. True if there was anything."""
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            return False
        seen = (status.st_ino, status.st_size, status.st_mtime_ns)
        if seen == self._seen or self._stuck_at is not None:
            return False
        start = self._read_to or 0
        chunk = read_registry(self._path, start)
        if chunk.behind:
            self.once(f"{self.name}: the log is shorter than it was; it is read anew")
            chunk = read_registry(self._path, 0)
        if self._read_to is None and self.position > chunk.next_offset:
            self.once(
                f"{self.name}: the ledger had read up to {self.position}, but the log ends at "
                f"{chunk.next_offset} (an older copy was put back?); all of it is read again"
            )
        events = chunk.events
        if self.position > (self._read_to or 0):
            events = self._unknown(events)
        self._write(chunk, events)
        self._read_to, self._seen = chunk.next_offset, seen
        return bool(events)

    def _unknown(self, events: list[Event]) -> list[Event]:
        """Those of `events` that the ledger does not hold exactly so, under the same name."""
        with self._ledger.read() as read:
            held = {
                (fact.event.source, fact.event.sequence): fact.event
                for run in registry_facts(read)
                for fact in run
            }
        unknown = []
        for event in events:
            known = held.get((event.source, event.sequence))
            if known is None or not same_fact(known, event):
                unknown.append(event)
        return unknown

    def _batch(self, next_offset: int, events: list[Event], poison: list[Poison]) -> list[Said]:
        # The ledger's position only ever goes forward; where we read is ours to remember.
        return super()._batch(max(next_offset, self.position), events, poison)


class Follower(_Log):
    """One spool. Besides writing it keeps `life`: what the spool leaves open if its writer dies.

    `open_in_ledger` gives the ids of the requests of a source that are open in the ledger. `seen`
    is told each event once the ledger has it, and some again after a restart.
    `behind`: the ledger has read more than there is. `forgot`: what the ledger has taken could not
    all be read again, so `life` may lack requests. `broken`: it cannot be read to its end.
    `failing`: the disk refused the last read; the owner sets and clears it.
    """

    def __init__(
        self,
        directory: Path,
        writer: LedgerWriter,
        say: Say,
        open_in_ledger: Callable[[str], Iterable[str]],
        seen: Callable[[Event, Said], None],
    ) -> None:
        super().__init__(log_name(directory), writer, say)
        self.directory = directory
        self._seen = seen
        self._open_in_ledger = open_in_ledger
        self.reader = SpoolReader(directory)
        self.life = SpoolLife()
        self.behind = self.forgot = self.broken = self.failing = False
        self._consumed = ConsumedMark(directory)
        if not (directory / ADOPTED).exists():
            self._recall()

    def pump(self) -> bool:
        """Take the next chunk. True if there was anything.

        Raises what the ledger raises; after `PositionMoved` this follower has missed what the
        other writer took, and a new one has to be made.
        """
        if self.halted:
            # Looking for whole records behind broken bytes is work; a restart looks again.
            return False
        start = self.position
        chunk = self.reader.read(start)
        self.broken = chunk.broken is not None
        if chunk.behind and not self.behind:
            self.behind = True
            self.once(
                f"{self.name}: the ledger has read up to {start}, but the spool ends before that "
                "(an older copy was put back?); what the ledger has stays, nothing is read again"
            )
        if chunk.empty and not self.broken and chunk.next_offset == start:
            self._tell_consumed()
            return False
        said = self._write(chunk, chunk.events)
        if self._stuck_at is not None:
            return False
        self._remember(chunk.events, said, start)
        self._tell_consumed()
        return self.position > start

    @property
    def halted(self) -> bool:
        """True if the spool cannot be read to its end: broken bytes, or a newer version's event."""
        return self.broken or self._stuck_at is not None

    def source(self) -> str | None:
        """The name of the writer, by its records or else by its file; null if neither tells."""
        return self.reader.told_source() if self.life.source is None else self.life.source

    def end(self) -> int:
        """The logical end of the spool on disk as it is now; 0 if the spool is gone."""
        return self.reader.end()

    def close(self) -> None:
        """Let go of the open files."""
        self.reader.close()
        self._consumed.close()

    def _recall(self) -> None:
        """Before the first pump: what the part that the ledger has already taken left open."""
        offset = self._recall_from()
        while offset < self.position:
            chunk = self.reader.read(offset)
            if chunk.next_offset == offset or chunk.missing is not None:
                # Broken or lost since the ledger took it: from here on only the ledger knows.
                self.forgot = True
                return
            self._remember(chunk.events, said_by(chunk.events), offset)
            offset = chunk.next_offset

    def _recall_from(self) -> int:
        """The start of the newest segment from which on all open requests are accepted.

        The ledger knows which are open. Looking for them from the newest segment on spares reading
        hundreds of megabytes that were consumed, at each start of a runner.
        """
        if self.position == 0:
            return 0
        segments = [s for s in self.reader.segments() if s.start < self.position]
        source = self.source()
        if source is None:
            return segments[0].start if segments else self.position
        wanted = {f'"id":"{name}/accepted"'.encode() for name in self._open_in_ledger(source)}
        start = self.position
        while wanted and segments:
            start = segments.pop().start
            data = (self.directory / segment_name(start)).read_bytes()
            wanted = {mark for mark in wanted if mark not in data}
        return start

    def _remember(self, events: list[Event], said: list[Said], offset: int) -> None:
        for event, payload in zip(events, said, strict=True):
            # The ledger sets others aside with a reason; they neither open nor end a request.
            if not isinstance(payload, EventError):
                self.life.take(event, payload, offset)
                self._seen(event, payload)

    def _tell_consumed(self) -> None:
        """Tell the spool's writer how far the ledger is; only after the ledger has committed."""
        if not self.behind:
            self._consumed.tell(self.position)
