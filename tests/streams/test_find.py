"""Where events stand in a spool: in any segment, with others missing, and nowhere."""

import json
from pathlib import Path

import pytest

from ledger.clock import SystemClock
from streams.log.find import find_in_file, find_in_spool
from streams.log.reader import SpoolReader
from streams.log.spool import SpoolWriter
from tests.support import events as say

SOURCE = "/gateway/test/1"
REQUESTS = 60


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """Many small segments; marks between requests, and several records in one append."""
    directory = tmp_path / "spool"
    writer = SpoolWriter.create(
        directory,
        SOURCE,
        clock=SystemClock(),
        limit_bytes=1 << 24,
        reserve_bytes=1 << 16,
        segment_bytes=4096,
    )
    for n in range(REQUESTS):
        life = say.life(f"r{n}", say.after(n), f'"topic":"requests","sequence":{n},')
        writer.append(*life[:2])
        writer.append(*life[2:])
        if n % 10 == 0:
            writer.append(say.mark(SOURCE, n, say.after(n), {}))
    writer.close()
    assert len(SpoolReader(directory).segments()) > 10
    return directory


def record_at(directory: Path, offset: int) -> tuple[str, int]:
    segment = [s for s in SpoolReader(directory).segments() if s.start <= offset][-1]
    (path,) = (p for p in directory.glob("*.seg") if int(p.stem) == segment.start)
    text = path.read_bytes()[offset - segment.start :].decode(errors="replace")
    found, _ = json.JSONDecoder().raw_decode(text)
    return found["topic"], found["sequence"]


@pytest.mark.parametrize(
    "wanted",
    [
        {"requests": {1}},
        {"requests": {REQUESTS * 3}},
        {"requests": {5, 90, 91}, "tokens": {2}},
        {"sources": {1, 4, 6}},
        {"tokens": {REQUESTS}, "sources": {1}},
        {"requests": set(range(1, REQUESTS * 3 + 1))},
    ],
    ids=str,
)
def test_each_wanted_event_is_found_where_it_stands(
    spool: Path, wanted: dict[str, set[int]]
) -> None:
    found = find_in_spool(spool, wanted)
    assert found.keys() == {(topic, n) for topic, numbers in wanted.items() for n in numbers}
    for name, offset in found.items():
        assert record_at(spool, offset) == name


def test_what_is_not_there_is_not_found(spool: Path) -> None:
    wanted = {"requests": {3, 10_000}, "backends": {1}}
    assert find_in_spool(spool, wanted).keys() == {("requests", 3)}
    assert find_in_spool(spool / "none", {"requests": {1}}) == {}
    assert find_in_file(spool / "none", {(SOURCE, "registry", 1)}) == {}


def test_what_retention_took_is_not_found_and_the_rest_is(spool: Path) -> None:
    segments = sorted(spool.glob("*.seg"), key=lambda path: int(path.stem))
    for path in segments[:5]:
        path.unlink()
    found = find_in_spool(spool, {"requests": set(range(1, REQUESTS * 3 + 1))})
    numbers = sorted(number for _, number in found)
    assert 1 < numbers[0] < REQUESTS * 3 == numbers[-1]
    assert numbers == list(range(numbers[0], numbers[-1] + 1))


def test_no_more_segments_are_read_than_can_hold_what_is_wanted(
    spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    whole = Path.read_bytes

    def noted(path: Path) -> bytes:
        read.append(path.name)
        return whole(path)

    monkeypatch.setattr(Path, "read_bytes", noted)
    assert find_in_spool(spool, {"requests": {90}})
    assert len(read) == 1
