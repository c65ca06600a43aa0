"""What is on disk, read and damaged by hand: no code of the product has a part in it.

A spool is segments of frames: 4 bytes of length, 4 of CRC-32, then JSON records, one to a line.
"""

import json
import random
import zlib
from pathlib import Path
from typing import Any

import msgspec

HEADER = 8


class Frame(msgspec.Struct, frozen=True):
    """One whole frame: its file, where it begins and ends in it, and the records it holds."""

    file: Path
    start: int
    end: int
    records: list[dict[str, Any]]


def spools(data: Path) -> list[Path]:
    """The spools that are there, oldest first."""
    return sorted(path for path in (data / "spool").glob("[!.]*") if path.is_dir())


def source(spool: Path) -> str:
    """Who writes or wrote `spool`."""
    return (spool / "source").read_text().strip()


def is_gateways(spool: Path) -> bool:
    """True for the spool of a serving process, false for a runner's."""
    return source(spool).startswith("/gateway/")


def frames(spool: Path) -> list[Frame]:
    """All whole frames of `spool` from its beginning to the first bytes that are none."""
    found: list[Frame] = []
    for file in sorted(spool.glob("*.seg")):
        data = file.read_bytes()
        at = 0
        while at + HEADER <= len(data):
            length = int.from_bytes(data[at : at + 4], "big")
            end = at + HEADER + length
            payload = data[at + HEADER : end]
            checksum = int.from_bytes(data[at + 4 : at + HEADER], "big")
            if length == 0 or end > len(data) or zlib.crc32(payload) != checksum:
                return found
            records = [json.loads(line) for line in payload.split(b"\n")]
            found.append(Frame(file, at, end, records))
            at = end
    return found


def records(spool: Path) -> list[dict[str, Any]]:
    """All whole records of `spool`, in order."""
    return [record for frame in frames(spool) for record in frame.records]


def unread_bytes(spool: Path) -> int:
    """Bytes behind the last whole frame of its newest segment."""
    newest = sorted(spool.glob("*.seg"))[-1]
    whole = [frame.end for frame in frames(spool) if frame.file == newest]
    return newest.stat().st_size - max(whole, default=0)


def tear(spool: Path, dice: random.Random) -> tuple[list[Frame], str]:
    """Damage the end of a dead `spool` as a crash may. Returns the frames that stay whole, and how.

    Cut somewhere within the last frames, or bytes of the last one turned over, or the beginning of
    a frame that was never ended.
    """
    whole = frames(spool)
    how = dice.choice(("cut", "flip", "half"))
    if how == "half":
        last = whole[-1]
        data = last.file.read_bytes()[last.start : last.end]
        with last.file.open("ab") as file:
            file.write(data[: dice.randint(1, len(data) - 1)])
        return whole, "half a frame was added"
    if how == "flip":
        return whole[:-1], f"the last frame: {flip(whole[-1], dice)}"
    lost = whole[-dice.randint(1, 4) :]
    first = lost[0]
    lost = [frame for frame in lost if frame.file == first.file]
    at = dice.randint(first.start, first.end - 1)
    with first.file.open("r+b") as file:
        file.truncate(at)
    kept = whole[: whole.index(first)]
    return kept, f"cut at byte {at} of {first.file.name}, in frame {len(kept)} of {len(whole)}"


def flip(frame: Frame, dice: random.Random) -> str:
    """Turn over bits of 1 to 16 bytes within `frame`. Returns which."""
    at = dice.randint(frame.start, frame.end - 1)
    count = min(dice.randint(1, 16), frame.end - at)
    with frame.file.open("r+b") as file:
        file.seek(at)
        bytes_there = file.read(count)
        file.seek(at)
        file.write(bytes(byte ^ dice.randint(1, 255) for byte in bytes_there))
    return f"{count} bytes turned over at byte {at} of {frame.file.name}"
