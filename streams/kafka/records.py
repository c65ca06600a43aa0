"""An event to a Kafka record and back: CloudEvents 1.0 in binary mode. Pure.

The value is the event's data and nothing else; every attribute is a header `ce_…`. So a record
without a value is no event here: on a compacted topic it is a tombstone.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import msgspec

from ledger.events import Event
from streams.errors import CodecError
from streams.topics import TOPICS

Headers = list[tuple[str, bytes]]

CONTENT_TYPE = ("content-type", b"application/json")
SEQUENCE_DIGITS = 16
"""Sequences are written with leading zeros, as CloudEvents' sequence extension orders strings."""

_JSON_WHITESPACE = b" \t\n\r"


class Record(msgspec.Struct, frozen=True):
    """A record to be sent. `topic` is the event's own name for it, without an installation's
    prefix."""

    topic: str
    key: bytes
    value: bytes
    headers: Headers


def record_of(event: Event) -> Record:
    """The record that carries `event`."""
    spec = TOPICS[event.topic]
    key = event.source if spec.key == "source" else event.subject
    return Record(event.topic, key.encode(), bytes(event.data), headers_of(event, key))


def headers_of(event: Event, key: str) -> Headers:
    """The CloudEvents headers of `event`, whose record has the key `key`."""
    return [
        ("ce_specversion", b"1.0"),
        ("ce_id", event.id.encode()),
        ("ce_source", event.source.encode()),
        ("ce_type", event.type.encode()),
        ("ce_subject", event.subject.encode()),
        ("ce_time", _text(event.time)),
        ("ce_recordedtime", _text(event.recordedtime)),
        ("ce_topic", event.topic.encode()),
        ("ce_sequence", b"%0*d" % (SEQUENCE_DIGITS, event.sequence)),
        ("ce_partitionkey", key.encode()),
        CONTENT_TYPE,
    ]


def event_of(headers: Iterable[tuple[str, bytes]], value: bytes | None) -> Event:
    """The event in a record. Raises `CodecError` for anything that is not a whole event.

    Of a header that is there twice the last one stands. The data is not parsed, only held to be
    one JSON text in UTF-8.
    """
    if value is None:
        raise CodecError("not an event record: it has no value")
    said = dict(headers)
    if said.get("ce_specversion") != b"1.0":
        raise CodecError("not an event record: it has no header ce_specversion with 1.0")
    try:
        data = _data(value)
        return msgspec.convert(
            {
                "id": _header(said, "ce_id"),
                "source": _header(said, "ce_source"),
                "topic": _header(said, "ce_topic"),
                "sequence": _number(_header(said, "ce_sequence")),
                "type": _header(said, "ce_type"),
                "subject": _header(said, "ce_subject"),
                "time": _moment(_header(said, "ce_time")),
                "recordedtime": _moment(_header(said, "ce_recordedtime")),
                "data": data,
            },
            Event,
        )
    except (msgspec.ValidationError, msgspec.DecodeError, ValueError, RecursionError) as wrong:
        raise CodecError(f"not an event record: {wrong}") from wrong


def same_record(one: Sequence[tuple[str, bytes]], other: Sequence[tuple[str, bytes]]) -> bool:
    """True if both header lists say the same, in whatever order."""
    return sorted(one) == sorted(other)


def _text(moment: datetime) -> bytes:
    # Every event that was read is in UTC already; asking first is a tenth of the relay's work.
    said = (moment if moment.tzinfo is UTC else moment.astimezone(UTC)).isoformat()
    return said.removesuffix("+00:00").encode() + b"Z"


def _header(said: dict[str, bytes], name: str) -> str:
    value = said.get(name)
    if not value:
        raise ValueError(f"the header {name} is missing or empty")
    return value.decode()


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 2 * SEQUENCE_DIGITS:
        raise ValueError(f"ce_sequence is {text[:40]!r}, not a number")
    return int(text)


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.utcoffset() is None or moment.utcoffset():
        raise ValueError(f"the time {text} is not in UTC")
    return moment.astimezone(UTC)


def _data(value: bytes) -> msgspec.Raw:
    value.decode()
    # `Raw` is taken as it is; a whole decode is what finds half an object.
    msgspec.json.decode(value, type=msgspec.Raw)
    return msgspec.Raw(value)
