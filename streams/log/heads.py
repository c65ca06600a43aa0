"""The heads of a spool's chains, made from its files when its writer is dead and cannot say them.

Reading begins at the writer's last mark, which told its heads: what is older need not be there.
"""

from collections.abc import Mapping
from typing import Final

from ledger.chain import START, UNCHAINED_TOPICS, link_event
from ledger.errors import EventError
from ledger.events import Event, SourceMark, payload_of
from streams.log.reader import SpoolReader
from streams.log.spool import segment_name

_MARK: Final = f'"type":"{SourceMark.TYPE}"'.encode()


def heads_of(reader: SpoolReader, source: str, last: Mapping[str, int]) -> dict[str, str] | None:
    """The head of each topic of `source` at `last`, 64 hex digits; without those topics whose files
    do not reach so far. Null if no head follows from what is left of the spool.

    Raises `OSError` for a disk that cannot be read.
    """
    start = _start(reader)
    if start is None:
        return None
    known = _Known(from_first=start == 0)
    while True:
        chunk = reader.read(start)
        if chunk.poison or chunk.missing is not None or chunk.broken is not None:
            return None
        for event in chunk.events:
            if event.source == source:
                known.take(event)
        if chunk.next_offset == start:
            break
        start = chunk.next_offset
    if known.heads is None:
        return None
    return {
        topic: head.hex()
        for topic, (sequence, head) in sorted(known.heads.items())
        if last.get(topic) == sequence
    }


def _start(reader: SpoolReader) -> int | None:
    """The start of the newest segment with a mark, or of the first; null if that is gone."""
    segments = reader.segments()
    for segment in reversed(segments):
        if segment.start == 0:
            return 0
        if _MARK in (reader.directory / segment_name(segment.start)).read_bytes():
            return segment.start
    return None


class _Known:
    """The heads so far, with their sequences; null until a mark tells what was before it."""

    def __init__(self, *, from_first: bool) -> None:
        self.heads: dict[str, tuple[int, bytes]] | None = {} if from_first else None

    def take(self, event: Event) -> None:
        if self.heads is None:
            self.heads = _told(event)
        if self.heads is None or event.topic in UNCHAINED_TOPICS:
            return
        sequence, head = self.heads.get(event.topic, (0, START))
        if event.sequence != sequence + 1:
            # What a source left out nobody can link: nothing is claimed of this topic.
            self.heads[event.topic] = -1, START
            return
        self.heads[event.topic] = (
            event.sequence,
            link_event(
                head,
                event.source,
                event.topic,
                event.sequence,
                event.id,
                event.type,
                event.subject,
                event.time,
                event.data,
            ),
        )


def _told(event: Event) -> dict[str, tuple[int, bytes]] | None:
    """What `event` tells of the heads before it, if it is a mark that does."""
    if event.type != SourceMark.TYPE:
        return None
    try:
        said = payload_of(event)
    except EventError:
        return None
    if not isinstance(said, SourceMark) or said.heads is None:
        return None
    return {
        topic: (said.last.get(topic, 0), bytes.fromhex(head)) for topic, head in said.heads.items()
    }
