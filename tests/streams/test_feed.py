"""The gateway's feed on a real broker: it reads to the ends, follows, keeps a snapshot, and goes on
from it with Kafka away, up to a stated age."""

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from gateway.dev.broker import Broker
from ledger.clock import SystemClock
from ledger.events import BackendObserved, Draft, payload_of
from ledger.folds.book import Book, BookFold
from ledger.folds.book_entries import entries_of
from ledger.folds.live import KeyUsage, usage_bytes
from ledger.folds.routing import RoutingView, view_bytes
from streams.errors import LogError
from streams.kafka import snapshot
from streams.kafka.access import KafkaAccess
from streams.kafka.feed import FEED_TOPICS, REGISTRY, ROUTING, USAGE, Feed, duration
from streams.kafka.read import RECORDS_MAX, latest_values
from tests.streams.topics_house import produce
from tests.streams.worker_house import usages, working
from tests.support import events
from tests.support.derived import put
from tests.support.events import SOURCE, START, Scribe
from tests.support.kafka import access_to
from tests.support.processes import wait_until

NOBODY = KafkaAccess(bootstrap=("127.0.0.1:9",), prefix="t", partitions=2)
SOON_SECONDS = 60.0


class Clock(SystemClock):
    """The machine's clock, which a test may put forward."""

    ahead = timedelta(0)
    ahead_seconds = 0.0

    def now(self) -> datetime:
        return super().now() + self.ahead

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_seconds


def book_with(*key_ids: str) -> Book:
    fold, scribe = BookFold(Book()), Scribe()
    for key_id in key_ids:
        event = scribe.write(events.key_issued(key_id))
        assert fold.take(event, payload_of(event)) is None
    return fold.book()


def view(backend: str, gateway: str, **more: object) -> RoutingView:
    said = {
        "backend_id": backend,
        "gateway": gateway,
        "up": True,
        "source": SOURCE,
        "sequence": 1,
        "observed_at": START,
        "expires_at": START,
        "appended_ms": 0,
        "offset": 0,
    }
    return msgspec.convert(said | more, RoutingView)


@asynccontextmanager
async def running(
    access: KafkaAccess, path: Path, clock: Clock | None = None
) -> AsyncIterator[Feed]:
    """A feed that was started, until the block ends."""
    following = Feed(access, path, clock or Clock())
    following.start()
    try:
        yield following
    finally:
        await following.stop()


async def until(what: str, holds: Callable[[], bool]) -> None:
    """Wait until `holds()`; a bound for a test that fails, never a measure."""
    async with asyncio.timeout(SOON_SECONDS):
        while not holds():  # noqa: ASYNC110 - what is waited for happens on a broker
            await asyncio.sleep(0.02)


async def test_it_reads_to_the_ends_and_follows(kafka: KafkaAccess, tmp_path: Path) -> None:
    await put(kafka, REGISTRY, entries_of(book_with("key-1")))
    seen = view("b-1", "one")
    await put(kafka, ROUTING, {"b-1/one": view_bytes(seen)})
    await put(kafka, USAGE, {"key-1": usage_bytes(KeyUsage(key_id="key-1")), "key-2": b"no usage"})
    async with running(kafka, tmp_path / "feed") as following:
        assert "no broker was reached yet" in str(following.waiting_for())
        await until("it is live", lambda: following.live)
        assert following.ready and following.waiting_for() is following.note() is None
        assert set(following.book.keys) == {"key-1"}
        assert following.routing() == {("b-1", "one"): seen}
        assert (
            following.usage("key-1") == KeyUsage(key_id="key-1")
            and following.usage("key-2") is None
        )
        await put(kafka, REGISTRY, entries_of(book_with("key-2")))
        await until("the new key is known", lambda: "key-2" in following.book.keys)
        await put(kafka, REGISTRY, {"key/key-1": None})
        await put(kafka, ROUTING, {"b-1/one": None})
        await until("the key is gone", lambda: set(following.book.keys) == {"key-2"})
        await until("the view is gone", lambda: not following.routing())


