"""What the records of one partition become: a batch for the ledger, and letters for what is none.

Pure: it reads no broker and writes no ledger.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from ledger.errors import EventError, UnknownEvent
from ledger.events import Event
from ledger.sql.writer import Batch, Poison, Said, said_by
from streams.errors import CodecError
from streams.kafka.letters import DeadLetter
from streams.kafka.records import event_of

ROLE = "writer"


class Taken(Protocol):
    """What is used of a client's record. `timestamp` is in milliseconds since 1970."""

    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Sequence[tuple[str, bytes]]: ...


class Partition(msgspec.Struct, frozen=True, order=True):
    """One partition: its topic's name on the broker, its number, and the events' name for it."""

    topic: str
    number: int
    name: str

    @property
    def log(self) -> str:
        """Its name in the ledger's positions."""
        return f"kafka:{self.topic}:{self.number}"


class Portion(msgspec.Struct, frozen=True):
    """Some records of one partition.

    `letters` are records that are no events, or whose data is not what their type says. `halt`
    says why the partition may not be read past this batch; null if it may. `timestamp` is that of
    the last record in milliseconds, null if there is none.
    """

    batch: Batch
    letters: list[DeadLetter]
    halt: str | None = None
    timestamp: int | None = None


def portion_of(partition: Partition, position: int, records: Iterable[Taken]) -> Portion:
    """The portion that begins at `position`; records before that are left out as read already."""
    events: list[Event] = []
    said: list[Said] = []
    poison: list[Poison] = []
    letters: list[DeadLetter] = []
    following, halt, timestamp = position, None, None
    for record in records:
        if record.offset < position:
            continue
        try:
            event = _event(partition, record)
        except CodecError as wrong:
            poison.append(Poison(record.offset, str(wrong), _kept(record)))
            letters.append(_letter(partition, record, str(wrong)))
        else:
            [payload] = said_by([event])
            if isinstance(payload, UnknownEvent):
                halt = (
                    f"{partition.log} at offset {record.offset}: {payload}; this partition is read "
                    "no further, nothing of it is lost, and the others are read on"
                )
                break
            if isinstance(payload, EventError):
                # The ledger sets it aside under its name; here it is to be found and sent again.
                letters.append(_letter(partition, record, str(payload)))
            events.append(event)
            said.append(payload)
        following, timestamp = record.offset + 1, record.timestamp
    batch = Batch(partition.log, position, following, events, poison, said)
    return Portion(batch, letters, halt, timestamp)


def _event(partition: Partition, record: Taken) -> Event:
    event = event_of(record.headers, record.value)
    if event.topic != partition.name:
        raise CodecError(
            f"{event.name} belongs to the topic {event.topic}, and stands in {partition.topic}"
        )
    return event


def _letter(partition: Partition, record: Taken, reason: str) -> DeadLetter:
    return DeadLetter(
        topic=partition.topic,
        partition=partition.number,
        offset=record.offset,
        reason=reason,
        by=ROLE,
        key=record.key,
        value=record.value,
        headers=list(record.headers),
    )


class _Kept(msgspec.Struct):
    headers: list[tuple[str, bytes]]
    key: bytes | None
    value: bytes | None


def _kept(record: Taken) -> bytes:
    """The whole record as JSON, its bytes in base64: what the ledger keeps of it."""
    return msgspec.json.encode(_Kept(list(record.headers), record.key, record.value))
