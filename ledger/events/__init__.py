"""The public vocabulary: every fact that Tollbook records. Pure; read it whole before adding."""

from ledger.events.access import KeyIssued, KeyRevoked
from ledger.events.backends import (
    BackendChanged,
    BackendCounted,
    BackendObserved,
    BackendRegistered,
    BackendRemoved,
    BreakerState,
)
from ledger.events.envelope import Draft, Event, Payload, same_fact
from ledger.events.money import (
    Band,
    BooksSet,
    CreditPosted,
    KeyAssigned,
    OrganizationSet,
    PeriodClosed,
    Posting,
    PriceEntry,
    PriceListed,
    ProjectSet,
    UsageCorrected,
    Without,
)
from ledger.events.prices import PricePublished
from ledger.events.registry import PAYLOADS, payload_of, type_of
from ledger.events.requests import (
    RequestAbandoned,
    RequestAccepted,
    RequestAttempted,
    RequestFinished,
    RequestRejected,
    TokensDelivered,
)
from ledger.events.sources import SourceClosed, SourceMark
from ledger.events.usage import BUCKETS, Basis, Usage

__all__ = [
    "BUCKETS",
    "PAYLOADS",
    "BackendChanged",
    "BackendCounted",
    "BackendObserved",
    "BackendRegistered",
    "BackendRemoved",
    "Band",
    "Basis",
    "BooksSet",
    "BreakerState",
    "CreditPosted",
    "Draft",
    "Event",
    "KeyAssigned",
    "KeyIssued",
    "KeyRevoked",
    "OrganizationSet",
    "Payload",
    "PeriodClosed",
    "Posting",
    "PriceEntry",
    "PriceListed",
    "PricePublished",
    "ProjectSet",
    "RequestAbandoned",
    "RequestAccepted",
    "RequestAttempted",
    "RequestFinished",
    "RequestRejected",
    "SourceClosed",
    "SourceMark",
    "TokensDelivered",
    "Usage",
    "UsageCorrected",
    "Without",
    "payload_of",
    "same_fact",
    "type_of",
]