async def test_a_broken_entry_leaves_what_was_and_is_named(
    kafka: KafkaAccess, tmp_path: Path
) -> None:
    await put(kafka, REGISTRY, entries_of(book_with("key-1")))
    async with running(kafka, tmp_path / "feed") as following:
        await until("it is live", lambda: following.live)
        await put(kafka, REGISTRY, {"key/key-1": b"{", "what": b"{}"})
        await until("both are named", lambda: len(following.faults()) == 2)
        assert set(following.book.keys) == {"key-1"}
        await put(kafka, REGISTRY, entries_of(book_with("key-1")) | {"what": None})
        await until("one is mended", lambda: len(following.faults()) == 1)


async def test_many_keys_do_not_hold_the_loop(kafka: KafkaAccess, tmp_path: Path) -> None:
    await put(kafka, REGISTRY, entries_of(book_with(*(f"key-{n}" for n in range(3000)))))
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with running(kafka, tmp_path / "feed") as following:
        other = asyncio.create_task(others())
        await until("all is read", lambda: len(following.book.keys) == 3000)
        other.cancel()
    assert turns > 3000 // RECORDS_MAX


async def test_that_no_worker_passes_anything_on_is_told(
    kafka: KafkaAccess, tmp_path: Path
) -> None:
    clock = Clock()
    async with running(kafka, tmp_path / "feed", clock) as following:
        await until("it is live", lambda: following.live)
        assert following.note() is None
        clock.ahead_seconds = 40.0
        assert "no worker has passed anything on for" in str(following.note())
        assert following.ready
        await put(kafka, ROUTING, {"b-1/one": view_bytes(view("b-1", "one"))})
        await until("a worker is heard of", lambda: following.note() is None)


async def test_with_kafka_away_it_goes_on_from_the_snapshot_and_says_its_age(
    kafka: KafkaAccess, tmp_path: Path
) -> None:
    path = tmp_path / "feed"
    await put(kafka, REGISTRY, entries_of(book_with("key-1")))
    async with running(kafka, path) as following:
        await until("it is live", lambda: following.live)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and os.listdir(tmp_path) == [path.name]
    away = msgspec.structs.replace(kafka, bootstrap=("127.0.0.1:9",))
    clock = Clock()
    clock.ahead = timedelta(hours=3)
    async with running(away, path, clock) as following:
        await until("it goes on", lambda: following.ready)
        assert set(following.book.keys) == {"key-1"} and not following.live
        assert "keys are as they were 3 h ago" in str(following.note())
        assert "127.0.0.1:9" in str(following.note()) and following.waiting_for() is None
        clock.ahead = timedelta(hours=25)
        assert not following.ready
        assert "25 h old, and more than 24 h is not served" in str(following.waiting_for())
        clock.ahead = -timedelta(hours=25)
        assert not following.ready


async def test_with_kafka_away_and_no_snapshot_it_waits(tmp_path: Path) -> None:
    async with running(NOBODY, tmp_path / "feed") as following:
        await until("it was tried", lambda: "cannot be reached" in str(following.waiting_for()))
        assert not following.ready and following.note() is None
        assert following.failed() is None
    assert os.listdir(tmp_path) == []


async def test_without_topics_it_waits_and_says_how_to_make_them(
    kafka: KafkaAccess, tmp_path: Path
) -> None:
    elsewhere = msgspec.structs.replace(kafka, prefix="nothing-here")
    async with running(elsewhere, tmp_path / "feed") as following:
        await until("it says so", lambda: "topics create" in str(following.waiting_for()))
        assert not following.ready


def test_a_broker_that_goes_and_comes_back_is_noticed(own_broker: Broker, tmp_path: Path) -> None:
    kafka = access_to(own_broker)

    async def main() -> None:
        await put(kafka, REGISTRY, entries_of(book_with("key-1")))
        async with running(kafka, tmp_path / "feed") as following:
            await until("it is live", lambda: following.live)
            await asyncio.to_thread(own_broker.kill)
            await until("it is noticed", lambda: not following.live)
            assert following.ready and "ago" in str(following.note())
            assert set(following.book.keys) == {"key-1"}
            await asyncio.to_thread(own_broker.restart)
            await put(kafka, REGISTRY, entries_of(book_with("key-2")))
            await until("it is back", lambda: "key-2" in following.book.keys)
            assert following.live and following.note() is None

    asyncio.run(main())


