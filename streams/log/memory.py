"""A log in memory: for tests, and for anything that needs a journal but keeps no books.

It behaves like the spool (one suite runs over both) and encodes every record, so that what cannot
be written to a disk is refused here too. Nothing of it outlives the process.
"""

from collections.abc import Sequence

from ledger.clock import Clock
from ledger.events import Draft, Event, RequestAccepted
from streams.codec import decode, encode
from streams.errors import SpoolFailed, SpoolFull
from streams.log.chains import Chains
from streams.log.segment import frame


class MemoryJournal:
    """Implements `streams.log.port.Journal` in a list.

    `limit_bytes` bounds what was not consumed yet; call `consume` as the ledger would.
    `capacity_bytes` is the disk: no write at all goes beyond it.
    """

    def __init__(
        self,
        source: str,
        *,
        clock: Clock,
        limit_bytes: int = 1 << 30,
        reserve_bytes: int = 4 << 20,
        capacity_bytes: int | None = None,
    ) -> None:
        if not 0 < reserve_bytes < limit_bytes:
            raise ValueError(f"a spool limit of {limit_bytes} with a reserve of {reserve_bytes}")
        self.source = source
        self._clock = clock
        self._full_at = limit_bytes - reserve_bytes
        self._reserve_bytes = reserve_bytes
        self._capacity_bytes = capacity_bytes
        self._records: list[bytes] = []
        self._last: dict[str, int] = {}
        self._end = self._consumed = 0
        self._closed = False

    def append(self, *drafts: Draft) -> None:
        """Take all `drafts`, or none. See `Journal.append`."""
        if not drafts:
            return
        if self._closed:
            raise SpoolFailed(f"the log of {self.source} is closed")
        opens = any(isinstance(draft.payload, RequestAccepted) for draft in drafts)
        last, recorded = dict(self._last), self._clock.now()
        records = []
        for draft in drafts:
            topic = draft.payload.TOPIC
            last[topic] = last.get(topic, 0) + 1
            records.append(encode(draft, self.source, last[topic], recorded))
        size = len(frame(records))
        if opens and not (self.room() and self._fits(size + self._reserve_bytes)):
            raise SpoolFull(f"the log of {self.source} is full; the ledger has to catch up first")
        if not self._fits(size):
            raise SpoolFailed(f"the log of {self.source} takes no more, its capacity is used up")
        self._records.extend(records)
        self._last = last
        self._end += size

    async def durable(self) -> None:
        """Return at once: nothing here survives anything. See `Journal.durable`."""

    def room(self) -> bool:
        """True while a new request may be accepted. See `Journal.room`."""
        return (
            not self._closed
            and self.unconsumed_bytes() <= self._full_at
            and self._fits(self._reserve_bytes)
        )

    def last(self) -> dict[str, int]:
        """The last sequence of each topic written so far."""
        return dict(self._last)

    def heads(self) -> dict[str, str]:
        """The head of each topic's chain behind `last`. See `Journal.heads`."""
        chains = Chains()
        for record in self._records:
            chains.take(record)
        return chains.heads()

    def written_bytes(self) -> int:
        """Bytes written since the start, as a spool on disk would count them."""
        return self._end

    def unconsumed_bytes(self) -> int:
        """Bytes that `consume` has not been told of."""
        return self._end - self._consumed

    def consume(self, end: int | None = None) -> None:
        """Say that the ledger has taken everything below `end`; null is all there is."""
        self._consumed = self._end if end is None else max(self._consumed, min(end, self._end))

    def events(self) -> Sequence[Event]:
        """Everything written, decoded from its bytes, in order."""
        return [decode(record) for record in self._records]

    def close(self) -> None:
        """Take no more. Safe twice."""
        self._closed = True

    def _fits(self, size: int) -> bool:
        return self._capacity_bytes is None or self._end + size <= self._capacity_bytes
