"""From the settings of Kafka to what its clients need; the one place where the password is read."""

from gateway.sections import KafkaSettings
from gateway.settings import resolve_secret
from streams.kafka.access import KafkaAccess


def access_of(settings: KafkaSettings) -> KafkaAccess | None:
    """How brokers are reached; null if none is set.

    Raises `SettingsError` if the password's reference cannot be resolved.
    """
    if not settings.bootstrap:
        return None
    password = settings.sasl_password
    return KafkaAccess(
        bootstrap=settings.bootstrap,
        security=settings.security,
        ca_file=settings.ca_file,
        cert_file=settings.cert_file,
        key_file=settings.key_file,
        sasl_mechanism=settings.sasl_mechanism,
        username=settings.sasl_username,
        password=None if password is None else resolve_secret(password, "the password for Kafka"),
        prefix=settings.prefix,
        partitions=settings.partitions,
        replication=settings.replication,
    )
