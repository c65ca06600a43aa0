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

    Both runners and every command call this, so all of them agree on what was refused.
    """
    match payload:
        case KeyIssued() | KeyRevoked():
            return _key(book, event, payload)
        case PricePublished():
            return _price(book, payload)
        case _:
            return Refused(f"{event.type} does not belong into the registry log")


def _key(book: Book, event: Event, said: KeyIssued | KeyRevoked) -> Book | Refused:
    old = book.keys.get(said.key_id)
    current = old.version if old else 0
    if said.base != current or said.version != current + 1:
        return Refused(
            f"key {said.key_id} is at version {current} by now, and this change was made from "
            f"version {said.base}; look at it again and repeat the command"
        )
    other = book.by_hash.get(said.hash)
    if other is not None and other.key_id != said.key_id:
        return Refused(f"the secret of key {said.key_id} is already that of key {other.key_id}")
    key = Key(
        key_id=said.key_id,
        version=said.version,
        hash=said.hash,
        issued_at=old.issued_at if old else event.time,
        models=None if said.models is None else tuple(said.models),
        revoked_at=said.revoked_at if isinstance(said, KeyRevoked) else None,
    )
    # A secret that the key had before opens nothing any more.
    by_hash = dict(book.by_hash)
    if old is not None:
        by_hash.pop(old.hash, None)
    return msgspec.structs.replace(
        book,
        keys={**book.keys, key.key_id: key},
        by_hash=by_hash | {key.hash: key},
    )


def _price(book: Book, said: PricePublished) -> Book | Refused:
    current = max((p.version for p in book.prices if p.model == said.model), default=0)
    if said.base != current or said.version != current + 1:
        return Refused(
            f"the prices of {said.model} are at version {current} by now, and this change was made "
            f"from version {said.base}; list them again and repeat the command"
        )
    strangers = sorted(set(said.per_million) - set(BUCKETS))
    if strangers:
        return Refused(f"{', '.join(strangers)}: no such token bucket; it is one of {BUCKETS}")
    try:
        pico = {bucket: pico_per_token(text) for bucket, text in said.per_million.items()}
    except AmountError as wrong:
        return Refused(str(wrong))
    price = Price(
        price_id=said.price_id,
        model=said.model,
        version=said.version,
        currency=said.currency,
        effective_from=said.effective_from,
        pico=pico,
    )
    return msgspec.structs.replace(book, prices=(*book.prices, price))


def price_at(book: Book, model: str, moment: datetime) -> Price | None:
    """The price of `model` at `moment`: the latest that had begun; of its own before that of `*`.

    Two prices for one instant have an order: the higher version stands.
    """
    for name in (model, "*"):
        begun = [p for p in book.prices if p.model == name and p.effective_from <= moment]
        if begun:
            return max(begun, key=lambda p: (p.effective_from, p.version))
    return None
