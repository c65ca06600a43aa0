"""When the disk refuses: nothing old is lost, new requests are refused first, ends come last."""

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Never

import pytest

from ledger.events import Event
from streams.errors import SpoolFailed, SpoolFull
from streams.log.lock import FileLock, held
from streams.log.reader import SpoolReader
from streams.log.segment import frame
from streams.log.spool import CONSUMED, LOCK, RESERVE, SpoolWriter, segment_name
from tests.streams.builders import FakeClock, accepted, attempted, delivered, finished
from tests.support.processes import wait_until

NAME = "/gateway/test/0192aa"


def spool(directory: Path, clock: FakeClock, segment_bytes: int = 1 << 20) -> SpoolWriter:
    return SpoolWriter.create(
        directory / "0192aa",
        NAME,
        clock=clock,
        limit_bytes=1 << 20,
        reserve_bytes=1 << 16,
        segment_bytes=segment_bytes,
    )


def read_all(directory: Path) -> tuple[list[Event], int]:
    reader = SpoolReader(directory)
    events: list[Event] = []
    offset = 0
    while (chunk := reader.read(offset)).next_offset > offset:
        assert chunk.missing is None and chunk.broken is None and not chunk.poison
        events += chunk.events
        offset = chunk.next_offset
    reader.close()
    assert chunk.waiting == 0
    return events, offset


def test_a_new_spool_is_whole_locked_and_named_before_it_is_visible(tmp_path: Path) -> None:
    writer = spool(tmp_path, FakeClock())
    assert [entry.name for entry in tmp_path.iterdir()] == ["0192aa"]
    assert SpoolReader(writer.directory).source() == NAME
    assert held(writer.directory / LOCK)
    assert (writer.directory / RESERVE).stat().st_blocks * 512 >= 1 << 16
    writer.close()
    assert not held(writer.directory / LOCK)
    assert not (writer.directory / RESERVE).exists(), "a dead spool needs no reserve"


def test_a_second_writer_of_one_spool_is_refused(tmp_path: Path) -> None:
    writer = spool(tmp_path, FakeClock())
    with pytest.raises(SpoolFailed, match="cannot start a spool"):
        spool(tmp_path, FakeClock())
    assert [entry.name for entry in tmp_path.iterdir()] == ["0192aa"]
    writer.append(accepted("a"))
    writer.close()


def test_segments_turn_and_offsets_run_on(tmp_path: Path) -> None:
    writer = spool(tmp_path, FakeClock(), segment_bytes=1500)
    for number in range(20):
        writer.append(accepted(f"r{number}"))
    segments = SpoolReader(writer.directory).segments()
    assert len(segments) > 3
    for one, next_one in pairwise(segments):
        assert one.end == next_one.start
    events, end = read_all(writer.directory)
    assert [event.sequence for event in events] == list(range(1, 21))
    assert end == writer.written_bytes() == segments[-1].end
    writer.close()


