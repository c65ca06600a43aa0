"""Frames: whatever happens to the bytes, the whole records before it come back unharmed."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.events import Event
from streams.codec import decode, encode
from streams.log.reader import SpoolReader
from streams.log.segment import FRAME_BYTES_MAX, frame, next_frame, records, scan
from streams.log.spool import segment_name
from tests.streams.builders import START, accepted, attempted, finished

SOURCE = "/gateway/test/0"


def whole_frames(count: int) -> list[bytes]:
    """`count` frames of one to three real records each."""
    made, sequence = [], 0
    for number in range(count):
        drafts = [accepted(f"r{number}"), attempted(f"r{number}"), finished(f"r{number}")]
        lines = []
        for draft in drafts[: 1 + number % 3]:
            sequence += 1
            lines.append(encode(draft, SOURCE, sequence, START))
        made.append(frame(lines))
    return made


FRAMES = whole_frames(12)
LOG = b"".join(FRAMES)
BOUNDS = [sum(map(len, FRAMES[:n])) for n in range(len(FRAMES) + 1)]


def frames_before(offset: int) -> int:
    """How many frames end at or before `offset`."""
    return sum(1 for bound in BOUNDS[1:] if bound <= offset)


def test_what_was_framed_comes_back_in_order() -> None:
    found, end = scan(LOG)
    assert end == len(LOG)
    assert [start for start, _ in found] == BOUNDS[:-1]
    for (start, payload), original in zip(found, FRAMES, strict=True):
        for at, record in records(payload):
            assert LOG[start + at : start + at + len(record)] == record
            assert isinstance(decode(record), Event)
        assert LOG[start : start + len(original)] == original


@pytest.mark.parametrize("lines", [[], [b""], [b"x" * (FRAME_BYTES_MAX + 1)]])
def test_a_frame_of_nothing_or_of_too_much_is_refused(lines: list[bytes]) -> None:
    with pytest.raises(ValueError, match="an append of"):
        frame(lines)


def test_a_hole_of_zeros_is_no_frame() -> None:
    # Eight zero bytes have a valid CRC-32 of nothing; a power cut leaves such holes.
    assert scan(bytes(64)).frames == []


@given(st.integers(0, len(LOG)))
def test_a_log_cut_anywhere_gives_all_whole_frames_and_no_corruption(cut: int) -> None:
    torn = LOG[:cut]
    found, end = scan(torn)
    assert len(found) == frames_before(cut)
    assert end == BOUNDS[len(found)]
    assert next_frame(torn, end + 1) is None


@given(st.integers(0, len(LOG) - 1), st.integers(1, 255))
def test_a_flipped_byte_loses_no_frame_before_it_and_is_seen(at: int, flip: int) -> None:
    broken = bytearray(LOG)
    broken[at] ^= flip
    found, end = scan(bytes(broken))
    assert len(found) == frames_before(at)
    later = next_frame(bytes(broken), end + 1)
    if frames_before(at) < len(FRAMES) - 1:
        assert later is not None and later in BOUNDS, "whole frames behind it prove corruption"
    else:
        assert later is None


@given(st.binary(max_size=400), st.integers(0, 40))
def test_any_bytes_give_a_value(data: bytes, start: int) -> None:
    found, end = scan(data, start)
    assert end >= start
    assert (end == start) == (found == [])
    found_later = next_frame(data, start)
    assert found_later is None or found_later >= start


flips_of_bytes = st.lists(st.tuples(st.integers(0, len(LOG) - 1), st.integers(1, 255)), max_size=3)


@given(st.integers(0, len(LOG)), flips_of_bytes, st.sampled_from(BOUNDS))
def test_a_reader_gives_whole_records_or_says_what_is_broken(
    cut: int, flips: list[tuple[int, int]], turn: int
) -> None:
    """Any tear and any flips: nothing before the first of them is lost, nothing is made up."""
    log = bytearray(LOG)
    for at, flip in flips:
        log[at] ^= flip
    broken = bytes(log[:cut])
    with TemporaryDirectory() as name:
        write_segments(Path(name), broken, turn)
        events, offset, corrupt = read_to_end(Path(name))
    first = next((at for at in range(cut) if broken[at] != LOG[at]), cut)
    intact = frames_before(first)
    assert offset == BOUNDS[intact], "all that is older than the first broken byte, and no more"
    sizes = [len(records(payload)) for _, payload in scan(LOG).frames[:intact]]
    assert len(events) == sum(sizes)
    clean_behind = [
        number
        for number in range(intact + 1, len(FRAMES))
        if BOUNDS[number + 1] <= cut
        and broken[BOUNDS[number] : BOUNDS[number + 1]] == FRAMES[number]
    ]
    if first < cut and (clean_behind or (intact < len(FRAMES) and first < turn < cut)):
        assert corrupt, "whole records or a whole segment behind broken bytes prove corruption"
    if first == cut:
        assert not corrupt, "a torn tail is no corruption"


def write_segments(directory: Path, log: bytes, turn: int) -> None:
    """`log` as two segments that meet at `turn`, or as one if it ends before."""
    (directory / segment_name(0)).write_bytes(log[: turn or None])
    if 0 < turn < len(log):
        (directory / segment_name(turn)).write_bytes(log[turn:])


def read_to_end(directory: Path) -> tuple[list[Event], int, bool]:
    reader = SpoolReader(directory)
    events: list[Event] = []
    offset, corrupt = 0, False
    while True:
        chunk = reader.read(offset)
        events += chunk.events
        corrupt = corrupt or chunk.broken is not None
        assert chunk.missing is None and not chunk.behind and not chunk.poison
        if chunk.next_offset == offset:
            reader.close()
            return events, offset, corrupt
        offset = chunk.next_offset
