"""Records that no broker will ever take: each goes to a file of its own, with the reason.

A file is named by its record, so that a record which is set aside again after a crash is still one.
"""

import contextlib
import os
from pathlib import Path
from typing import Final

import msgspec

from ledger.events import Event
from streams.log.reader import BadRecord, Missing

DIRECTORY: Final = "aside"


class SetAside(msgspec.Struct, frozen=True, kw_only=True):
    """One file: from which spool, why, and the record as it was (null: bytes that are gone).

    `record` is text; bytes that are no UTF-8 are escaped with a backslash.
    """

    spool: str
    name: str
    reason: str
    record: str | None


class Aside:
    """The directory of what was set aside. `count` is how many there are."""

    def __init__(self, data: Path) -> None:
        self._directory = data / DIRECTORY
        self.count = 0
        with contextlib.suppress(FileNotFoundError), os.scandir(self._directory) as entries:
            self.count = sum(entry.name.endswith(".json") for entry in entries)

    def event(self, spool: str, event: Event, reason: str) -> bool:
        """Set an event aside that brokers refuse; false if it was already."""
        record = msgspec.json.encode(event).decode(errors="backslashreplace")
        name = f"{event.topic}-{event.sequence}"
        return self._put(SetAside(spool=spool, name=name, reason=reason, record=record))

    def bytes(self, spool: str, bad: BadRecord) -> bool:
        """Set bytes aside that are no event; false if they were already."""
        record = bad.record.decode(errors="backslashreplace")
        name = f"offset-{bad.offset}"
        return self._put(SetAside(spool=spool, name=name, reason=bad.reason, record=record))

    def gap(self, spool: str, missing: Missing, reason: str) -> bool:
        """Note that bytes of a spool are gone; false if that was noted already."""
        name = f"missing-{missing.start}"
        return self._put(SetAside(spool=spool, name=name, reason=reason, record=None))

    def _put(self, one: SetAside) -> bool:
        self._directory.mkdir(mode=0o700, exist_ok=True)
        path = self._directory / f"{one.spool}-{one.name}.json"
        if path.exists():
            return False
        fresh = path.with_name(f".{path.name}.new")
        with fresh.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(one)) + b"\n")
            # The spool lets go of the record once it is here, so it has to be here for good.
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
        self.count += 1
        return True
