"""The registry log: one order for all commands, whoever runs them and however they end."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Never

import pytest

from ledger.errors import RegistryRefused, UnknownEvent
from ledger.events import Draft, KeyIssued, KeyRevoked, PricePublished
from ledger.folds.book import Book
from streams.errors import LogCorrupt, LogError
from streams.log.registry import LOG, RegistryLog, RegistryTail, read_registry
from streams.log.segment import frame
from tests.streams.builders import START, FakeClock, accepted


def issue(key_id: str) -> Callable[[Book], Draft]:
    """A command that issues `key_id`, made from whatever the book says of it."""

    def make(book: Book) -> Draft:
        known = book.keys.get(key_id)
        base = known.version if known else 0
        payload = KeyIssued(
            key_id=key_id,
            base=base,
            version=base + 1,
            hash=hashlib.sha256(key_id.encode()).hexdigest(),
        )
        return Draft(f"{key_id}/v{base + 1}", key_id, START, payload)

    return make


def revoke(key_id: str, base: int) -> Callable[[Book], Draft]:
    """A command that revokes `key_id`, made from version `base` and from nothing newer."""

    def make(book: Book) -> Draft:
        payload = KeyRevoked(
            key_id=key_id,
            base=base,
            version=base + 1,
            hash=hashlib.sha256(key_id.encode()).hexdigest(),
            revoked_at=START,
        )
        return Draft(f"{key_id}/v{base + 1}", key_id, START, payload)

    return make


def registry(directory: Path, source: str = "/cli/test/1") -> RegistryLog:
    return RegistryLog(directory / "registry", source, clock=FakeClock())


def test_a_command_sees_what_came_before_and_gets_the_book_with_its_own(tmp_path: Path) -> None:
    log = registry(tmp_path)
    assert set(log.append(issue("k1")).keys) == {"k1"}
    assert set(registry(tmp_path, "/cli/test/2").append(issue("k2")).keys) == {"k1", "k2"}
    book = log.append(revoke("k1", 1))
    assert book.keys["k1"].revoked_at == START
    events = read_registry(tmp_path / "registry" / LOG, 0).events
    assert [(event.source, event.sequence) for event in events] == [
        ("/cli/test/1", 1),
        ("/cli/test/2", 1),
        ("/cli/test/1", 2),
    ]


def test_what_the_fold_refuses_is_not_written(tmp_path: Path) -> None:
    log = registry(tmp_path)
    log.append(issue("k1"))
    log.append(revoke("k1", 1))
    before = (tmp_path / "registry" / LOG).read_bytes()
    with pytest.raises(RegistryRefused, match="is at version 2 by now"):
        log.append(revoke("k1", 1))
    assert (tmp_path / "registry" / LOG).read_bytes() == before
    log.append(issue("k2"))
    assert read_registry(tmp_path / "registry" / LOG, 0).events[-1].sequence == 3


def test_a_command_that_gives_up_leaves_no_trace_and_no_lock(tmp_path: Path) -> None:
    log = registry(tmp_path)

    def give_up(book: Book) -> Never:
        raise RegistryRefused("no such key")

    with pytest.raises(RegistryRefused, match="no such key"):
        log.append(give_up)
    log.append(issue("k1"))


def test_a_change_too_large_for_the_log_is_refused_with_words(tmp_path: Path) -> None:
    def huge(book: Book) -> Draft:
        payload = KeyIssued(
            key_id="k", base=0, version=1, hash="0" * 64, models=["m" * 1000] * 2000
        )
        return Draft("k/v1", "k", START, payload)

    with pytest.raises(RegistryRefused, match="too large"):
        registry(tmp_path).append(huge)


def test_an_event_that_does_not_belong_into_the_registry_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RegistryRefused, match="does not belong into the registry"):
        registry(tmp_path).append(lambda book: accepted("r"))


@pytest.mark.parametrize("left", [1, 7, 8, 30, 200])
def test_a_killed_commands_torn_tail_is_cut_by_the_next_and_kept_aside(
    tmp_path: Path, left: int
) -> None:
    log = registry(tmp_path)
    log.append(issue("k1"))
    path = tmp_path / "registry" / LOG
    whole = path.read_bytes()
    tail = RegistryTail(path)
    assert tail.poll() is not None
    path.write_bytes(whole + whole[:left])
    assert tail.poll() is None, "readers wait for a tail that is not whole"
    book = registry(tmp_path, "/cli/test/2").append(issue("k2"))
    assert set(book.keys) == {"k1", "k2"}
    polled = tail.poll()
    assert polled == book
    assert (path.parent / f"{LOG}.torn-{len(whole)}").read_bytes() == whole[:left]


def test_broken_bytes_before_whole_records_stop_commands_and_readers(tmp_path: Path) -> None:
    log = registry(tmp_path)
    for number in range(3):
        log.append(issue(f"k{number}"))
    path = tmp_path / "registry" / LOG
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(LogCorrupt, match="broken bytes at"):
        log.append(issue("k9"))
    assert path.read_bytes() == bytes(data), "nothing is written behind broken bytes"
    tail = RegistryTail(path)
    for _ in range(2):
        with pytest.raises(LogCorrupt):
            tail.poll()
    assert set(tail.book.keys) == {"k0"}, "what is older is not lost"


def newer_event(path: Path) -> None:
    """Append an event of a type that only a newer version knows."""
    record = json.loads(frame_payload(path))
    record |= {"type": "tollbook.key.frozen.v1", "id": "x/v9", "sequence": 99}
    with path.open("ab") as file:
        file.write(frame([json.dumps(record, separators=(",", ":")).encode()]))


def frame_payload(path: Path) -> bytes:
    return path.read_bytes()[8:].split(b"}}")[0] + b"}}"


def test_an_event_of_a_newer_version_stops_readers_until_they_are_upgraded(tmp_path: Path) -> None:
    log = registry(tmp_path)
    log.append(issue("k1"))
    path = tmp_path / "registry" / LOG
    tail = RegistryTail(path)
    tail.poll()
    newer_event(path)
    for _ in range(2):
        with pytest.raises(UnknownEvent, match="upgrade"):
            tail.poll()
    assert set(tail.book.keys) == {"k1"}
    with pytest.raises(UnknownEvent):
        log.append(issue("k2"))


def test_a_tail_sees_each_change_once_and_costs_a_look_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "registry" / LOG
    tail = RegistryTail(path)
    assert tail.poll() is None
    assert tail.book == Book()
    log = registry(tmp_path)
    log.append(issue("k1"))
    first = tail.poll()
    assert first is not None and set(first.keys) == {"k1"}
    assert tail.poll() is None
    log.append(issue("k2"))
    log.append(revoke("k1", 1))
    second = tail.poll()
    assert second is tail.book
    assert second is not None
    assert second.keys["k1"].revoked_at == START
    assert "k2" in second.keys


def test_a_tail_starts_over_when_the_log_was_put_back(tmp_path: Path) -> None:
    log = registry(tmp_path)
    log.append(issue("k1"))
    path = tmp_path / "registry" / LOG
    old = path.read_bytes()
    log.append(issue("k2"))
    tail = RegistryTail(path)
    tail.poll()
    path.write_bytes(old)
    book = tail.poll()
    assert book is not None and set(book.keys) == {"k1"}
    path.write_bytes(b"")
    assert tail.poll() == Book()


def test_a_disk_that_refuses_leaves_the_registry_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = registry(tmp_path)
    log.append(issue("k1"))
    path = tmp_path / "registry" / LOG
    before = path.read_bytes()
    import os

    real = os.write
    with monkeypatch.context() as patch:
        patch.setattr("streams.log.registry.os.write", lambda fd, data: real(fd, data[:20]))
        with pytest.raises(LogError, match="nothing was changed"):
            log.append(issue("k2"))
    assert path.read_bytes() == before
    assert set(log.append(issue("k2")).keys) == {"k1", "k2"}


def test_a_command_waits_for_a_hanging_one_only_so_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streams.log.lock import FileLock

    (tmp_path / "registry").mkdir()
    hanging = FileLock.take(tmp_path / "registry" / "lock")
    assert hanging is not None
    clock = FakeClock()
    monkeypatch.setattr("streams.log.registry.time.sleep", clock.advance)
    log = RegistryLog(tmp_path / "registry", "/cli/test/1", clock=clock)
    with pytest.raises(LogError, match="another command has held"):
        log.append(issue("k1"))
    assert 10 < clock.seconds < 10.1
    hanging.release()
    log.append(issue("k1"))


RACER = """
import sys
from pathlib import Path
from ledger.clock import SystemClock
from ledger.errors import RegistryRefused
from streams.log.registry import RegistryLog
from tests.streams.test_registry_log import issue, revoke

