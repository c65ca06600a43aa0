"""Prices that were made anew, with the reason: they began earlier than a minute from when they were
published, or took another's place. It only reads: each is in the record for ever, and whoever
audits a bill should know of it."""

from collections.abc import Iterator
from datetime import datetime

import msgspec

from ledger.events import PriceListed
from ledger.folds.book import Book, BookFold
from ledger.sql.replay import registry_facts
from ledger.sql.session import ReadSession


class Rerating(msgspec.Struct, frozen=True, kw_only=True):
    """One publication that could price anew what was on a bill: its event, when it was made, the
    models or patterns, the earliest instant, and the reason that was given."""

    event: str
    at: datetime
    models: tuple[str, ...]
    since: datetime
    reason: str

    @property
    def words(self) -> str:
        """The same for a person."""
        return (
            f"on {self.at:%Y-%m-%dT%H:%M:%SZ} prices of {', '.join(self.models)} were made anew "
            f"from {self.since:%Y-%m-%dT%H:%M:%SZ} on ({self.reason}), event {self.event}"
        )


def reratings(read: ReadSession) -> Iterator[Rerating]:
    """Every one that the registry took, oldest first. What it refused changed nothing."""
    fold = BookFold(Book())
    for facts in registry_facts(read):
        for fact in facts:
            said, event = fact.payload, fact.event
            taken = fold.take(event, said) is None
            if not taken or not isinstance(said, PriceListed) or said.rerate is None:
                continue
            anew = [one for one in said.entries if one.price_id in fold.rerated]
            if anew:
                yield Rerating(
                    event=event.name,
                    at=event.time,
                    models=tuple(sorted({one.model for one in anew})),
                    since=min(one.effective_from for one in anew),
                    reason=said.rerate,
                )
