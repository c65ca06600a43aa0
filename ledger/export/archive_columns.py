"""The file of an archive's events: what writes it and what verifies it agree here."""

from typing import Final

from ledger.export.columns import COUNT, INSTANT, TEXT, Column

ARCHIVE: Final = "archive"
"""The kind of export that holds the events themselves."""

EVENTS: Final = "events.parquet"

ARCHIVE_COLUMNS: Final = (
    Column("source", TEXT, "who wrote it: a name and an incarnation", "source"),
    Column("topic", TEXT, "which of the source's logs", "topic"),
    Column("sequence", COUNT, "its number in that log, from 1", "sequence"),
    Column("id", TEXT, "names the fact; twice, if it was told under two names", "id"),
    Column("type", TEXT, "what happened, and the version of the wording", "type"),
    Column("subject", TEXT, "whom it is about", "subject"),
    Column("time", INSTANT, "when it happened", "time_us"),
    Column("data", TEXT, "the payload as JSON, byte for byte", "data"),
)
"""Exactly what a chain's links are made of, in the order of source, topic and sequence."""
