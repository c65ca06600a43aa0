"""Events of money and of the books: price lists, accounts, credits, closed months, corrections.

All of them stand in the registry log, whose one order settles what came first. Amounts and prices
are exact decimals in text. Names of people and things are in none of them.
"""

from typing import Annotated, ClassVar, Literal

import msgspec

from ledger.events.envelope import Count, Instant, Number, Payload
from ledger.events.usage import Usage

Minute = Annotated[int, msgspec.Meta(ge=0, le=1440)]
Weekday = Annotated[int, msgspec.Meta(ge=1, le=7)]
Rounding = Literal["half_even", "half_up", "down"]
PostingKind = Literal["grant", "top_up", "adjustment", "refund", "budget"]


class Band(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Other prices on some weekdays (1 is Monday) from `start` to `end`, minutes of the local day,
    half open; `end` is after `start`. What `per_unit` does not name keeps its usual price."""

    name: str
    days: list[Weekday]
    start: Minute
    end: Minute
    per_unit: dict[str, str]


class PriceEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The prices of one model, or of all whose names match a pattern, from an instant on.

    `model` is a name, or a pattern whose last character is `*`. `per_unit` maps a token bucket to
    the price of `unit` tokens, and a charge (`request`, `gpu_second`, `failed_attempt`) to the
    price of one. `scope` is `key/ID` or `project/ID` for an override, null for everybody.
    `discount` is percent, at most two decimals, off the price that holds without this entry; an
    entry has that or prices. `bands` are told by the clock of `zone`.
    """

    price_id: str
    model: str
    currency: str
    effective_from: Instant
    unit: Literal[1, 1000, 1_000_000] = 1_000_000
    per_unit: dict[str, str] = msgspec.field(default_factory=dict)
    scope: str | None = None
    discount: str | None = None
    zone: str | None = None
    bands: list[Band] = msgspec.field(default_factory=list)


class PriceListed(Payload, frozen=True, kw_only=True):
    """Price entries that begin to stand together, all or none. `base` counts the prices that the
    registry had. `rerate` is the reason why some may begin earlier than a minute from now."""

    TYPE: ClassVar[str] = "tollbook.price.listed.v1"
    TOPIC: ClassVar[str] = "registry"

    base: Count
    entries: list[PriceEntry]
    rerate: str | None = None


class BooksSet(Payload, frozen=True, kw_only=True):
    """How the books are kept, in their whole new state: months begin and end in `zone`, a zone's
    name; an invoice is rounded once, by `rounding`."""

    TYPE: ClassVar[str] = "tollbook.books.set.v1"
    TOPIC: ClassVar[str] = "registry"

    base: Count
    version: Number
    zone: str
    rounding: Rounding = "half_even"
    issuer: str | None = None


class OrganizationSet(Payload, frozen=True, kw_only=True):
    """An organization, which pays, in its whole new state."""

    TYPE: ClassVar[str] = "tollbook.organization.set.v1"
    TOPIC: ClassVar[str] = "registry"

    organization_id: str
    base: Count
    version: Number
    tags: dict[str, str] = msgspec.field(default_factory=dict)
    closed: bool = False


class ProjectSet(Payload, frozen=True, kw_only=True):
    """A project of an organization, in its whole new state; it never changes its organization."""

    TYPE: ClassVar[str] = "tollbook.project.set.v1"
    TOPIC: ClassVar[str] = "registry"

    project_id: str
    organization_id: str
    base: Count
    version: Number
    tags: dict[str, str] = msgspec.field(default_factory=dict)
    closed: bool = False


class KeyAssigned(Payload, frozen=True, kw_only=True):
    """From the time of this event on, what the key uses belongs to `project_id` (null: to none).
    What it used before stays where it was. `base` counts the assignments of the key before."""

    TYPE: ClassVar[str] = "tollbook.key.assigned.v1"
    TOPIC: ClassVar[str] = "registry"

    key_id: str
    project_id: str | None
    base: Count
    version: Number
    tags: dict[str, str] = msgspec.field(default_factory=dict)


class Posting(msgspec.Struct, frozen=True, kw_only=True):
    """One side of a movement of money. `amount` is a signed exact decimal; what an account gets is
    above zero."""

    account: str
    currency: str
    amount: str


class CreditPosted(Payload, frozen=True, kw_only=True):
    """A movement of money, never changed and never taken back but by another one. Its postings add
    up to zero in each currency."""

    TYPE: ClassVar[str] = "tollbook.credit.posted.v1"
    TOPIC: ClassVar[str] = "registry"

    entry_id: str
    kind: PostingKind
    postings: list[Posting]
    reason: str
    effective_from: Instant


class Without(msgspec.Struct, frozen=True, kw_only=True):
    """A source that a month was closed without, and why."""

    source: str
    reason: str


class PeriodClosed(Payload, frozen=True, kw_only=True):
    """A month is closed: an event counts in it exactly if it is within `cut`.

    `month` is `2026-11` in `zone`, from `start` up to, not including, `end`. `cut` maps a source to
    its last sequence of each topic. `prices` counts the prices of the registry that hold for it,
    `corrections` those of requests that were made before it. `totals` maps a currency to an exact
    decimal, `tokens` a bucket to a count; `requests` were billed, `unpriced` of them have tokens
    without a price (older versions counted only those that had no price at all), and `open` had no
    end yet. `lines` is the hash of its bill, `root` that of the chains' heads at the cut. `base`
    counts the months closed before.
    """

    TYPE: ClassVar[str] = "tollbook.period.closed.v1"
    TOPIC: ClassVar[str] = "registry"

    month: str
    zone: str
    start: Instant
    end: Instant
    base: Count
    version: Number
    prices: Count
    corrections: Count = 0
    cut: dict[str, dict[str, Count]]
    requests: Count
    open: Count
    unpriced: Count
    tokens: dict[str, Count]
    totals: dict[str, str]
    lines: str
    root: str
    tzdata: str
    without: list[Without] = msgspec.field(default_factory=list)


class UsageCorrected(Payload, frozen=True, kw_only=True):
    """A person says what a request really used; it lands in the open month as a line of its own.

    `original` names the event that ended the request, `source:sequence`. `usage` null: it counts
    as nothing at all. `base` counts the corrections of this request before.
    """

    TYPE: ClassVar[str] = "tollbook.usage.corrected.v1"
    TOPIC: ClassVar[str] = "registry"

    correction_id: str
    request_id: str
    original: str
    base: Count
    version: Number
    reason: str
    usage: Usage | None = None
