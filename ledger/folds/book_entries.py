"""The book of the registry as values by key, and back: what the compacted registry holds. Pure.

One entry is one key (`key/ID`), all prices of one model (`price/MODEL`) or one backend
(`backend/ID`), as JSON whose bytes follow from the book alone, so that a fold that is done again
writes nothing new. A field that is not known here is read over.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from ledger.errors import MalformedEvent
from ledger.folds.book import Book, Key, Server
from ledger.folds.prices import Price

KEY_PREFIX: Final = "key/"
PRICE_PREFIX: Final = "price/"
BACKEND_PREFIX: Final = "backend/"


class _Prices(msgspec.Struct, frozen=True):
    """All prices of one model, by version."""

    prices: tuple[Price, ...]


_encoder = msgspec.json.Encoder(order="deterministic")
_key_decoder = msgspec.json.Decoder(Key)
_prices_decoder = msgspec.json.Decoder(_Prices)
_server_decoder = msgspec.json.Decoder(Server)


def key_entry(key: Key) -> tuple[str, bytes]:
    """The entry of one key."""
    return KEY_PREFIX + key.key_id, _encoder.encode(key)


def price_entry(model: str, prices: Iterable[Price]) -> tuple[str, bytes]:
    """The entry of one model, whose prices are `prices` in any order."""
    ordered = tuple(sorted(prices, key=lambda price: price.version))
    return PRICE_PREFIX + model, _encoder.encode(_Prices(ordered))


def server_entry(server: Server) -> tuple[str, bytes]:
    """The entry of one backend."""
    return BACKEND_PREFIX + server.backend_id, _encoder.encode(server)


def entries_of(book: Book) -> dict[str, bytes]:
    """Every entry of `book`."""
    by_model: dict[str, list[Price]] = {}
    for price in book.prices:
        by_model.setdefault(price.model, []).append(price)
    entries = dict(key_entry(key) for key in book.keys.values())
    entries.update(price_entry(model, prices) for model, prices in by_model.items())
    entries.update(server_entry(server) for server in book.backends.values())
    return entries


def book_of(entries: Mapping[str, bytes]) -> Book:
    """The book that `entries` make; its prices stand by model and version, in no other order.

    Raises `MalformedEvent` for an entry that is none: a book that leaves one out could open a door
    that was closed.
    """
    pages = BookPages()
    for name, value in entries.items():
        pages.put(name, value)
    return pages.book()


class BookPages:
    """A book put together entry by entry. What is put under a name takes the place of what was."""

    def __init__(self) -> None:
        self._keys: dict[str, Key] = {}
        self._prices: dict[str, tuple[Price, ...]] = {}
        self._backends: dict[str, Server] = {}

    def put(self, name: str, value: bytes | None) -> None:
        """Take one entry; null removes it. Raises `MalformedEvent` and changes nothing."""
        try:
            if name.startswith(KEY_PREFIX):
                self._put_key(name, value)
            elif name.startswith(PRICE_PREFIX):
                self._put_prices(name, value)
            elif name.startswith(BACKEND_PREFIX):
                self._put_backend(name, value)
            else:
                raise MalformedEvent(f"{name!r} is no entry of a book; is this the right topic?")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as wrong:
            raise MalformedEvent(f"the entry {name} of the book cannot be read: {wrong}") from wrong

    def book(self) -> Book:
        """The book of all that was put; what is put later does not change it."""
        keys = dict(self._keys)
        return Book(
            keys=keys,
            by_hash={key.hash: key for key in keys.values()},
            prices=tuple(price for model in sorted(self._prices) for price in self._prices[model]),
            backends=dict(self._backends),
        )

    def _put_key(self, name: str, value: bytes | None) -> None:
        key_id = name.removeprefix(KEY_PREFIX)
        if value is None:
            self._keys.pop(key_id, None)
            return
        key = _key_decoder.decode(value)
        if key.key_id != key_id:
            raise MalformedEvent(f"the entry {name} of the book holds the key {key.key_id}")
        self._keys[key_id] = key

    def _put_prices(self, name: str, value: bytes | None) -> None:
        model = name.removeprefix(PRICE_PREFIX)
        if value is None:
            self._prices.pop(model, None)
            return
        prices = _prices_decoder.decode(value).prices
        if any(price.model != model for price in prices):
            raise MalformedEvent(f"the entry {name} of the book holds prices of another model")
        self._prices[model] = prices

    def _put_backend(self, name: str, value: bytes | None) -> None:
        backend_id = name.removeprefix(BACKEND_PREFIX)
        if value is None:
            self._backends.pop(backend_id, None)
            return
        server = _server_decoder.decode(value)
        if server.backend_id != backend_id:
            raise MalformedEvent(f"the entry {name} of the book holds backend {server.backend_id}")
        self._backends[backend_id] = server
