"""Views of backends without Kafka: folded from the spools by the runner, into a small file that the
gateways of the data directory read.

The file is derived. Whoever finds none, or wants what the runner has not taken yet, folds the ends
of the spools himself, so that a gateway which starts together with its runner misses nothing.
"""

import os
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from ledger.errors import EventError
from ledger.events import BackendObserved, Event, Payload, payload_of
from ledger.folds.routing import RoutingView, fold_view, is_gone
from streams.errors import StreamsError
from streams.local.layout import Layout
from streams.log.reader import SpoolReader

TYPE: Final = BackendObserved.TYPE

TAIL_BYTES_MAX: Final = 8 << 20
"""No more of a spool's end is read: a view is written every two seconds and is a few hundred bytes,
so that it is there unless the gateway was very busy, and then the runner's file has it."""

UNWRITTEN_BYTES_MAX: Final = 4 << 20
"""What a runner may have taken and not told in its file yet, if it is killed: it writes the file
each half second. To fold what is in the file already changes nothing."""

SPOOLS_MAX: Final = 16
"""So many of the newest spools are looked at; each life of a serving process leaves one."""

Views = dict[tuple[str, str], RoutingView]
"""By backend and gateway."""

_decoder: Final = msgspec.json.Decoder(list[RoutingView])
_encoder: Final = msgspec.json.Encoder(order="deterministic")


class Routed:
    """The views of one data directory, as far as they were folded."""

    def __init__(self, layout: Layout, say: Callable[[str], None]) -> None:
        self._path = layout.routed
        self._say = say
        self._failing = False
        self.views: Views = recall(layout)
        self._moved = self.views != read_routed(layout.root)

    def take(self, event: Event, said: Payload | EventError) -> None:
        """Go on by one event; what is no observation changes nothing. Safe to repeat."""
        if isinstance(said, BackendObserved):
            self._moved |= fold(self.views, event, said)

    def write(self, now: datetime) -> None:
        """Replace the file if something changed. A disk that refuses it must not keep the books
        back: that is said once, and tried again the next time."""
        if not self._moved:
            return
        now_ms = int(now.timestamp() * 1000)
        self.views = {key: view for key, view in self.views.items() if not is_gone(view, now_ms)}
        half = self._path.with_suffix(".new")
        try:
            self._path.parent.mkdir(exist_ok=True)
            half.write_bytes(_encoder.encode([self.views[key] for key in sorted(self.views)]))
            half.replace(self._path)
        except OSError as wrong:
            if not self._failing:
                self._say(f"{self._path} cannot be written: {wrong}; gateways see older views")
            self._failing = True
            return
        self._moved = self._failing = False


class RoutedFile:
    """The runner's file, read again when it was replaced."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._views: Views = {}
        self._seen: tuple[int, int] | None = None

    def start(self) -> None:
        """Take also what the runner has not taken yet. Reads at most some megabytes."""
        self._views = recall(self._layout)

    def views(self) -> Views:
        """The newest views. While the file cannot be read, what was known stands."""
        try:
            status = os.stat(self._layout.routed)
        except OSError:
            return self._views
        seen = status.st_ino, status.st_mtime_ns
        if seen != self._seen:
            self._seen = seen
            for key, view in read_routed(self._layout.root).items():
                known = self._views.get(key)
                if known is None or _is_later(view, known):
                    self._views[key] = view
        return self._views


def _is_later(view: RoutingView, known: RoutingView) -> bool:
    """Of one process its own numbers decide, since its clock may be set back; else the time."""
    if view.source == known.source:
        return view.sequence >= known.sequence
    return view.appended_ms >= known.appended_ms


def read_routed(data: Path) -> Views:
    """The views that a runner of this data directory wrote last; none if it did not."""
    try:
        views = _decoder.decode(Layout(data).routed.read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return {}
    return {(view.backend_id, view.gateway): view for view in views}


def recall(layout: Layout) -> Views:
    """The views of the file, and on top what the ends of the newest spools say."""
    views = read_routed(layout.root)
    known = bool(views)
    for directory in layout.spool_directories()[-SPOOLS_MAX:]:
        for event, said in _end_of(directory, beyond_consumed=known):
            fold(views, event, said)
    return views


def fold(views: Views, event: Event, said: BackendObserved) -> bool:
    """Take one observation into `views`; false if it is older than what is there, or was seen.

    Offsets of different spools are not in one order, so they decide nothing here: of one process
    its own numbers do, and of several that the later started one goes first.
    """
    key = said.backend_id, said.gateway
    known = views.get(key)
    offset = 0 if known is None else known.offset + 1
    appended_ms = int(event.recordedtime.timestamp() * 1000)
    view = fold_view(known, event, said, offset, appended_ms)
    if view is None:
        return False
    views[key] = view
    return True


def _end_of(directory: Path, *, beyond_consumed: bool) -> Iterable[tuple[Event, BackendObserved]]:
    """The observations at the end of one spool, or of what the runner's file may not have of it."""
    reader = SpoolReader(directory)
    try:
        segments = reader.segments()
        if not segments:
            return
        offset = segments[-1].start
        consumed = reader.consumed()
        if beyond_consumed and segments[-1].end - consumed <= TAIL_BYTES_MAX:
            offset = max(offset, consumed - UNWRITTEN_BYTES_MAX)
        while True:
            chunk = reader.read(offset)
            for event in chunk.events:
                if event.type == TYPE:
                    said = _said(event)
                    if said is not None:
                        yield event, said
            if chunk.next_offset == offset:
                return
            offset = chunk.next_offset
    except (OSError, StreamsError):
        return  # it is being deleted, or its disk fails: the runner says so
    finally:
        reader.close()


def _said(event: Event) -> BackendObserved | None:
    try:
        said = payload_of(event)
    except EventError:
        return None
    return said if isinstance(said, BackendObserved) else None
