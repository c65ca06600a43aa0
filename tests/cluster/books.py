"""The shared ledger as it stands in Postgres, read by psycopg alone, and the rules for it."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

import psycopg
from psycopg.rows import dict_row

from ledger.folds.live import usage_of
from streams.kafka.read import latest_values
from tests.cluster.world import HASH_KEY, Cluster
from tests.kill.books import BUCKETS, ROLLED, Books, Check, Measured
from tests.kill.client import Seen
from tests.support.processes import wait_until

QUIET_SECONDS_MAX = 90.0
"""Until what was spooled is in the ledger, after all of the load and all kills are over."""


class SharedBooks(Books):
    """What `tests.kill.books.Books` reads of a SQLite file, of Postgres."""

    def __init__(self, cluster: Cluster) -> None:
        self.rows = rows(cluster, "SELECT * FROM requests")
        ends = rows(
            cluster,
            "SELECT data FROM events WHERE type IN"
            " ('tollbook.request.finished.v1', 'tollbook.request.abandoned.v1')",
        )
        self.ends = Counter(json.loads(row["data"])["request_id"] for row in ends)
        closings = rows(cluster, "SELECT data FROM events WHERE type = 'tollbook.source.closed.v1'")
        said = [json.loads(row["data"]) for row in closings]
        self.closed = {one["closed_source"]: one["by"] for one in said}
        names = ", ".join(ROLLED)
        self.hourly = rows(cluster, f"SELECT key_id, model, basis, {names} FROM usage_hourly")
        self.conflicts = rows(cluster, "SELECT * FROM conflicts")
        self.duplicates = rows(cluster, "SELECT * FROM duplicates")
        self.poison = rows(cluster, "SELECT log, log_offset, reason FROM poison")
        self.events = {
            (row["source"], row["topic"], row["sequence"]): row["id"]
            for row in rows(cluster, "SELECT source, topic, sequence, id FROM events")
        }
        self.hash_key = HASH_KEY


class SharedCheck(Check):
    """The rules of every kill test. An adopter that is killed says an abandonment again, under an
    id of its own, and it counts once: so a request may have more of them."""

    def _row(self, row: dict[str, Any], *, known: bool) -> None:
        name = row["request_id"]
        if not known:
            self._say(f"{name} is in the ledger, and no client sent it: {row}")
        if row["state"] == "open":
            self._say(f"{name} was never closed: {row}")
        elif not self.books.ends[name]:
            self._say(f"{name} has no end")


def rows(cluster: Cluster, query: str) -> list[dict[str, Any]]:
    """What Postgres answers."""
    url = cluster.ledger_url.replace("postgresql+psycopg://", "postgresql://")
    with psycopg.connect(url, row_factory=dict_row) as connection:
        return connection.execute(query.encode()).fetchall()


def settle(cluster: Cluster) -> SharedBooks:
    """Wait until the ledger holds all that any spool tells and no request is open; the books."""

    def quiet() -> SharedBooks | None:
        books = SharedBooks(cluster)
        told = cluster.told()
        missing = [name for name in told if name not in books.events]
        still = [row["request_id"] for row in books.rows if row["state"] == "open"]
        came = {
            row["source"]: row["last_sequence"]
            for row in rows(cluster, "SELECT * FROM source_topics WHERE topic = 'tokens'")
        }
        # Each topic comes by itself, and marks that tell of these may be there before them.
        tokens = cluster.told_tokens()
        behind = [source for source, last in tokens.items() if came.get(source, 0) < last]
        waiting[:] = [
            f"{len(missing)} events missing: {missing[:3]}, open: {still[:3]}, tokens: {behind}"
        ]
        return books if not missing and not still and not behind else None

    waiting: list[str] = []
    try:
        found: SharedBooks = wait_until("the ledger is complete", quiet, QUIET_SECONDS_MAX)
    except AssertionError as late:
        raise AssertionError(f"{late}: {waiting}") from late
    return found


def verify(cluster: Cluster, crowd: Iterable[Seen]) -> Measured:
    """Hold a cluster at rest against what was seen.

    The ledger has every event of every spool once and no other, every answer as its client saw it,
    nothing was set aside, and the live totals of each key are the ledger's.
    """
    books = settle(cluster)
    told = cluster.told()
    own = {name: event for name, event in books.events.items() if name[1] != "registry"}
    assert own == told, f"events that no spool tells: {list(own.keys() - told.keys())[:5]}"
    assert not books.poison, books.poison
    measured = SharedCheck(cluster, books).all(crowd)  # type: ignore[arg-type]
    code, said = cluster.audit()
    assert code == 0, said
    same_live_totals(cluster, books)
    return measured


def same_live_totals(cluster: Cluster, books: SharedBooks) -> None:
    """`usage-by-key` says of each key what the rows of its requests add up to."""
    wanted = _totals(books)
    seen: list[dict[str, tuple[int, ...]]] = []

    def same() -> bool:
        values = asyncio.run(latest_values(cluster.access, "usage-by-key", "test"))
        seen[:] = [{key.decode(): _live(value) for key, value in values.items()}]
        return seen[0] == wanted

    try:
        wait_until("usage-by-key is the ledger's", same, QUIET_SECONDS_MAX)
    except AssertionError as late:
        raise AssertionError(f"{late}: live {seen}, ledger {wanted}") from late


def _totals(books: SharedBooks) -> dict[str, tuple[int, ...]]:
    """Ended requests and tokens by bucket, by key id."""
    found: dict[str, list[int]] = {}
    for row in books.rows:
        sums = found.setdefault(row["key_id"], [0] * (1 + len(BUCKETS)))
        sums[0] += 1
        for place, bucket in enumerate(BUCKETS, start=1):
            sums[place] += row[bucket] or 0
    return {key: tuple(sums) for key, sums in found.items()}


def _live(value: bytes) -> tuple[int, ...]:
    usage = usage_of(value)
    return (usage.ended, *usage.tokens)
