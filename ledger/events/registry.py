"""Type name to payload class: exhaustive, and the only place that decodes a payload."""

from typing import Final

import msgspec

from ledger.errors import EventError, MalformedEvent, UnknownEvent
from ledger.events.access import KeyIssued, KeyRevoked
from ledger.events.backends import BackendObserved
from ledger.events.envelope import Event, Payload
from ledger.events.prices import PricePublished
from ledger.events.requests import (
    RequestAbandoned,
    RequestAccepted,
    RequestAttempted,
    RequestFinished,
    RequestRejected,
    TokensDelivered,
)
from ledger.events.sources import SourceClosed, SourceMark

_CLASSES: Final = (
    RequestAccepted,
    RequestAttempted,
    RequestRejected,
    TokensDelivered,
    RequestFinished,
    RequestAbandoned,
    SourceMark,
    SourceClosed,
    BackendObserved,
    KeyIssued,
    KeyRevoked,
    PricePublished,
)

PAYLOADS: Final[dict[str, type[Payload]]] = {cls.TYPE: cls for cls in _CLASSES}
"""Every event type that this version reads and writes."""

_DECODERS: Final = {name: msgspec.json.Decoder(cls) for name, cls in PAYLOADS.items()}


def type_of(name: str) -> type[Payload]:
    """The payload class of type `name`. Raises `UnknownEvent` for a type of a newer version."""
    found = PAYLOADS.get(name)
    if found is None:
        raise _unknown(name)
    return found


def payload_of(event: Event) -> Payload:
    """The typed payload of `event`.

    Raises `UnknownEvent` for a newer type, `MalformedEvent` if the data does not fit its type.
    """
    decoder = _DECODERS.get(event.type)
    if decoder is None:
        raise _unknown(event.type)
    try:
        return decoder.decode(event.data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, EventError) as wrong:
        raise MalformedEvent(f"{event.name} ({event.type}): {wrong}") from wrong


def _unknown(name: str) -> UnknownEvent:
    return UnknownEvent(
        f"event type {name!r} is not known to this version of Tollbook; upgrade this reader"
    )
