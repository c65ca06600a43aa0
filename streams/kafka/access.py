"""How brokers are reached: one block of settings for relay, writer, worker, gateways, commands."""

import ssl
from typing import Any, Final

import msgspec

from streams.errors import KafkaError
from streams.topics import TOPICS

REQUEST_MS: Final = 30_000
"""How long one request to a broker may take before it is given up and tried again."""


class KafkaAccess(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a Kafka client needs. `password` is the secret itself; it is never shown.

    `partitions` and `replication` are for topics that are made, `partitions` also for their check.
    """

    bootstrap: tuple[str, ...]
    security: str = "plaintext"
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    sasl_mechanism: str = "SCRAM-SHA-512"
    username: str | None = None
    password: str | None = None
    prefix: str = "tollbook"
    partitions: int = 6
    replication: int = 1

    def __repr__(self) -> str:
        return f"KafkaAccess({self.where}, {self.security}, prefix={self.prefix!r})"

    @property
    def where(self) -> str:
        """The brokers' addresses, for a message."""
        return ",".join(self.bootstrap)

    def topic(self, name: str) -> str:
        """The name on the broker of one of `streams.topics.TOPICS`."""
        return TOPICS[name].on_kafka(self.prefix)

    def group(self, role: str) -> str:
        """The consumer group of a role."""
        return f"{self.prefix}.{role}"


def ssl_context(access: KafkaAccess) -> ssl.SSLContext | None:
    """The TLS context of `access`; null without TLS. Raises `KafkaError` for wrong files."""
    if not access.security.endswith("ssl"):
        return None
    try:
        context = ssl.create_default_context(cafile=access.ca_file)
        if access.cert_file is not None:
            context.load_cert_chain(access.cert_file, access.key_file)
    except (OSError, ssl.SSLError) as wrong:
        raise KafkaError(
            f"the certificates for Kafka cannot be read: {wrong}; see ca_file, cert_file and "
            "key_file of [kafka]"
        ) from wrong
    return context


def client_options(access: KafkaAccess, role: str) -> dict[str, Any]:
    """What every aiokafka client is made with. `role` names it in the brokers' logs."""
    options: dict[str, Any] = {
        "bootstrap_servers": list(access.bootstrap),
        "client_id": f"{access.prefix}-{role}",
        "security_protocol": access.security.upper(),
        "request_timeout_ms": REQUEST_MS,
    }
    context = ssl_context(access)
    if context is not None:
        options["ssl_context"] = context
    if access.security.startswith("sasl"):
        options |= {
            "sasl_mechanism": access.sasl_mechanism,
            "sasl_plain_username": access.username,
            "sasl_plain_password": access.password,
        }
    return options


def producer_options(access: KafkaAccess, role: str) -> dict[str, Any]:
    """For an idempotent producer: every safe setting is off by default in aiokafka 0.14."""
    return client_options(access, role) | {
        "acks": "all",
        "enable_idempotence": True,
        "linger_ms": 5,
        "max_batch_size": 256 * 1024,
    }


def consumer_options(access: KafkaAccess, role: str) -> dict[str, Any]:
    """For a consumer that keeps its own offsets and begins at the beginning."""
    return client_options(access, role) | {
        "enable_auto_commit": False,
        "auto_offset_reset": "earliest",
        "isolation_level": "read_committed",
    }
