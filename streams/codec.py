"""An event to bytes and back: one JSON object, the structured form of CloudEvents 1.0. Pure."""

from datetime import UTC, datetime

import msgspec

from ledger.events import Draft, Event, Payload
from streams.errors import CodecError


class _Record(msgspec.Struct, frozen=True):
    """The written form. The order of the fields is the order in the file."""

    specversion: str
    id: str
    source: str
    topic: str
    sequence: int
    type: str
    subject: str
    time: datetime
    recordedtime: datetime
    data: Payload


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Event)


def encode(draft: Draft, source: str, sequence: int, recorded: datetime) -> bytes:
    """The record of `draft` as `source` writes it. `recorded` is aware and UTC."""
    payload = draft.payload
    return _encoder.encode(
        _Record(
            "1.0",
            draft.id,
            source,
            payload.TOPIC,
            sequence,
            payload.TYPE,
            draft.subject,
            draft.time,
            recorded,
            payload,
        )
    )


def decode(record: bytes) -> Event:
    """The event in `record`. Its data stays as bytes, so that fields unknown here are kept.

    Raises `CodecError` for anything that is not a whole record; the payload is not looked at.
    """
    try:
        event = _decoder.decode(record)
        # The data is not parsed here, but the ledger keeps it as text: it must be UTF-8 too.
        str(record, "utf-8")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as wrong:
        raise CodecError(f"not an event record: {wrong}") from wrong
    if event.time.tzinfo is not UTC or event.recordedtime.tzinfo is not UTC:
        raise CodecError(f"not an event record: the times of {event.name} are not in UTC")
    return event


def decode_all(records: bytes) -> list[Event] | None:
    """The events of `records`, one to a line; null if one of them is not a whole record.

    What `decode` gives for each line, in half the time: there are thousands of them in one read.
    """
    try:
        str(records, "utf-8")
        events = list(map(_decoder.decode, records.split(b"\n")))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    for event in events:
        if event.time.tzinfo is not UTC or event.recordedtime.tzinfo is not UTC:
            return None
    return events
