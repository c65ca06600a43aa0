"""Cuts the torn tail off a dead process's spool and keeps it aside."""

import os
from collections.abc import Callable
from typing import Final

from streams.log.reader import SpoolReader
from streams.log.segment import FRAME_BYTES_MAX
from streams.log.spool import segment_name

_TAIL_BYTES_MAX: Final = 2 * FRAME_BYTES_MAX
"""Of a torn tail at most this much is kept aside; one append cannot tear more."""


def cut_torn_tail(
    reader: SpoolReader, position: int, name: str, say: Callable[[str], None]
) -> None:
    """Cut what stands behind `position`, the end of the last whole record of a dead spool.

    The caller holds the spool's lock and has read it to its end. `name` is for the message.
    """
    segments = reader.segments()
    if not segments or segments[-1].end <= position:
        return
    last = segments[-1]
    assert last.start <= position, "sealed segments were read to their ends"
    path = reader.directory / segment_name(last.start)
    with path.open("rb") as file:
        file.seek(position - last.start)
        tail = file.read(_TAIL_BYTES_MAX)
    (reader.directory / f"torn-{position}").write_bytes(tail)
    os.truncate(path, position - last.start)
    say(
        f"{name}: {last.end - position} bytes at the end were no whole record and "
        f"are cut off; they are kept in the file torn-{position}"
    )
