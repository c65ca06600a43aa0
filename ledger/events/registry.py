"""Type name to payload class: exhaustive, and the only place that decodes a payload."""

from collections.abc import Callable
from typing import Final

import msgspec

from ledger.errors import EventError, MalformedEvent, UnknownEvent
from ledger.events.access import KeyIssued, KeyRevoked
from ledger.events.backends import (
    BackendChanged,
    BackendCounted,
    BackendObserved,
    BackendRegistered,
    BackendRemoved,
)
from ledger.events.envelope import Event, Payload
from ledger.events.money import (
    BooksSet,
    CreditPosted,
    KeyAssigned,
    OrganizationSet,
    PeriodClosed,
    PriceListed,
    ProjectSet,
    UsageCorrected,
)
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
    BackendCounted,
    BackendRegistered,
    BackendChanged,
    BackendRemoved,
    KeyIssued,
    KeyRevoked,
    PricePublished,
    PriceListed,
    BooksSet,
    OrganizationSet,
    ProjectSet,
    KeyAssigned,
    CreditPosted,
    PeriodClosed,
    UsageCorrected,
)

PAYLOADS: Final[dict[str, type[Payload]]] = {cls.TYPE: cls for cls in _CLASSES}
"""Every event type that this version reads and writes."""

Upcast = Callable[[bytes], tuple[str, bytes]]

UPCASTERS: Final[dict[str, Upcast]] = {}
"""An older type to what makes its data that of a newer one: the newer type, and the new data.

Stored events are never rewritten; each read goes through here, step by step, so a fold knows only
the newest version. A step raises `EventError` for data that does not fit. Every type is still at
its first version, so there is no step yet.
"""

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
    name: str = event.type
    data: bytes | msgspec.Raw = event.data
    try:
        while name in UPCASTERS:
            name, data = UPCASTERS[name](bytes(data))
        decoder = _DECODERS.get(name)
        if decoder is not None:
            return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, EventError) as wrong:
        raise MalformedEvent(f"{event.name} ({event.type}): {wrong}") from wrong
    raise _unknown(event.type)


def _unknown(name: str) -> UnknownEvent:
    return UnknownEvent(
        f"event type {name!r} is not known to this version of Tollbook; upgrade this reader"
    )
