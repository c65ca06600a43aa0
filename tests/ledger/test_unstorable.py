"""Records that decode and that a database cannot hold: set aside, so that they block nobody."""

import random
import string

import msgspec
import pytest
from sqlalchemy import select

from ledger.clock import SystemClock
from ledger.events import Event
from ledger.sql import tables
from ledger.sql.session import Ledger
from ledger.sql.writer import Batch, LedgerWriter
from tests.support.events import SOURCE, START, Scribe, accepted, closed, finished

CHANCE = random.Random(1)
LONG = "".join(CHANCE.choices(string.ascii_letters + string.digits, k=9000))
"""Postgres compresses what it can; this it cannot."""


def with_data(event: Event, old: bytes, new: bytes) -> Event:
    data = bytes(event.data)
    assert old in data
    return msgspec.structs.replace(event, data=msgspec.Raw(data.replace(old, new)))


def unstorable() -> dict[str, Event]:
    scribe = Scribe(SOURCE)
    start = b'"accepted_at":"2026-11-03T10:15:00Z"'
    return {
        "its id is longer": scribe.write(accepted(LONG)),
        "its model is longer": scribe.write(finished("r1", model=LONG)),
        "its key_id is longer": scribe.write(finished("r2", key_id=LONG)),
        "its closed_source is longer": with_data(
            scribe.write(closed("/gateway/gone/1", START, {})), b"/gateway/gone/1", LONG.encode()
        ),
        "its source is longer": msgspec.structs.replace(scribe.write(accepted("r3")), source=LONG),
        "its accepted_at is before": with_data(
            scribe.write(finished("r4")), start, b'"accepted_at":"0001-01-01T00:00:00+14:00"'
        ),
        "its accepted_at is before the year 1 or behind": with_data(
            scribe.write(finished("r5")), start, b'"accepted_at":"9999-12-31T23:00:00-14:00"'
        ),
    }


@pytest.mark.parametrize("reason", unstorable())
def test_what_no_database_holds_is_set_aside_and_the_rest_is_taken(
    ledger: Ledger, reason: str
) -> None:
    writer = LedgerWriter(ledger, SystemClock())
    good = Scribe("/gateway/other/1").write(finished("good"))
    written = writer.write(Batch("log", 0, 2, [unstorable()[reason], good]))
    assert (written.inserted, written.conflicts) == (1, 1)
    again = writer.write(Batch("again", 0, 2, [unstorable()[reason], good]))
    assert (again.inserted, again.duplicates, again.conflicts) == (0, 1, 0)
    with ledger.read() as read:
        assert reason in read.value(select(tables.conflicts.c.reason))


def test_the_longest_names_are_taken(ledger: Ledger) -> None:
    name, source = LONG[:1000], LONG[1000:2000]
    draft = finished(name[:500], key_id=name, model=name)
    event = Scribe(source).write(
        msgspec.structs.replace(draft, id=f"{name[:500]}/{name[501:]}", subject=name)
    )
    written = LedgerWriter(ledger, SystemClock()).write(Batch("log", 0, 1, [event]))
    assert (written.inserted, written.conflicts) == (1, 0)


def test_a_long_event_whose_optional_names_are_not_given_is_taken(ledger: Ledger) -> None:
    drafts = (
        accepted("r1", key_id=LONG[:900], model=LONG[900:1800]),
        finished("r1", key_id=LONG[:900], model=LONG[900:1800], reason=LONG, backend_id=None),
    )
    events = Scribe().write_all(*drafts)
    written = LedgerWriter(ledger, SystemClock()).write(Batch("log", 0, 2, events))
    assert (written.inserted, written.conflicts) == (2, 0)
