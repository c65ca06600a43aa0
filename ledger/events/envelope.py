"""What every event carries around its payload, and what makes two events the same fact.

The attributes are those of CloudEvents 1.0; `topic` and `sequence` are extensions: `sequence`
counts from 1 within one source and topic, is never continued by another process and never reused.
"""

from datetime import datetime
from typing import Annotated, ClassVar

import msgspec

Instant = Annotated[datetime, msgspec.Meta(tz=True)]
"""A moment with its offset. A naive one in a record is refused when it is read."""

COUNT_MAX = 2**53 - 1
"""Every JSON reader and every column holds integers up to here exactly."""
Count = Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)]
Number = Annotated[int, msgspec.Meta(ge=1, le=COUNT_MAX)]
"""A count, and a number that starts at 1. The bounds are checked when a record is read."""


class Payload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of every payload type. Unknown fields are ignored here but kept in the stored bytes."""

    TYPE: ClassVar[str]
    TOPIC: ClassVar[str]


class Draft(msgspec.Struct, frozen=True):
    """A fact about to be appended: all but what the log adds (source, topic, sequence).

    `id` is deterministic (`<request id>/finished`), so that writing a fact twice is seen.
    `subject` is the API key's id for requests, the source's name for marks.
    """

    id: str
    subject: str
    time: datetime
    payload: Payload


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """An event as stored. `data` is the payload's JSON exactly as it was written.

    `time` is when it happened, `recordedtime` when the log took it; both are aware and UTC.
    """

    id: str
    source: str
    topic: str
    sequence: Number
    type: str
    subject: str
    time: Instant
    recordedtime: Instant
    data: msgspec.Raw

    @property
    def name(self) -> str:
        """`source:sequence`, the name under which exports and reports cite this event."""
        return f"{self.source}:{self.sequence}"


def same_fact(one: Event, other: Event) -> bool:
    """True if both say the same of the same thing, whoever carried them and when it was recorded.

    Two records with one `id` are a harmless repetition exactly if this holds.
    """
    return (
        one.id == other.id
        and one.type == other.type
        and one.subject == other.subject
        and one.time == other.time
        and bytes(one.data) == bytes(other.data)
    )
