"""The registry: keys and prices, folded from one ordered log. Pure.

Each event carries the whole new state and the version it was made from. The fold refuses an event
made from an old version, so of two commands that raced exactly one wins and the other learns why.
"""

from collections.abc import Mapping
from datetime import datetime

import msgspec

from ledger.amounts import pico_per_token
from ledger.errors import AmountError
from ledger.events import (
    BUCKETS,
    Event,
    KeyIssued,
    KeyRevoked,
    Payload,
    PricePublished,
)


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """One API key. `models` null means every model served; `revoked_at` null means it opens."""

    key_id: str
    version: int
    hash: str
    issued_at: datetime
    models: tuple[str, ...] | None = None
    revoked_at: datetime | None = None


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """One published price: pico per token by bucket, from an instant on."""

    price_id: str
    model: str
    version: int
    currency: str
    effective_from: datetime
    pico: Mapping[str, int]


class Book(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the registry says, at one point of its log."""

    keys: Mapping[str, Key] = {}
    by_hash: Mapping[str, Key] = {}
    prices: tuple[Price, ...] = ()


class Refused(msgspec.Struct, frozen=True):
    """Why the fold did not take an event. The book stays as it was."""

    reason: str


def fold_book(book: Book, event: Event, payload: Payload) -> Book | Refused:
    """`book` advanced by one event of the registry log, or why that event does not count.

    Both runners and every command fold so, here or by `BookFold`, so all of them agree on what was
    refused.
    """
    fold = BookFold(book)
    refused = fold.take(event, payload)
    return fold.book() if refused is None else refused


class BookFold:
    """`fold_book` for many events: it copies the book once, and not once for each event.

    Measured on 5,000 keys: 0.04 s, and 0.6 s with a copy for each, growing with its square.
    """

    def __init__(self, book: Book) -> None:
        self._keys = dict(book.keys)
        self._by_hash = dict(book.by_hash)
        self._prices = list(book.prices)
        self._versions: dict[str, int] = {}
        for price in book.prices:
            self._versions[price.model] = max(price.version, self._versions.get(price.model, 0))

    def take(self, event: Event, payload: Payload) -> Refused | None:
        """Go on by one event; if it is refused, everything stays as it was."""
        match payload:
            case KeyIssued() | KeyRevoked():
                return self._key(event, payload)
            case PricePublished():
                return self._price(payload)
            case _:
                return Refused(f"{event.type} does not belong into the registry log")

    def book(self) -> Book:
        """The book after all that was taken; what is taken later does not change it."""
        return Book(keys=dict(self._keys), by_hash=dict(self._by_hash), prices=tuple(self._prices))

    def _key(self, event: Event, said: KeyIssued | KeyRevoked) -> Refused | None:
        old = self._keys.get(said.key_id)
        current = old.version if old else 0
        if said.base != current or said.version != current + 1:
            return Refused(
                f"key {said.key_id} is at version {current} by now, and this change was made from "
                f"version {said.base}; look at it again and repeat the command"
            )
        other = self._by_hash.get(said.hash)
        if other is not None and other.key_id != said.key_id:
            return Refused(f"the secret of key {said.key_id} is already that of key {other.key_id}")
        if old is not None:
            # A secret that the key had before opens nothing any more.
            self._by_hash.pop(old.hash, None)
        self._keys[said.key_id] = self._by_hash[said.hash] = Key(
            key_id=said.key_id,
            version=said.version,
            hash=said.hash,
            issued_at=old.issued_at if old else event.time,
            models=None if said.models is None else tuple(said.models),
            revoked_at=said.revoked_at if isinstance(said, KeyRevoked) else None,
        )
        return None

    def _price(self, said: PricePublished) -> Refused | None:
        current = self._versions.get(said.model, 0)
        if said.base != current or said.version != current + 1:
            return Refused(
                f"the prices of {said.model} are at version {current} by now, and this change was "
                f"made from version {said.base}; list them again and repeat the command"
            )
        strangers = sorted(set(said.per_million) - set(BUCKETS))
        if strangers:
            return Refused(f"{', '.join(strangers)}: no such token bucket; it is one of {BUCKETS}")
        try:
            pico = {bucket: pico_per_token(text) for bucket, text in said.per_million.items()}
        except AmountError as wrong:
            return Refused(str(wrong))
        self._versions[said.model] = said.version
        self._prices.append(
            Price(
                price_id=said.price_id,
                model=said.model,
                version=said.version,
                currency=said.currency,
                effective_from=said.effective_from,
                pico=pico,
            )
        )
        return None


def price_at(book: Book, model: str, moment: datetime) -> Price | None:
    """The price of `model` at `moment`: the latest that had begun; of its own before that of `*`.

    Two prices for one instant have an order: the higher version stands.
    """
    for name in (model, "*"):
        begun = [p for p in book.prices if p.model == name and p.effective_from <= moment]
        if begun:
            return max(begun, key=lambda p: (p.effective_from, p.version))
    return None
