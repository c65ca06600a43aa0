"""Closes the spool of a process that died: the acting part of `streams.adoption`.

The order is what makes it safe to die anywhere in between: the facts go into the adopter's own
spool first, and only then is the dead spool marked as adopted. Whoever comes later and finds no
mark states the same facts again. Of the dead process's records none is changed; only a torn tail,
which nobody could ever read, is cut off and kept aside.
"""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from ledger.events import Draft
from ledger.sql.session import Ledger, ReadSession
from ledger.sql.sources import closed_by, last_heard, last_sequences, open_requests
from streams.adoption import OpenRequest, abandoned, closed
from streams.local.follower import Follower
from streams.local.process import Say
from streams.local.spools import died, mark_adopted, testify
from streams.local.torn import cut_torn_tail
from streams.log.heads import heads_of
from streams.log.spool import SpoolWriter


class Adopter:
    """Adopts dead spools; `own` gives the adopter's own spool, which is made when it is needed."""

    def __init__(self, ledger: Ledger, own: Callable[[], SpoolWriter], say: Say) -> None:
        self._ledger = ledger
        self._own = own
        self._say = say
        self._closed: set[Path] = set()

    def adopt(self, dead: Follower) -> None:
        """Close what `dead` left open. The caller holds its lock and has read it to its end.

        Safe to repeat. Raises `SpoolFailed` if our own spool takes no more, `LedgerUnavailable`.
        """
        assert not dead.halted, "a spool that cannot be read to its end is not closed by guessing"
        if dead.directory not in self._closed:
            if not dead.behind:
                cut_torn_tail(dead.reader, dead.position, dead.name, self._say)
            with self._ledger.read() as read:
                drafts = self._closing(read, dead)
            if drafts:
                testify(self._own(), drafts)
            # If the mark below cannot be made on a full disk, trying again must not fill it more.
            self._closed.add(dead.directory)
        mark_adopted(dead.directory)

    def _closing(self, read: ReadSession, dead: Follower) -> list[Draft]:
        """All that has to be said so that nothing of the dead spool stays open."""
        life = dead.life
        source = dead.source()
        time: datetime | None = life.last_time or (last_heard(read, source) if source else None)
        if source is None or time is None:
            # It never wrote anything, so there is nothing that could be closed.
            return []
        open_now = list(life.open.values())
        if dead.behind or dead.forgot:
            # The ledger has read more of this spool than is left of it, so the ledger knows best.
            rows = open_requests(read, source)
            open_now = [OpenRequest(row, row.accepted_at or time, 0) for row in rows]
        drafts = abandoned(source, open_now)
        if not life.closed_itself and closed_by(read, source) is None:
            # Old segments may be gone, and with them the last record of a quiet topic.
            last = last_sequences(read, source)
            for topic, sequence in life.last.items():
                last[topic] = max(sequence, last.get(topic, 0))
            heads = heads_of(dead.reader, source, last)
            drafts.append(closed(source, last, time, self._own().source, heads=heads))
        if drafts:
            self._say(died(source, len(open_now)))
        return drafts
