"""What `tollbook serve` says when it is ready: who can reach it, and how long an outage it covers.

Pure: settings in, text out.
"""

from gateway.setting_values import size_text
from gateway.settings import Settings

BYTES_PER_REQUEST = 1500
"""What one plain request takes in the spool (accepted, attempted, finished); a test holds it."""

REQUESTS_PER_SECOND = 10
"""The load for which the start line states how long an outage of what takes it is covered."""


def start_line(
    settings: Settings, port: int, models: str | None, backends: int | None = None
) -> str:
    """One line for a person; the address stands first, so that it can be copied. `backends` is how
    many there are, if more are known than those of the settings."""
    gateway, spool, kafka = settings.gateway, settings.spool, settings.kafka
    taker = "Kafka" if kafka.bootstrap else "the ledger"
    host = f"[{gateway.host}]" if ":" in gateway.host else gateway.host
    count = len(settings.backends) if backends is None else backends
    servers = f"{count} backend{'s' if count != 1 else ''}"
    if backends is None and not count:
        servers = "backends as the registry says"
    parts = [
        f"serving http://{host}:{port}/v1 ({reach(gateway.host)})",
        servers,
        *([models] if models else []),
        *([f"Kafka at {','.join(kafka.bootstrap)}, {kafka.prefix}.*"] if kafka.bootstrap else []),
        f"spool limit {size_text(spool.limit_bytes)}, which covers {covered(spool.limit_bytes)} "
        f"without {taker} at {REQUESTS_PER_SECOND} requests/s",
    ]
    return "tollbook: " + "; ".join(parts)


def reach(host: str) -> str:
    """Who can reach a server that listens on `host`."""
    if host == "localhost" or host == "::1" or host.startswith("127."):
        return "only from this machine"
    if host in ("0.0.0.0", "::"):
        return "from every network that this machine is on; put TLS in front of it"
    return f"from wherever {host} can be reached; put TLS in front of it"


def covered(limit_bytes: int) -> str:
    """How long an outage of the ledger or Kafka fits into the spool, at the stated load."""
    seconds = limit_bytes // (BYTES_PER_REQUEST * REQUESTS_PER_SECOND)
    if seconds < 120:
        return f"about {seconds} s"
    if seconds < 2 * 3600:
        return f"about {seconds // 60} min"
    return f"about {seconds // 3600} h"
