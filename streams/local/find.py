"""Where in the logs of a data directory given events stand, looked up when somebody asks."""

from collections.abc import Iterable
from pathlib import Path

from ledger.events import Event
from streams.local.layout import REGISTRY_LOG_NAME, Layout, log_name
from streams.log.find import find_in_file, find_in_spool
from streams.log.reader import SpoolReader

Name = tuple[str, str, int]
"""Source, topic and sequence of an event."""


def find_on_disk(layout: Layout, events: Iterable[Event]) -> dict[Name, str]:
    """The places of those `events` that a log still holds, as LOG@OFFSET. A spool is named as its
    directory is, and `tollbook spool show INCARNATION --from OFFSET` begins with that record."""
    places: dict[Name, str] = {}
    by_source: dict[str, dict[str, set[int]]] = {}
    registry: set[Name] = set()
    for event in events:
        if event.topic == REGISTRY_LOG_NAME:
            registry.add((event.source, event.topic, event.sequence))
        else:
            by_source.setdefault(event.source, {}).setdefault(event.topic, set()).add(
                event.sequence
            )
    if registry:
        for name, offset in find_in_file(layout.registry_log, registry).items():
            places[name] = f"{REGISTRY_LOG_NAME}@{offset}"
    for source, wanted in by_source.items():
        directory = spool_of(layout, source)
        if directory is not None:
            for (topic, number), offset in find_in_spool(directory, wanted).items():
                places[source, topic, number] = f"{log_name(directory)}@{offset}"
    return places


def spool_of(layout: Layout, source: str) -> Path | None:
    """The spool that `source` wrote; null if there is none any more."""
    for directory in layout.spool_directories():
        # A source's name ends with its incarnation, by which its spool is named.
        if source.endswith(f"/{directory.name}"):
            return directory
    for directory in layout.spool_directories():
        if SpoolReader(directory).told_source() == source:
            return directory
    return None
