"""The books held against what clients and backends saw: the invariants of every scenario.

The ledger is read by `sqlite3` alone: the product's own reading would prove nothing about itself.
Each broken rule is one sentence; `check` collects them all and fails with all of them.
"""

import hashlib
import json
import sqlite3
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from tests.kill.client import Seen
from tests.kill.world import PRICES, Life, World

FLUSH_SECONDS = 0.25
"""What the product promises: running totals are written this often."""

SLACK_SECONDS = 0.25
"""What a busy machine may add. The heartbeat sleeps for a flush interval and then needs a turn on
one of two cores that the gateway, its runner, two fake backends, the clients and the rest of the
test machine share."""

STILL_SECONDS = 0.03
"""A serving process from which no client gets anything for longer than this stands still (measured:
a write that waited 0.4 s for another's `fsync`): it neither streams nor flushes, and the time does
not count. In what these crowds ask for, some chunk is due every few milliseconds."""

PLACE_SECONDS = 0.002
"""Two readings of the same clocks, one of them rounded to microseconds in an event."""

FAULTS_SHOWN_MAX = 40

Row = dict[str, Any]
BUCKETS = ("uncached_in", "cached_in", "cache_write_in", "reasoning_out", "other_out")
ROLLED = ("requests", *BUCKETS, "failed_attempts", "busy_us", "busy_known")


class Measured(msgspec.Struct):
    """What a check found in numbers. `short` are the seconds by which cut streams were short;
    `flushes` counts those that were also held against the last flush of their gateway.
    """

    requests: int = 0
    served: int = 0
    abandoned: int = 0
    cut: int = 0
    unseen: int = 0
    tokens: int = 0
    flushes: int = 0
    short: list[float] = []

    def plus(self, other: "Measured") -> "Measured":
        """Both together."""
        return Measured(
            *(getattr(self, name) + getattr(other, name) for name in self.__struct_fields__)
        )

    def words(self) -> str:
        """One line for a person."""
        short = sorted(self.short) or [0.0]
        return (
            f"{self.requests} requests in the ledger: {self.served} served whole, {self.cut} cut "
            f"while the client watched, {self.abandoned} abandoned ({self.unseen} before the "
            f"backend saw them); {self.tokens} tokens billed; streams cut by a kill were short by "
            f"{short[len(short) // 2] * 1000:.0f} ms (median), {short[-1] * 1000:.0f} ms (most)"
        )


class Books:
    """The ledger of a data directory as it stands now, read once."""

    def __init__(self, data: Path) -> None:
        db = sqlite3.connect(f"file:{data / 'ledger.db'}?mode=ro", uri=True)
        try:
            db.row_factory = sqlite3.Row
            self.rows = [dict(row) for row in db.execute("SELECT * FROM requests")]
            self.ends = Counter(
                row["request_id"]
                for row in db.execute(
                    "SELECT json_extract(data, '$.request_id') AS request_id FROM events WHERE type"
                    " IN ('tollbook.request.finished.v1', 'tollbook.request.abandoned.v1')"
                )
            )
            self.closed = {
                json.loads(row["data"])["closed_source"]: json.loads(row["data"])["by"]
                for row in db.execute(
                    "SELECT data FROM events WHERE type = 'tollbook.source.closed.v1'"
                )
            }
            hourly = "SELECT key_id, model, basis, {} FROM usage_hourly"
            self.hourly = [dict(row) for row in db.execute(hourly.format(", ".join(ROLLED)))]
            self.conflicts = [dict(row) for row in db.execute("SELECT * FROM conflicts")]
            self.duplicates = [dict(row) for row in db.execute("SELECT * FROM duplicates")]
        finally:
            db.close()
        self.hash_key = (data / "secrets" / "hash-key").read_bytes()

    def hashed(self, tag: str) -> str:
        """How the ledger names the request that a client sent as `tag`."""
        return hashlib.blake2b(tag.encode(), key=self.hash_key, digest_size=16).hexdigest()

    def by_client(self) -> dict[str, list[Row]]:
        """Rows by the hash of the client's own id."""
        found: dict[str, list[Row]] = {}
        for row in self.rows:
            found.setdefault(row["client_request"], []).append(row)
        return found


