"""Who may do what: from a bearer token to a key, from a key to the models it may call. Pure.

Listing and calling ask the same function, so a model that is listed can be called.
"""

from collections.abc import Iterable, Mapping

from gateway.errors import Forbidden, NotFound, Unauthorized
from ledger.folds.book import Book, Key

_BEARER = b"Bearer "


def secret_of(headers: Mapping[bytes, bytes]) -> bytes:
    """The secret in the headers of a request: a bearer token, as OpenAI's clients send it, or
    `x-api-key`, as Anthropic's do. Where both are given the bearer token counts.

    Raises `Unauthorized` that says how to send it.
    """
    try:
        return bearer_of(headers.get(b"authorization"))
    except Unauthorized:
        if api_key := headers.get(b"x-api-key", b"").strip():
            return api_key
        raise


def bearer_of(authorization: bytes | None) -> bytes:
    """The secret in an `Authorization` header. Raises `Unauthorized` that says how to send it."""
    if authorization is None:
        raise Unauthorized(
            "No API key was given. Send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'; "
            "whoever runs this gateway makes one with 'tollbook keys create'.",
            code="missing_api_key",
        )
    if authorization[:7].lower() != b"bearer " or len(authorization) <= len(_BEARER):
        raise Unauthorized("The Authorization header must have the form 'Bearer KEY'.")
    return authorization[7:].strip()


def key_of(book: Book, hashed: str) -> Key:
    """The key whose secret has the SHA-256 `hashed`. Raises `Unauthorized`."""
    key = book.by_hash.get(hashed)
    if key is None:
        raise Unauthorized(
            "This API key is not known here. Check that it was copied whole and that it belongs to "
            "this gateway; a lost key cannot be shown again, only replaced."
        )
    if key.revoked_at is not None:
        raise Unauthorized(
            f"API key {key.key_id} was revoked at {key.revoked_at:%Y-%m-%d %H:%M} UTC. "
            "Ask whoever runs this gateway for a new one.",
            code="revoked_api_key",
        )
    return key


def allowed(key: Key, model: str) -> bool:
    """True if `key` may call `model`, whether or not anybody serves it."""
    return key.models is None or model in key.models


def visible(key: Key, served: Iterable[str]) -> list[str]:
    """The served models that `key` may call, sorted."""
    return sorted(model for model in served if allowed(key, model))


def fallbacks_of(key: Key, model: str, table: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The models that may answer `key` in place of `model`, the first choice first, by `table`.

    A key never gets a model that it may not call itself.
    """
    if not key.fallback:
        return ()
    return tuple(name for name in table.get(model, ()) if allowed(key, name))


def require_model(key: Key, model: str, served: Iterable[str], *, any_model: bool) -> None:
    """Raises `Forbidden` or `NotFound` with the models that `key` could call instead.

    A key that may not use a model gets 403 even if nobody serves it, so that an allow list does
    not tell what else there is.
    """
    if not allowed(key, model):
        raise Forbidden(
            f"API key {key.key_id} may not use the model {model!r}. "
            + _instead(visible(key, served) or sorted(key.models or ())),
            param="model",
        )
    if not any_model and model not in served:
        raise NotFound(
            f"No backend here serves the model {model!r}. " + _instead(visible(key, served)),
            param="model",
        )


NAMES_SHOWN_MAX = 20
"""A refusal is read by a person; a longer list belongs to GET /v1/models."""


def _instead(models: list[str]) -> str:
    if not models:
        return "No model is available to this key right now; GET /v1/models lists them."
    shown = ", ".join(models[:NAMES_SHOWN_MAX])
    more = len(models) - NAMES_SHOWN_MAX
    return f"This key can use: {shown}{f' and {more} more' if more > 0 else ''}."