class FullDisk:
    """Stands in for `os.write`: refuses, or takes a part, as long as there is no room."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room: int | None = None
        self._write = os.write
        monkeypatch.setattr("streams.log.spool.os.write", self.write)

    def write(self, fd: int, data: bytes) -> int:
        if self.room is None:
            return self._write(fd, data)
        if self.room == 0:
            raise OSError(28, "No space left on device")
        taken = self._write(fd, data[: self.room])
        self.room -= taken
        return taken


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FullDisk:
    return FullDisk(monkeypatch)


@pytest.mark.parametrize("room", [0, 1, 7, 8, 9, 300, 500])
def test_a_full_disk_refuses_a_new_request_and_keeps_the_reserve(
    tmp_path: Path, disk: FullDisk, room: int
) -> None:
    writer = spool(tmp_path, FakeClock())
    writer.append(accepted("a"), attempted("a"))
    before = writer.written_bytes()
    disk.room = room
    with pytest.raises(SpoolFull, match="takes no more"):
        writer.append(accepted("b"), attempted("b"))
    assert (writer.directory / RESERVE).exists()
    assert not writer.room()
    disk.room = None
    writer.append(finished("a"))
    events, end = read_all(writer.directory)
    assert [(event.id, event.sequence) for event in events] == [
        ("a/accepted", 1),
        ("a/attempted/1", 2),
        ("a/finished", 3),
    ]
    assert end == writer.written_bytes() > before
    writer.close()


def test_the_end_of_an_open_request_may_use_the_reserve(
    tmp_path: Path, disk: FullDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    writer = spool(tmp_path, clock)
    writer.append(accepted("a"), attempted("a"))
    disk.room = 100
    unlink = Path.unlink

    def gives_room(path: Path, missing_ok: bool = False) -> None:
        unlink(path, missing_ok)
        disk.room = None

    monkeypatch.setattr(Path, "unlink", gives_room)
    writer.append(finished("a"))
    assert not (writer.directory / RESERVE).exists()
    assert not writer.room(), "without its reserve a spool takes no new request"
    with pytest.raises(SpoolFull):
        writer.append(accepted("b"))
    clock.advance(1.1)
    assert writer.room(), "the disk has room again, so the reserve is whole again"
    assert (writer.directory / RESERVE).stat().st_size == 1 << 16
    writer.append(accepted("b"))
    assert [event.id for event in read_all(writer.directory)[0]] == [
        "a/accepted",
        "a/attempted/1",
        "a/finished",
        "b/accepted",
    ]
    writer.close()


def test_when_the_reserve_does_not_help_the_append_fails_and_leaves_nothing(
    tmp_path: Path, disk: FullDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    writer = spool(tmp_path, clock)
    writer.append(accepted("a"))
    disk.room = 10
    with pytest.raises(SpoolFailed, match="free space"):
        writer.append(delivered("a", 1, 3), finished("a"))
    assert writer.last() == {"requests": 1}

    def still_full(fd: int, offset: int, size: int) -> Never:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("streams.log.spool.os.posix_fallocate", still_full)
        clock.advance(1.1)
        assert not writer.room()
        assert not (writer.directory / RESERVE).exists(), "half a reserve is given back"
    disk.room = None
    clock.advance(1.1)
    assert writer.room()
    writer.append(finished("a"))
    assert [(event.id, event.sequence) for event in read_all(writer.directory)[0]] == [
        ("a/accepted", 1),
        ("a/finished", 2),
    ]
    writer.close()


def test_a_spool_that_cannot_be_cut_back_takes_no_more(
    tmp_path: Path, disk: FullDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = spool(tmp_path, FakeClock())
    writer.append(accepted("a"))
    disk.room = 10

    def fails(fd: int, size: int) -> Never:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("streams.log.spool.os.ftruncate", fails)
    with pytest.raises(SpoolFailed, match="cannot be cut back"):
        writer.append(finished("a"))
    disk.room = None
    with pytest.raises(SpoolFailed, match="cannot be cut back"):
        writer.append(finished("a"))
    assert not writer.room()
    reader = SpoolReader(writer.directory)
    chunk = reader.read(0)
    assert [event.id for event in chunk.events] == ["a/accepted"]
    assert (chunk.waiting, chunk.broken) == (10, None), "a torn tail, as after a kill"
    reader.close()
    writer.close()


def test_if_no_new_segment_can_be_made_the_old_one_grows_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = spool(tmp_path, FakeClock(), segment_bytes=500)
    writer.append(accepted("a"), attempted("a"))

    def no_file(directory: Path, start: int) -> Never:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("streams.log.spool._open_segment", no_file)
        writer.append(delivered("a", 1, 1))
        writer.append(delivered("a", 2, 2))
    assert len(SpoolReader(writer.directory).segments()) == 1
    writer.append(finished("a"))
    assert len(SpoolReader(writer.directory).segments()) == 2
    assert len(read_all(writer.directory)[0]) == 5
    writer.close()


@pytest.mark.parametrize("mark", [b"", b"\xff" * 8, (10**9).to_bytes(8, "big"), b"ab"])
def test_a_consumed_mark_that_lies_is_not_believed(tmp_path: Path, mark: bytes) -> None:
    clock = FakeClock()
    writer = spool(tmp_path, clock)
    writer.append(accepted("a"))
    (writer.directory / CONSUMED).write_bytes(mark)
    clock.advance(1)
    assert writer.unconsumed_bytes() == writer.written_bytes()
    writer.append(finished("a"))
    clock.advance(1)
    assert writer.unconsumed_bytes() == writer.written_bytes()
    writer.close()


def test_a_spool_without_space_for_its_reserve_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, offset: int, size: int) -> Never:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("streams.log.spool.os.posix_fallocate", full)
    with pytest.raises(SpoolFailed, match="No space left on device; it needs 65536 bytes"):
        spool(tmp_path, FakeClock())
    assert list(tmp_path.iterdir()) == [], "what was begun is taken away again"


REAL_LIMIT = """
import resource, sys
from pathlib import Path
from streams.errors import SpoolFailed, SpoolFull
from streams.log.segment import frame
from streams.log.spool import SpoolWriter
from tests.streams.builders import FakeClock, accepted, finished

writer = SpoolWriter.create(Path(sys.argv[1]), "/gateway/test/0192aa", clock=FakeClock(),
                            limit_bytes=1 << 20, reserve_bytes=4096)
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
count = 0
try:
    while True:
        writer.append(accepted(f"r{count}"))
        count += 1
except SpoolFull as full:
    print("full", count, full)
ended = 0
try:
    while True:
        writer.append(finished("r0"))
        ended += 1
except SpoolFailed as failed:
    print("failed", ended, failed)