log = RegistryLog(Path(sys.argv[1]), sys.argv[2], clock=SystemClock())
own = won = 0
sys.stdin.readline()
for number in range(40):
    log.append(issue(f"{sys.argv[2]}-{number}"))
    own += 1
    try:
        log.append(revoke(f"shared-{number}", 1))
        won += 1
    except RegistryRefused:
        pass
print(own, won)
"""


def test_two_processes_race_and_every_change_counts_exactly_once(tmp_path: Path) -> None:
    first = registry(tmp_path)
    for number in range(40):
        first.append(issue(f"shared-{number}"))
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(tmp_path / "registry"), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("/cli/a/1", "/cli/b/1")
    ]
    said = []
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    for racer in racers:
        out, _ = racer.communicate(timeout=60)
        assert racer.returncode == 0
        said.append([int(word) for word in out.split()])
    assert [own for own, _ in said] == [40, 40]
    assert sum(won for _, won in said) == 40, "of two commands from one version exactly one wins"
    chunk = read_registry(tmp_path / "registry" / LOG, 0)
    assert chunk.broken is None and chunk.waiting == 0 and not chunk.poison
    assert len(chunk.events) == 40 + 80 + 40
    for name in ("/cli/a/1", "/cli/b/1"):
        sequences = [event.sequence for event in chunk.events if event.source == name]
        assert sequences == list(range(1, len(sequences) + 1))
    tail = RegistryTail(tmp_path / "registry" / LOG)
    book = tail.poll()
    assert book is not None and len(book.keys) == 120
    assert all(book.keys[f"shared-{n}"].revoked_at is not None for n in range(40))


def test_prices_go_through_the_same_log(tmp_path: Path) -> None:
    def publish(book: Book) -> Draft:
        payload = PricePublished(
            price_id="p1",
            model="gemma",
            base=0,
            version=1,
            currency="EUR",
            effective_from=datetime(2026, 12, 1, tzinfo=UTC),
            per_million={"other_out": "0.30"},
        )
        return Draft("p1", "gemma", START, payload)

    book = registry(tmp_path).append(publish)
    assert book.prices[0].pico == {"other_out": 300_000}
    with pytest.raises(RegistryRefused, match="prices of gemma are at version 1"):
        registry(tmp_path, "/cli/test/2").append(publish)