def out_of(row: Row) -> int:
    """Output tokens of a row; what is unknown counts nothing."""
    return int((row["reasoning_out"] or 0) + (row["other_out"] or 0))


def expected(seen: Seen) -> dict[str, int]:
    """The five buckets of a whole answer, from the script that the backend played."""
    script, tokens = seen.ask.script, seen.ask.tokens
    reasoning = min(script.reasoning, tokens)
    return {
        "uncached_in": script.prompt - script.cached,
        "cached_in": script.cached,
        "cache_write_in": 0,
        "reasoning_out": reasoning,
        "other_out": tokens - reasoning,
    }


class Check:
    """Holds one ledger against all that clients saw and all that the backends did."""

    def __init__(self, world: World, books: Books) -> None:
        self.world, self.books = world, books
        self.settled = world.settled
        self.calls = world.fleet.calls()
        self.faults: list[str] = []
        self.measured = Measured()
        self._arrivals: dict[str, list[float]] = {}

    def all(self, crowd: Iterable[Seen], *, lost: Iterable[str] = ()) -> Measured:
        """Every rule for every request of `crowd`. Fails with all that is broken.

        Rows that an earlier check of this world has settled must not have changed. `lost` are tags
        whose requests were lost on purpose, with an older copy or a damaged file: they need not be
        in the ledger, and may be abandoned in it however whole their answer was.
        """
        crowd, gone = list(crowd), set(lost)
        rows = self.books.by_client()
        hashes = {self.books.hashed(seen.ask.tag) for seen in crowd}
        for row in self.books.rows:
            before = self.settled.pop(row["request_id"], None)
            if before is None:
                self.measured.requests += 1
                self.measured.tokens += out_of(row)
                self._row(row, known=row["client_request"] in hashes)
            elif row != before:
                self._say(f"a settled row has changed from {before} to {row}")
        for before in self.settled.values():
            self._say(f"a settled row is gone: {before}")
        for seen in crowd:
            for row in rows.get(self.books.hashed(seen.ask.tag), []):
                self._arrivals.setdefault(row["source"], []).extend(seen.chunks)
        for arrivals in self._arrivals.values():
            arrivals.sort()
        for seen in crowd:
            mine = rows.get(self.books.hashed(seen.ask.tag), [])
            self._answer(seen, mine, lost=seen.ask.tag in gone)
        self._sums()
        for conflict in self.books.conflicts:
            self._say(f"set aside: {conflict}")
        for duplicate in self.books.duplicates:
            # Only an adopter may say again what another one had said before it.
            if duplicate["source"].startswith("/gateway/"):
                self._say(f"new, and dropped as a duplicate: {duplicate}")
        self.settled.update((row["request_id"], row) for row in self.books.rows)
        shown = "\n".join(self.faults[:FAULTS_SHOWN_MAX])
        assert not self.faults, f"{len(self.faults)} rules are broken:\n{shown}"
        return self.measured

    def _say(self, words: str) -> None:
        self.faults.append(words)

    def _row(self, row: Row, *, known: bool) -> None:
        """What holds for every row, whoever saw what."""
        name = row["request_id"]
        if not known:
            self._say(f"{name} is in the ledger, and no client sent it: {row}")
        if row["state"] == "open":
            self._say(f"{name} was never closed: {row}")
        elif not 1 <= self.books.ends[name] <= 1 + (row["state"] == "finished"):
            self._say(f"{name} has {self.books.ends[name]} ends")

    def _answer(self, seen: Seen, rows: list[Row], *, lost: bool) -> None:
        """One request, as its client saw it, against its rows and the backend's call."""
        tag, call = seen.ask.tag, self.calls.get(seen.ask.tag)
        if seen.wrong is not None:
            self._say(f"{tag}: the client got a broken answer: {seen.wrong}")
        if len(rows) > 1:
            self._say(f"{tag} is in the ledger {len(rows)} times: {rows}")
        elif not rows:
            if not lost and (call is not None or seen.served):
                self._say(f"{tag} was served unmetered: client {_brief(seen)}, backend {call}")
        else:
            self._one(seen, rows[0], call, lost=lost)

    def _one(self, seen: Seen, row: Row, call: Row | None, *, lost: bool) -> None:
        tag = seen.ask.tag
        told = seen.request_id
        if told is not None and told != row["request_id"]:
            self._say(f"{tag}: the client was told {told}, the ledger has {row['request_id']}")
        if row["model"] != seen.ask.model or row["key_id"] != self.world.fleet.keys[seen.ask.key]:
            self._say(f"{tag} is billed to somebody else: {row}")
        billed = any(row[bucket] for bucket in BUCKETS)
        if call is None:
            self.measured.unseen += 1
            if billed or seen.served:
                self._say(f"{tag} was never at a backend, but is billed: {row}")
        elif out_of(row) > call["completion"]:
            self._say(f"{tag}: {out_of(row)} tokens are billed, {call['completion']} were produced")
        if row["state"] == "abandoned":
            self._abandoned(seen, row, lost=lost)
        elif seen.served:
            self._served(seen, row)
        else:
            self._cut(seen, row)

    def _served(self, seen: Seen, row: Row) -> None:
        self.measured.served += 1
        if (row["outcome"], row["status"], row["basis"]) != ("completed", 200, "reported"):
            self._say(f"{seen.ask.tag} was served whole, the ledger says: {row}")
        self._exact(seen, row)
        if len(seen.chunks) != seen.ask.tokens:
            self._say(f"{seen.ask.tag}: {len(seen.chunks)} of {seen.ask.tokens} chunks arrived")
        if seen.ask.stream and (seen.usage is not None) != seen.ask.usage:
            self._say(f"{seen.ask.tag}: usage asked {seen.ask.usage}, got {seen.usage}")

    def _exact(self, seen: Seen, row: Row) -> None:
        found = {bucket: row[bucket] for bucket in BUCKETS}
        if found != expected(seen):
            self._say(f"{seen.ask.tag}: billed {found}, it was {expected(seen)}")

    def _cut(self, seen: Seen, row: Row) -> None:
        """A finished row of an answer that its client did not get, or did not want, to the end."""
        self.measured.cut += 1
        if row["outcome"] == "completed" and row["status"] == 200:
            # The end is on the spool before the last bytes leave: it may be known and they lost.
            self._exact(seen, row)
        elif not seen.ask.stream:
            if row["basis"] == "reported":
                # The backend had answered in full, and its end could not be written in time.
                self._exact(seen, row)
            elif any(row[bucket] is not None for bucket in BUCKETS):
                self._say(f"{seen.ask.tag}: nothing can be known of a cut plain answer: {row}")
        elif out_of(row) < len(seen.chunks):
            self._say(
                f"{seen.ask.tag}: the client got {len(seen.chunks)} chunks, {out_of(row)} are "
                f"billed: {row}"
            )

    def _abandoned(self, seen: Seen, row: Row, *, lost: bool) -> None:
        """An open request of a dead gateway: a lower bound, and not more than a flush short."""
        self.measured.abandoned += 1
        tag = seen.ask.tag
        life = self.world.life_of(row["source"])
        if lost:
            return
        if seen.served:
            self._say(f"{tag} was served whole, and is abandoned in the ledger: {row}")
        if life is None or not life.killed or life.ended is None:
            self._say(f"{tag} is abandoned, and its gateway was not killed: {row}")
            return
        if not seen.ask.stream:
            if any(row[bucket] is not None for bucket in BUCKETS):
                self._say(f"{tag}: nothing can be known of a cut plain answer: {row}")
            return
        if row["basis"] not in ("running", "counted") and (row["chunks"] or out_of(row)):
            self._say(f"{tag} has the basis {row['basis']}")
        self._bound(seen, row, life)

    def _bound(self, seen: Seen, row: Row, life: Life) -> None:
        """How much the client saw that is not billed: by the clock, and by the last flush."""
        assert life.ended is not None, "it was killed"
        known = max(out_of(row), row["chunks"])
        # A stream that a full disk had cut was over before its gateway was killed.
        over = min(life.ended, seen.ended)
        unbilled = [at for at in seen.chunks[known:] if at <= over]
        if not unbilled:
            self.measured.short.append(0.0)
            return
        short = over - unbilled[0] - self._stood_still(row["source"], unbilled[0], over)
        self.measured.short.append(short)
        if short > FLUSH_SECONDS + SLACK_SECONDS:
            self._say(
                f"{seen.ask.tag}: {len(unbilled)} chunks of the last {short:.3f} s before the kill "
                f"are not billed: {row}"
            )
        flushed = life.flushed.get(row["source"].rpartition("/")[2], 0.0)
        self.measured.flushes += flushed > 0
        if unbilled[0] < flushed - PLACE_SECONDS:
            self._say(
                f"{seen.ask.tag}: chunk {known} came {flushed - unbilled[0]:.3f} s before running "
                f"totals were last written, and is not in them: {row}"
            )

    def _stood_still(self, source: str, start: float, end: float) -> float:
        """For how long of the seconds from `start` to `end` no client got anything of `source`."""
        arrivals = self._arrivals[source]
        within = arrivals[bisect_left(arrivals, start) : bisect_right(arrivals, end)]
        gaps = [after - before for before, after in pairwise([start, *within, end])]
        return sum(gap for gap in gaps if gap > STILL_SECONDS)

    def _sums(self) -> None:
        """The roll-up is the sum of the rows, whatever order they came in."""
        said: Counter[tuple[str, ...]] = Counter()
        for cell in self.books.hourly:
            for bucket in ROLLED:
                said[cell["key_id"], cell["model"], cell["basis"], bucket] += cell[bucket]
        added: Counter[tuple[str, ...]] = Counter()
        for row in self.books.rows:
            name = (row["key_id"], row["model"], row["basis"])
            added[(*name, "requests")] += 1
            for bucket in BUCKETS:
                added[(*name, bucket)] += row[bucket] or 0
            added[(*name, "failed_attempts")] += max(0, row["attempts"] - 1)
            if row["duration_us"] is not None and row["overhead_us"] is not None:
                added[(*name, "busy_us")] += row["duration_us"] - row["overhead_us"]
                added[(*name, "busy_known")] += 1
        if +said != +added:
            self._say(f"usage_hourly {+(said - added)} over, {+(added - said)} under its rows")


