"""One spool as the relay sees it: what is to be sent next, and what is kept once it is acked."""

from pathlib import Path

import msgspec

from ledger.errors import EventError, UnknownEvent
from ledger.events import Event, payload_of
from streams.kafka.relay import cursor
from streams.local.process import Once, Say
from streams.local.spools import ConsumedMark
from streams.log.reader import Chunk, SpoolReader
from streams.topics import EVENT_TOPICS


class Parcel(msgspec.Struct, frozen=True):
    """What was read of one spool from `start` on, and is to be sent before the spool goes on."""

    outbox: "Outbox"
    start: int
    chunk: Chunk
    events: list[Event]
    """Those of the chunk that may go; fewer only where the rest needs a newer relay."""
    next_offset: int


class Outbox:
    """A spool with its cursor. Reading gives a `Parcel`; `took` moves on behind one that is acked.

    `behind`: more was relayed than there is. `broken`: it cannot be read to its end. `unknown`: it
    holds an event of a newer version, so nobody may say what it left open. `failing`: the disk
    refused; the owner sets and clears it. `kept`: how much of `position` is written down.
    """

    def __init__(self, directory: Path, say: Say) -> None:
        self.directory = directory
        self.name = f"spool/{directory.name}"
        self.reader = SpoolReader(directory)
        self.once = Once(say)
        known = cursor.load(directory)
        self.life = cursor.life_of(known or cursor.Cursor())
        self.position = known.position if known is not None else self._first()
        self.kept = self.position
        self.behind = self.broken = self.unknown = self.failing = False
        self._stuck = False
        self._consumed = ConsumedMark(directory)

    def read(self) -> Parcel | None:
        """What comes next; null if there is nothing. Raises `OSError` if the disk fails."""
        if self.kept < self.position:
            self._keep()
        if self.halted:
            return None
        chunk = self.reader.read(self.position)
        self.broken = chunk.broken is not None
        if chunk.broken is not None:
            self.once(f"{self.name}: {chunk.broken}")
        if chunk.behind and not self.behind:
            self.behind = True
            self.once(
                f"{self.name}: relayed up to {self.position}, but the spool ends before that (a "
                "power cut took the rest?); Kafka has it"
            )
        if chunk.empty and chunk.next_offset == self.position:
            self._tell_consumed()
            return None
        events, end = self._known(chunk)
        if not events and end == self.position:
            return None
        return Parcel(self, self.position, chunk, events, end)

    def took(self, parcel: Parcel) -> None:
        """Go on behind `parcel`: every record of it is acked, or set aside. Raises `OSError`."""
        for event in parcel.events:
            try:
                self.life.take(event, payload_of(event), parcel.start)
            except UnknownEvent as newer:
                self.unknown = True
                self.once(f"{self.name}: {newer}; it is relayed all the same")
            except EventError:
                # The ledger sets it aside with a reason; it neither opens nor ends a request.
                continue
        if parcel.next_offset == self.position:
            self._stuck = True
            return
        # Kafka has it, whether the disk takes the cursor or not: it is not to be sent once more.
        self.position = parcel.next_offset
        self._keep()

    @property
    def halted(self) -> bool:
        """True if the spool cannot be relayed to its end."""
        return self.broken or self._stuck

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

    def _first(self) -> int:
        """Without a cursor: the oldest byte that is still there."""
        segments = self.reader.segments()
        return segments[0].start if segments else 0

    def _known(self, chunk: Chunk) -> tuple[list[Event], int]:
        """The events that have a topic here, and the offset behind them."""
        for number, event in enumerate(chunk.events):
            if event.topic not in EVENT_TOPICS:
                self.once(
                    f"{self.name}: {event.name} belongs to the topic {event.topic}, which this "
                    "version does not know; upgrade it. The spool is relayed no further, nothing "
                    "of it is lost"
                )
                return chunk.events[:number], self.position
        return chunk.events, chunk.next_offset

    def _keep(self) -> None:
        """Write down how far Kafka has this spool. Raises `OSError`; then nothing more of it goes
        out until that is written."""
        cursor.save(self.directory, cursor.cursor_of(self.position, self.life))
        self.kept = self.position
        self._tell_consumed()

    def _tell_consumed(self) -> None:
        """Tell the spool's writer how far Kafka is; only after the acks."""
        if not self.behind:
            self._consumed.tell(self.position)
