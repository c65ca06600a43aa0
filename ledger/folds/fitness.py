"""What may not count although it can be read: the rules that every reader of events shares. Pure.

Ledger writer and worker ask the same functions, so that the ledger and the live totals of a key
agree on what is set aside.
"""

from datetime import UTC, datetime
from functools import cache
from typing import get_args, get_type_hints

import msgspec

from ledger.events import Event, Payload
from ledger.folds.requests import REQUEST_TYPES

NUL = "\0"
"""The one character that Postgres keeps in no text; SQLite is held to the same."""

NAME_BYTES_MAX = 1000
"""The longest name that keys a row: two and a number fit an index entry of Postgres, which ends at
2,704 bytes. A record with a longer one would fail the transaction of everybody's records."""

_KEYED = (
    "request_id",
    "key_id",
    "model",
    "backend_id",
    "client_request",
    "price_id",
    "closed_source",
    "abandoned_source",
)
"""What of payloads keys a row of some projection, or stands in an index."""


def nameless(event: Event) -> str | None:
    """Why `event` cannot be stored under its name; null if it can."""
    if NUL in f"{event.id}{event.source}{event.subject}{event.topic}{event.type}":
        return "its envelope holds a NUL, which no text has"
    if len(event.id) + len(event.source) <= NAME_BYTES_MAX // 4:
        return None
    for name, text in (("id", event.id), ("source", event.source)):
        if too_long(text):
            return f"its {name} is longer than the {NAME_BYTES_MAX} bytes that a name may have"
    return None


def too_long(text: str) -> bool:
    return len(text.encode()) > NAME_BYTES_MAX


def unfit(event: Event, payload: Payload) -> str | None:
    """Why an event that decodes can still not count; null if it can."""
    data = bytes(event.data)
    # In JSON a NUL is always written so; in the data itself it harms nothing. One byte is found ten
    # times faster than six, and most data has none.
    if b"\\" in data and b"\\u0000" in data:
        for name, value in msgspec.structs.asdict(payload).items():
            if isinstance(value, str) and NUL in value:
                return f"its {name} holds a NUL, which no text has"
    if len(data) > NAME_BYTES_MAX:
        for name in _KEYED:
            text = getattr(payload, name, None)
            if text is not None and too_long(text):
                return f"its {name} is longer than the {NAME_BYTES_MAX} bytes that a name may have"
    for name in moments(type(payload)):
        moment = getattr(payload, name)
        # Only at the ends of time can a moment with an offset have no time in UTC.
        if moment is not None and not 1 < moment.year < 9999 and not _in_time(moment):
            return f"its {name} is before the year 1 or behind the year 9999 in UTC"
    if event.topic != payload.TOPIC:
        return f"{event.type} belongs to the topic {payload.TOPIC}, not {event.topic}"
    if isinstance(payload, REQUEST_TYPES) and not event.id.startswith(payload.request_id + "/"):
        # The audit finds the events of one request side by side by their ids.
        return f"the id {event.id} does not begin with its request's, {payload.request_id}/"
    return None


@cache
def moments(of: type[Payload]) -> tuple[str, ...]:
    """The fields of a payload that are moments."""
    hints = get_type_hints(of)
    names = (field.name for field in msgspec.structs.fields(of))
    return tuple(name for name in names if datetime in (hints[name], *get_args(hints[name])))


def _in_time(moment: datetime) -> bool:
    try:
        moment.astimezone(UTC)
    except OverflowError:
        return False
    return True
