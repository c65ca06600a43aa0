"""What the relay says of itself to the gateway: a small file in the data directory.

The gateway shows it as metrics. A relay that is dead leaves its last word: that is why it is dated.
"""

from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from streams.kafka.relay.cursor import replace

STATUS: Final = "relay.json"


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """How the relay of a data directory does at the moment `at`.

    `lag_bytes`: spool that Kafka has not taken. `oldest_at`: when its oldest record was recorded;
    null if there is none. `aside`: records that were set aside, in all. `fault`: why Kafka takes
    nothing, in words; null if it does. `adopted` and `sent` count since the relay's start.
    `skew_seconds`: how far this machine's clock is ahead of the broker's; negative: behind.
    """

    at: datetime
    lag_bytes: int = 0
    oldest_at: datetime | None = None
    spools: int = 0
    sent: int = 0
    aside: int = 0
    adopted: int = 0
    fault: str | None = None
    skew_seconds: float = 0.0


def write_status(data: Path, status: Status) -> None:
    """Replace the status file of the data directory. Raises `OSError`."""
    replace(data / STATUS, msgspec.json.encode(status))


def read_status(data: Path) -> Status | None:
    """The last status that a relay wrote in this data directory; null if none did."""
    try:
        return msgspec.json.decode((data / STATUS).read_bytes(), type=Status)
    except (OSError, msgspec.DecodeError):
        return None