def _brief(seen: Seen) -> str:
    return f"{seen.end} {seen.status} after {len(seen.chunks)} chunks, id {seen.request_id}"


def check_bill(world: World, books: Books) -> None:
    """`tollbook bill` is the sum of the rows, and its money exact: added up here in decimals."""
    lines = json.loads(world.run("bill", "--json").stdout)["rows"]
    found = {(line["key"], line["model"], line["basis"]): line for line in lines}
    assert len(found) == len(lines), "a key, model and basis have one line"
    rows: dict[tuple[str, str, str], list[Row]] = {}
    for row in books.rows:
        rows.setdefault((row["key_id"], row["model"], row["basis"]), []).append(row)
    assert found.keys() == rows.keys(), "the bill has a line for each key, model and basis"
    for name, line in found.items():
        assert line["requests"] == len(rows[name]), line
        for bucket in BUCKETS:
            known = [row[bucket] for row in rows[name] if row[bucket] is not None]
            assert line[bucket] == (sum(known) if known else None), (bucket, line)
        price = PRICES.get(name[1])
        if price is not None:
            price_in, price_out = (Decimal(text) / 1_000_000 for text in price)
            tokens_in = sum(line[bucket] or 0 for bucket in BUCKETS[:3])
            tokens_out = sum(line[bucket] or 0 for bucket in BUCKETS[3:])
            cost = price_in * tokens_in + price_out * tokens_out
            assert Decimal(line["cost"] or 0) == cost, (cost, line)
