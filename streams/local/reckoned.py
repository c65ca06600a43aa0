"""What the runner found when it last held the ledger against the engines: a small file in the data
directory, for the gateway to show as metrics."""

from pathlib import Path
from typing import Final

import msgspec

from ledger.folds.reconcile import Checked

RECKONED: Final = "reconciled.json"


def write_reckoned(data: Path, found: Checked) -> None:
    """Replace what was found before. Raises `OSError`."""
    half = data / f".{RECKONED}.new"
    half.write_bytes(msgspec.json.encode(found))
    half.replace(data / RECKONED)


def read_reckoned(data: Path) -> Checked | None:
    """What a runner of this data directory found last; null if none did."""
    try:
        return msgspec.json.decode((data / RECKONED).read_bytes(), type=Checked)
    except (OSError, msgspec.DecodeError):
        return None
