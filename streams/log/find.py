"""Where in a log on disk given events stand. Reads, and locks nothing.

Sequences of one source and topic only grow along a log, so a spool is looked through from the
segment that can hold the lowest wanted one, and no further than the highest.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from streams.log.reader import Segment, SpoolReader
from streams.log.segment import records, scan
from streams.log.spool import segment_name

_NUMBER: Final = re.compile(rb'"source":"([^"]*)","topic":"([a-z]+)","sequence":([0-9]+),')
"""In a record only its envelope matches: quotes within a text of JSON have a backslash before."""

_HEAD_BYTES: Final = 1 << 20
"""Of a segment, looked at to learn where its sequences begin."""

Wanted = Mapping[str, set[int]]
"""Topic to sequences of one source."""

Found = dict[tuple[str, int], int]
"""Topic and sequence to the logical offset of the record."""


def find_in_spool(directory: Path, wanted: Wanted) -> Found:
    """The offsets of those `wanted` events that the spool in `directory` still holds."""
    found: Found = {}
    missing = {(topic, number) for topic, numbers in wanted.items() for number in numbers}
    highest = {topic: max(numbers) for topic, numbers in wanted.items() if numbers}
    try:
        segments = SpoolReader(directory).segments()
    except FileNotFoundError:
        return found
    for segment in segments[_first(directory, segments, wanted) :]:
        try:
            data = (directory / segment_name(segment.start)).read_bytes()
        except FileNotFoundError:
            continue  # retention took it since it was listed
        passed: dict[str, int] = {}
        for at, _, topic, number in _records(data):
            passed[topic] = number
            if (topic, number) in missing:
                found[topic, number] = segment.start + at
                missing.discard((topic, number))
        if not missing or all(passed.get(topic, 0) >= last for topic, last in highest.items()):
            break
    return found


def find_in_file(
    path: Path, names: Iterable[tuple[str, str, int]]
) -> dict[tuple[str, str, int], int]:
    """The offsets of the events with these sources, topics and sequences in one log file."""
    missing = set(names)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    return {
        (source, topic, number): at
        for at, source, topic, number in _records(data)
        if (source, topic, number) in missing
    }


def _first(directory: Path, segments: list[Segment], wanted: Wanted) -> int:
    """The index of the last segment behind which no wanted event can begin."""
    lowest = {topic: min(numbers) for topic, numbers in wanted.items() if numbers}
    for index in range(len(segments) - 1, 0, -1):
        begins = _begins(directory / segment_name(segments[index].start))
        if all(begins.get(topic, low + 1) <= low for topic, low in lowest.items()):
            return index
    return 0


def _begins(path: Path) -> dict[str, int]:
    """The first sequence of each topic near the front of a segment."""
    try:
        with path.open("rb") as file:
            data = file.read(_HEAD_BYTES)
    except FileNotFoundError:
        return {}
    begins: dict[str, int] = {}
    for _, _, topic, number in _records(data):
        begins.setdefault(topic, number)
    return begins


def _records(data: bytes) -> Iterator[tuple[int, str, str, int]]:
    """Offset, source, topic and sequence of each record in the whole frames of `data`."""
    for start, payload in scan(data).frames:
        for at, record in records(payload):
            match = _NUMBER.search(record)
            if match is not None:
                source, topic, number = match.groups()
                yield start + at, source.decode(errors="replace"), topic.decode(), int(number)
