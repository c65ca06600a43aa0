"""Events of the price book. A price is never changed: a later one takes over at an instant."""

from typing import ClassVar

from ledger.events.envelope import Count, Instant, Number, Payload


class PricePublished(Payload, frozen=True, kw_only=True):
    """Prices of one model from an instant on, per bucket, for one million tokens.

    `per_million` maps a bucket to an exact decimal in text; a bucket that is missing has no price,
    which is shown as such and never taken as zero. `model` is a model's name, or `*` for every
    model that has no price of its own. `base` is the version of that model's prices that it was
    made from.
    """

    TYPE: ClassVar[str] = "tollbook.price.published.v1"
    TOPIC: ClassVar[str] = "registry"

    price_id: str
    model: str
    base: Count
    version: Number
    currency: str
    effective_from: Instant
    per_million: dict[str, str]