print(writer.last(), writer.written_bytes())
"""


def test_a_real_limit_of_the_operating_system_is_met_with_words(tmp_path: Path) -> None:
    """The kernel itself cuts the write short: no mock stands between us and the disk."""
    directory = tmp_path / "0192aa"
    done = subprocess.run(
        [sys.executable, "-c", REAL_LIMIT, str(directory)],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    full, failed, state = done.stdout.splitlines()
    assert full.startswith("full") and "takes no more" in full
    assert failed.startswith("failed") and "free space" in failed
    count = int(full.split()[1]) + int(failed.split()[1])
    events, end = read_all(directory)
    assert len(events) == count > 5
    assert state == f"{{'requests': {count}}} {end}"
    assert end <= 5000


KILLED = """
import os, sys
from pathlib import Path
from streams.log.segment import frame
from streams.log.spool import SpoolWriter
from tests.streams.builders import FakeClock, accepted, delivered

writer = SpoolWriter.create(Path(sys.argv[1]), "/gateway/test/0192aa", clock=FakeClock(),
                            segment_bytes=20_000)
print("started", flush=True)
number = 0
while True:
    writer.append(accepted(f"r{number}"), delivered(f"r{number}", 1, 1))
    number += 1
    print(number, flush=True)
"""


def test_a_killed_writer_leaves_whole_appends_and_a_free_lock(tmp_path: Path) -> None:
    directory = tmp_path / "0192aa"
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(directory)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        said = "0"
        for line in process.stdout:
            said = line
            if line.strip() == "300":
                assert held(directory / LOCK)
                process.kill()
        process.wait(10)
    events, _ = read_all(directory)
    assert len(events) % 2 == 0, "an append is all there or not at all"
    assert len(events) // 2 >= int(said), "what a killed process had appended is there"
    assert not held(directory / LOCK)


def test_a_lock_is_one_holders_and_free_after(tmp_path: Path) -> None:
    lock = FileLock.take(tmp_path / "lock")
    assert lock is not None
    assert FileLock.take(tmp_path / "lock") is None
    assert held(tmp_path / "lock")
    lock.release()
    lock.release()
    assert not held(tmp_path / "lock")
    assert not held(tmp_path / "missing")
    again = FileLock.take(tmp_path / "lock")
    assert again is not None
    again.release()


FORKED = """
import os, sys, time
from pathlib import Path
from streams.log.lock import FileLock

lock = FileLock.take(Path(sys.argv[1]))
if os.fork() == 0:
    os.close(1)
    time.sleep(20)
    os._exit(0)
print("forked", flush=True)
time.sleep(20)
"""


def test_a_forked_child_does_not_keep_its_dead_parents_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    process = subprocess.Popen(
        [sys.executable, "-c", FORKED, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "forked\n"
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    try:
        assert held(path)
        process.kill()
        process.wait(10)
        # The parent may have said its word before the child came to let go.
        wait_until("the lock is free", lambda: not held(path))
    finally:
        for child in children:
            os.kill(int(child), 9)
        process.stdout.close()


def test_the_reader_names_a_gap_and_goes_on_behind_it(tmp_path: Path) -> None:
    writer = spool(tmp_path, FakeClock(), segment_bytes=1000)
    for number in range(20):
        writer.append(accepted(f"r{number}"))
    segments = SpoolReader(writer.directory).segments()
    for gone in (segments[0], segments[1], segments[3]):
        (writer.directory / segment_name(gone.start)).unlink()
    reader = SpoolReader(writer.directory)
    first = reader.read(0)
    assert first.missing is not None and not first.empty
    assert (first.missing.start, first.missing.end) == (0, segments[2].start)
    second = reader.read(first.next_offset)
    assert second.next_offset == segments[2].end and second.events
    third = reader.read(second.next_offset)
    assert third.missing is not None
    assert (third.missing.start, third.missing.end) == (segments[2].end, segments[4].start)
    offset = third.next_offset
    while (chunk := reader.read(offset)).next_offset > offset:
        assert chunk.missing is None
        offset = chunk.next_offset
    assert offset == writer.written_bytes()
    reader.close()
    writer.close()


def test_the_reader_says_when_it_is_asked_beyond_the_end(tmp_path: Path) -> None:
    writer = spool(tmp_path, FakeClock(), segment_bytes=1000)
    for number in range(5):
        writer.append(accepted(f"r{number}"))
    reader = SpoolReader(writer.directory)
    end = writer.written_bytes()
    assert not reader.read(end).behind
    assert reader.read(end + 1).behind
    reader.close()
    assert reader.read(end + 100).behind
    assert reader.read(end + 100).next_offset == end + 100
    reader.close()
    writer.close()


def test_a_record_that_is_no_event_is_set_aside_with_its_offset(tmp_path: Path) -> None:
    writer = spool(tmp_path, FakeClock())
    writer.append(accepted("a"))
    end = writer.written_bytes()
    path = writer.directory / segment_name(0)
    good = read_all(writer.directory)[0][0]
    with path.open("ab") as file:
        file.write(frame([b"not json", b"{}"]))
    reader = SpoolReader(writer.directory)
    chunk = reader.read(0)
    assert chunk.events == [good]
    assert [(bad.offset, bad.record) for bad in chunk.poison] == [
        (end + 8, b"not json"),
        (end + 17, b"{}"),
    ]
    assert all(bad.reason.startswith("not an event record") for bad in chunk.poison)
    reader.close()
    writer.close()
