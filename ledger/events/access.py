"""Events of the registry that say who may call what. A secret is never in one, only its hash."""

from typing import ClassVar, Literal

from ledger.events.envelope import Count, Instant, Number, Payload


class KeyIssued(Payload, frozen=True, kw_only=True):
    """A key in its whole new state. `base` is the version it was made from: 0, as it is new.

    `hash` is the SHA-256 of the secret in hex; a secret carries 256 bits of chance, so no salt is
    needed. `models` null means every model that is served. `fallback` false: another model than the
    one asked for may never answer; null: it may, where that is set. `scope` is what the key opens
    beside models: `admin` reads what every key used and cost; null: only its own. The key's name is
    not here: names live in one erasable table, events carry ids.
    """

    TYPE: ClassVar[str] = "tollbook.key.issued.v1"
    TOPIC: ClassVar[str] = "registry"

    key_id: str
    base: Count
    version: Number
    hash: str
    models: list[str] | None = None
    fallback: bool | None = None
    scope: Literal["admin"] | None = None


class KeyRevoked(Payload, frozen=True, kw_only=True):
    """The key in its whole new state: it no longer opens anything. What it used stays billed."""

    TYPE: ClassVar[str] = "tollbook.key.revoked.v1"
    TOPIC: ClassVar[str] = "registry"

    key_id: str
    base: Count
    version: Number
    hash: str
    revoked_at: Instant
    models: list[str] | None = None
    fallback: bool | None = None
    scope: Literal["admin"] | None = None
