"""Events by which a source says how far it got: what makes completeness checkable."""

from typing import ClassVar

from ledger.events.envelope import Count, Instant, Payload


class SourceMark(Payload, frozen=True, kw_only=True):
    """Written at the start and each minute, also when idle.

    `last` is the last sequence of each topic before this event; `open` counts requests without an
    end, the oldest of which was accepted at `oldest_open`. `heads` are those of the chains of each
    topic at `last`, `ledger.chain`; null where an older version wrote it.
    """

    TYPE: ClassVar[str] = "tollbook.source.mark.v1"
    TOPIC: ClassVar[str] = "sources"

    last: dict[str, Count]
    open: Count
    oldest_open: Instant | None = None
    heads: dict[str, str] | None = None


class SourceClosed(Payload, frozen=True, kw_only=True):
    """`closed_source` will never write again; `last` is its last sequence of each topic.

    `by` is `itself` for an orderly stop, the source that adopted its spool, or `operator: REASON`
    where a person said so of a source that never comes back. `heads` are as in `SourceMark`.
    """

    TYPE: ClassVar[str] = "tollbook.source.closed.v1"
    TOPIC: ClassVar[str] = "sources"

    closed_source: str
    last: dict[str, Count]
    by: str
    heads: dict[str, str] | None = None
