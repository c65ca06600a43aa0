"""The one home of chance: identifiers and secrets are minted here, at the edge, and passed in."""

import secrets

import uuid_utils

KEY_PREFIX = "sk-tb-"
HASH_KEY_BYTES = 32


def mint_id() -> str:
    """A UUIDv7 in 32 hex digits: sorts by time of minting, and is never minted twice."""
    return uuid_utils.uuid7().hex


def mint_secret() -> str:
    """A new API key secret with 256 bits of chance. It is shown once and never stored."""
    return KEY_PREFIX + secrets.token_urlsafe(32)


def mint_hash_key() -> bytes:
    """A new key for the keyed hashes that stand in events for ids which clients send."""
    return secrets.token_bytes(HASH_KEY_BYTES)
