"""A ledger filled through the real writer, for tests of what reads it."""

from collections.abc import Sequence
from pathlib import Path

from ledger.clock import SystemClock
from ledger.events import Draft, Event
from ledger.sql.names import set_name
from ledger.sql.session import Ledger, open_ledger
from ledger.sql.writer import Batch, LedgerWriter
from tests.support.events import Scribe


class Books:
    """A ledger (null: one in `directory`), its writer, and one scribe for every source."""

    def __init__(self, directory: Path, ledger: Ledger | None = None) -> None:
        directory.mkdir(exist_ok=True)
        self.exports = directory / "exports"
        self.ledger = open_ledger(directory / "ledger.db") if ledger is None else ledger
        self._writer = LedgerWriter(self.ledger, SystemClock())
        self._scribe = Scribe()
        self._offset = 0

    def add(self, *drafts: Draft) -> list[Event]:
        """Number `drafts` as one source does, and write them."""
        events = self._scribe.write_all(*drafts)
        self.write(events)
        return events

    def write(self, events: Sequence[Event]) -> None:
        """Write `events` as the next records of one log."""
        following = self._offset + len(events)
        batch = Batch(
            log="test", read_from=self._offset, next_offset=following, events=list(events)
        )
        self._writer.write(batch)
        self._offset = following

    def name(self, key_id: str, name: str) -> None:
        with self.ledger.write() as tx:
            set_name(tx, "key", key_id, name)