async def test_a_snapshot_that_is_broken_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "feed"
    values = {REGISTRY: {"key/a": b"{}", "key/b": b"\xff"}, ROUTING: {}}
    await snapshot.save(path, "t", START, values)
    found = snapshot.load(path, "t")
    assert found == snapshot.Snapshot(START, {REGISTRY: values[REGISTRY]})
    with pytest.raises(LogError, match="prefix 't', not of 1 and 'other'"):
        snapshot.load(path, "other")
    whole = path.read_bytes()
    bit = whole.replace(b"e30=", b"e31=")
    naive = whole.replace(b'Z"', b'"')
    assert whole not in (bit, naive)
    for cut in (b"", whole[:-8], whole[: whole.index(b"\n") + 1], b"\xff" + whole, bit, naive):
        path.write_bytes(cut)
        with pytest.raises(LogError, match="not used"):
            snapshot.load(path, "t")
    async with running(NOBODY, path) as following:
        await until("it was tried", lambda: "cannot be reached" in str(following.waiting_for()))
        assert not following.ready
    assert snapshot.load(tmp_path / "none", "t") is None


async def test_a_snapshot_that_cannot_be_written_leaves_the_last_one(tmp_path: Path) -> None:
    path = tmp_path / "feed"
    await snapshot.save(path, "t", START, {REGISTRY: {}})
    with pytest.raises(LogError, match="could not be written"):
        await snapshot.save(path / "below", "t", START, {REGISTRY: {}})
    assert snapshot.load(path, "t") == snapshot.Snapshot(START, {})


def test_durations_are_said_in_the_size_that_fits() -> None:
    said = [duration(seconds) for seconds in (5, 119, 120, 7200, 172_800)]
    assert said == ["5 s", "119 s", "2 min", "2 h", "2 d"]


def test_a_worker_that_is_dead_for_ten_minutes_empties_nothing(
    kafka: KafkaAccess, tmp_path: Path
) -> None:
    scribe = Scribe()
    seen = BackendObserved(backend_id="b-1", gateway="one", up=True, expires_at=events.after(10))
    observed = Draft("o1", "b-1", START, seen)
    first, second = (
        [draft for draft in events.life(name, at) if draft.payload.TOPIC == "requests"]
        for name, at in (("r1", START), ("r2", events.after(600)))
    )

    def values() -> dict[str, dict[bytes, bytes]]:
        return {name: asyncio.run(latest_values(kafka, name, "test")) for name in FEED_TOPICS}

    def ended() -> int:
        usage = usages(kafka).get("key-1")
        return 0 if usage is None else usage.ended

    asyncio.run(produce(kafka, scribe.write_all(events.key_issued("key-1"), observed, *first)))
    with working(kafka) as worker:
        wait_until("a request has its end", lambda: ended() == 1)
        before = wait_until("all is folded", lambda: all((found := values()).values()) and found)
        worker.kill()
    asyncio.run(produce(kafka, scribe.write_all(*second)))

    async def ten_minutes_later() -> None:
        clock = Clock()
        async with running(kafka, tmp_path / "feed", clock) as following:
            await until("it is live", lambda: following.live)
            clock.ahead = timedelta(minutes=10)
            await until("Kafka was heard of", lambda: (following.age_seconds() or 600) < 300)
            assert following.ready and following.waiting_for() is following.note() is None
            assert set(following.book.keys) == {"key-1"}
            assert set(following.routing()) == {("b-1", "one")}
            usage = following.usage("key-1")
            assert usage is not None and usage.ended == 1

    asyncio.run(ten_minutes_later())
    assert values() == before
    with working(kafka):
        wait_until("the next worker goes on", lambda: ended() == 2)
    after = values()
    assert (after[ROUTING], after[REGISTRY]) == (before[ROUTING], before[REGISTRY])
