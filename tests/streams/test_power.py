"""Durability `power`: one fsync for all who wait, and no belief in a disk that failed once."""

import asyncio
import os
from pathlib import Path
from typing import Never

import pytest

from streams.errors import SpoolFailed
from streams.log.spool import Durability, SpoolWriter
from tests.streams.builders import FakeClock, accepted, attempted, finished


def spool(directory: Path, durability: Durability = "power", segment: int = 1 << 20) -> SpoolWriter:
    return SpoolWriter.create(
        directory / "aa01",
        "/gateway/test/aa01",
        clock=FakeClock(),
        limit_bytes=1 << 20,
        reserve_bytes=4096,
        segment_bytes=segment,
        durability=durability,
    )


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the files that were synced, in order."""
    sizes: list[int] = []
    fsync = os.fsync

    def noted(fd: int) -> None:
        sizes.append(os.fstat(fd).st_size)
        fsync(fd)

    monkeypatch.setattr("streams.log.sync.os.fsync", noted)
    return sizes


async def test_process_waits_for_nothing(tmp_path: Path, synced: list[int]) -> None:
    writer = spool(tmp_path, "process")
    writer.append(accepted("a"))
    await writer.durable()
    writer.sync()
    assert synced == []
    writer.close()


async def test_power_waits_until_the_bytes_are_down(tmp_path: Path, synced: list[int]) -> None:
    writer = spool(tmp_path)
    synced.clear()
    writer.append(accepted("a"), attempted("a"))
    await writer.durable()
    assert synced == [writer.written_bytes()]
    await writer.durable()
    assert len(synced) == 1, "what is down is not synced again"
    writer.close()


async def test_many_callers_share_few_syncs(tmp_path: Path, synced: list[int]) -> None:
    writer = spool(tmp_path)
    synced.clear()

    async def call(number: int) -> None:
        writer.append(accepted(f"r{number}"))
        await writer.durable()

    async with asyncio.TaskGroup() as group:
        for number in range(50):
            group.create_task(call(number))
    assert len(synced) <= 3
    assert synced[-1] == writer.written_bytes()
    writer.close()


async def test_a_turn_of_the_segment_leaves_nothing_unsynced(
    tmp_path: Path, synced: list[int]
) -> None:
    writer = spool(tmp_path, segment=900)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(12):
        writer.append(accepted(f"r{number}"))
    sizes = [path.stat().st_size for path in sorted(writer.directory.glob("*.seg"))]
    assert len(sizes) > 3
    synced.clear()
    await writer.durable()
    assert synced[: len(sizes)] == sizes
    assert len(os.listdir("/proc/self/fd")) == before, "old segments are closed once they are down"
    writer.close()


async def test_a_caller_that_is_cancelled_does_not_take_the_others_along(tmp_path: Path) -> None:
    writer = spool(tmp_path)
    writer.append(accepted("a"))
    first = asyncio.create_task(writer.durable())
    second = asyncio.create_task(writer.durable())
    await asyncio.sleep(0)
    first.cancel()
    await second
    with pytest.raises(asyncio.CancelledError):
        await first
    writer.close()


async def test_after_a_failed_fsync_nothing_is_taken_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = spool(tmp_path)
    writer.append(accepted("a"))

    def fails(fd: int) -> Never:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("streams.log.sync.os.fsync", fails)
        with pytest.raises(SpoolFailed, match="fsync in "):
            await writer.durable()
    # The kernel may report the next fsync as good although it has dropped the pages.
    with pytest.raises(SpoolFailed):
        await writer.durable()
    assert not writer.room()
    with pytest.raises(SpoolFailed, match="fsync"):
        writer.append(finished("a"))
    writer.close()


def test_a_failed_fsync_at_the_end_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = spool(tmp_path)
    writer.append(accepted("a"))

    def fails(fd: int) -> Never:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("streams.log.sync.os.fsync", fails)
        with pytest.raises(SpoolFailed):
            writer.sync()
        with pytest.raises(SpoolFailed):
            writer.close()
    writer.close()
