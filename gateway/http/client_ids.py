"""What a client says of its own request: its id, and how often it has tried before."""

import hashlib
from collections.abc import Mapping
from typing import Final

ID_HEADERS: Final = (b"x-client-request-id", b"x-request-id", b"idempotency-key")
"""Where a client's id is looked for, in this order. The first is OpenAI's name for it; the last is
the one that stays the same when a client library tries again by itself."""

RETRY_HEADER: Final = b"x-stainless-retry-count"
"""Where the client libraries of OpenAI and Anthropic count their own retries, from 0."""

CLIENT_ID_BYTES_MAX: Final = 256
"""A longer id of a client is cut before it is given back."""

_RETRY_DIGITS_MAX: Final = 6
"""A longer number was not counted by a client: none tries a million times."""


def client_id_of(headers: Mapping[bytes, bytes]) -> bytes | None:
    """The client's own id of its request, as far as it is given back; an empty one is none."""
    for name in ID_HEADERS:
        if client_id := headers.get(name):
            return client_id[:CLIENT_ID_BYTES_MAX]
    return None


def client_request_of(client_id: bytes, hash_key: bytes) -> str:
    """A keyed hash of an id that a client gave, so that an event can name it."""
    cut = client_id[:CLIENT_ID_BYTES_MAX]
    return hashlib.blake2b(cut, key=hash_key, digest_size=16).hexdigest()


def client_retry_of(headers: Mapping[bytes, bytes]) -> int | None:
    """How often the client has tried this before; null if it does not say it as a plain number."""
    said = headers.get(RETRY_HEADER)
    if said is None or not said.isdigit() or len(said) > _RETRY_DIGITS_MAX:
        return None
    return int(said)
