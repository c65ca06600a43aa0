"""What the gateway asks of the log it writes to. `spool` keeps it on disk, `memory` in a list."""

from typing import Protocol

from ledger.events import Draft


class Journal(Protocol):
    """An append-only log with one writer, which numbers what it takes per topic from 1."""

    @property
    def source(self) -> str:
        """The name and incarnation of this writer, as it stands on every event."""
        ...

    def append(self, *drafts: Draft) -> None:
        """Take all `drafts` in one write, or none. Does not block on the network or on `fsync`.

        When it returns, a killed process loses nothing of it. Raises `SpoolFull` only for drafts
        that open a request, `SpoolFailed` when the disk takes no more. Not safe to repeat: each
        call takes new sequence numbers.
        """
        ...

    async def durable(self) -> None:
        """Wait until all that was appended survives what the durability setting names.

        Returns at once for `process`; for `power` after an `fsync` shared with other callers.
        """
        ...

    def room(self) -> bool:
        """True while a new request may be accepted. Cheap: it is asked for each request."""
        ...

    def last(self) -> dict[str, int]:
        """The last sequence of each topic written so far."""
        ...

    def heads(self) -> dict[str, str]:
        """The head of each topic's chain behind `last`, 64 hex digits: `ledger.chain`."""
        ...
