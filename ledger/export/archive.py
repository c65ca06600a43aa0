"""The events of a closed month as one file, from which its chains can be made anew without us.

It holds what stands behind the cuts of all months closed before, up to this month's own, with the
heads at both. So the archives of all months, one after the other, hold every event that was billed.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa

from ledger.chain import START, root_of
from ledger.errors import ChainBroken, ExportFailed
from ledger.export.archive_columns import ARCHIVE_COLUMNS, EVENTS
from ledger.export.columns import batch_of
from ledger.export.manifest import ChainHead, ExportedFile, describe
from ledger.export.parquet import write_parquet
from ledger.export.read_back import read_back
from ledger.folds.money import Period
from ledger.sql.chain import Cut, Heads, Linked, heads_at, links
from ledger.sql.session import ReadSession

Progress = Callable[[int, int], None]


class Archived(msgspec.Struct, frozen=True, kw_only=True):
    """What `write_archive` wrote, and what the manifest beside it has to say of the chains."""

    files: list[ExportedFile]
    heads: list[ChainHead]
    before: list[ChainHead]
    previous_root: str | None
    events: int


def manifest_heads(read: ReadSession, cut: Cut) -> list[ChainHead]:
    """The heads of all chains at `cut`, by source and topic. Raises `ChainBroken`."""
    return listed(heads_at(read, cut))


def listed(heads: Heads) -> list[ChainHead]:
    """`heads` as a manifest says them."""
    return [
        ChainHead(source=source, topic=topic, sequence=sequence, head=head)
        for (source, topic), (sequence, head) in sorted(heads.items())
    ]


def write_archive(
    read: ReadSession,
    period: Period,
    closed: Iterable[Period],
    directory: Path,
    *,
    progress: Progress = lambda done, total: None,
) -> Archived:
    """Write into `directory` the events of `period` that no month closed before it holds. `closed`
    are all closed months, or at least those before.

    Raises `ExportFailed` if the ledger's events do not lead to the root that was noted when the
    month was closed, and `ChainBroken` if some are missing.
    """
    before = [one for one in closed if one.number < period.number]
    heads = _heads(read, period)
    earlier = _earlier(read, heads, before)
    total = sum(
        max(0, sequence - earlier.get(chain, (0, ""))[0]) for chain, (sequence, _) in heads.items()
    )
    path = directory / EVENTS
    batches = _batches(read, heads, earlier)
    wrote = write_parquet(path, ARCHIVE_COLUMNS, batches, lambda done: progress(done, total))
    read_back(path, ARCHIVE_COLUMNS, wrote)
    return Archived(
        files=[describe(path, total)],
        heads=listed(heads),
        before=listed(earlier),
        previous_root=max(before, key=lambda one: one.number).root if before else None,
        events=total,
    )


def _heads(read: ReadSession, period: Period) -> Heads:
    """The heads at the cut of `period`, if they make its root."""
    heads = heads_at(read, period.cut)
    root = root_of(heads)
    if root != period.root:
        raise ExportFailed(
            f"the events of {period.month} make the root {root}, and {period.root} was noted when "
            "it was closed: events in the ledger were changed since; put back a copy of the ledger "
            "from before, or find the source with `tollbook audit`"
        )
    return heads


def _earlier(read: ReadSession, heads: Heads, before: Sequence[Period]) -> Heads:
    """Where the chains of `heads` stood when months were closed `before`: a month's own cut leaves
    out sources that told nothing new."""
    cut: dict[str, dict[str, int]] = {}
    for source, topic in heads:
        upto = max((one.cut.get(source, {}).get(topic, 0) for one in before), default=0)
        if upto:
            cut.setdefault(source, {})[topic] = upto
    return heads_at(read, cut)


def _batches(read: ReadSession, heads: Heads, earlier: Heads) -> Iterator[pa.RecordBatch]:
    for (source, topic), (sequence, head) in sorted(heads.items()):
        after, known = earlier.get((source, topic), (0, START.hex()))
        made = bytes.fromhex(known)
        for run in links(read, source, topic, after, sequence):
            for one in run:
                made = one.after(made, source, topic)
            yield _batch(source, topic, run)
        if after < sequence and made.hex() != head:
            raise ChainBroken(
                f"the events {source}:{after + 1} to {sequence} of {topic} do not lead to the head "
                f"{head} that was kept for {sequence}: one of them was changed in the ledger"
            )


def _batch(source: str, topic: str, run: list[Linked]) -> pa.RecordBatch:
    return batch_of(
        ARCHIVE_COLUMNS,
        {
            "source": [source] * len(run),
            "topic": [topic] * len(run),
            "sequence": [one.sequence for one in run],
            "id": [one.id for one in run],
            "type": [one.type for one in run],
            "subject": [one.subject for one in run],
            "time": [one.time_us for one in run],
            "data": [one.data for one in run],
        },
    )
