"""Where everything in a data directory is: the one place that joins these paths."""

import contextlib
import os
from pathlib import Path
from typing import Final

from ledger.identity import mint_id
from streams.log import registry
from streams.log.spool import UNBORN_PREFIX

REGISTRY_LOG_NAME: Final = "registry"
"""The name of the registry log in the ledger's positions."""

GONE_PREFIX: Final = ".gone-"
"""A spool that is being deleted: renamed first, so that half a spool is never taken for one."""


class Layout:
    """The paths below one data directory. Nothing is touched, except by `make`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.spools = root / "spool"
        self.registry = root / "registry"
        self.registry_log = self.registry / registry.LOG
        self.ledger = root / "ledger.db"
        self.runner_lock = root / "runner.lock"
        self.secrets = root / "secrets"
        self.exports = root / "exports"
        self.feed = root / "feed.jsonl"
        self.routed = root / "derived" / "routing-state.json"
        self.reader_lock = root / "reader.lock"
        self.reader_socket = root / "reader.sock"

    def make(self) -> None:
        """Make the directories that every process needs; those that exist stay as they are."""
        self.spools.mkdir(parents=True, exist_ok=True)
        self.registry.mkdir(exist_ok=True)

    @property
    def _identity(self) -> Path:
        return self.registry / "directory-id"

    def identity(self) -> str:
        """The id of this data directory, minted when it is first asked for. Not for two at once."""
        path = self._identity
        with contextlib.suppress(FileNotFoundError):
            return path.read_text(encoding="ascii").strip()
        self.make()
        minted = mint_id()
        half = path.with_suffix(".new")
        half.write_text(minted + "\n", encoding="ascii")
        half.replace(path)
        return minted

    def has_identity(self) -> bool:
        """True if somebody has asked for its id: then its ledger is, or was, at a URL."""
        return self._identity.exists()

    def spool(self, incarnation: str) -> Path:
        """The directory of the spool of `incarnation`, which is a UUIDv7 in hex."""
        return self.spools / incarnation

    def spool_directories(self) -> list[Path]:
        """The spools that exist, oldest first: incarnations sort by the time of their start."""
        return self._directories(hidden=False)

    def leftovers(self) -> list[Path]:
        """Spools whose making or deleting was cut short."""
        return self._directories(hidden=True)

    def _directories(self, *, hidden: bool) -> list[Path]:
        prefixes = (UNBORN_PREFIX, GONE_PREFIX)
        try:
            with os.scandir(self.spools) as entries:
                names = [
                    entry.name
                    for entry in entries
                    if entry.name.startswith(prefixes) == hidden and entry.is_dir()
                ]
        except FileNotFoundError:
            return []
        return [self.spools / name for name in sorted(names)]


def log_name(spool: Path) -> str:
    """The name of the log in the directory `spool` in the ledger's positions."""
    return f"spool/{spool.name}"
