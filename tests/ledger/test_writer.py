"""The writer: each fact once, in any order and any batches; nothing different skipped silently."""

import random
import tempfile
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from sqlalchemy import select

from ledger.audit import audit
from ledger.clock import SystemClock, to_us
from ledger.errors import LedgerUnavailable, PositionMoved, UnknownEvent
from ledger.events import BackendObserved, Draft, Event, RequestAbandoned, Usage
from ledger.sql import tables
from ledger.sql.bill import bill
from ledger.sql.hashes import projection_hash
from ledger.sql.projections import MAIN, request_rows
from ledger.sql.session import Ledger, open_ledger
from ledger.sql.writer import Batch, LedgerWriter, Poison, Written
from tests.ledger.ledgers import Feeder, Make, count, scribed
from tests.support import events as say
from tests.support.events import SOURCE, START, Scribe, after
from tests.support.strategies import lives

OTHER = "/gateway/test/0193a0000000700080000000000000b2"
RUNNER = "/runner/test/0193a0000000700080000000000000c3"


def summary(ledger: Ledger) -> tuple[object, ...]:
    """All that must not depend on how the events came."""
    with ledger.read() as read:
        return (
            projection_hash(read),
            bill(read, None, ("key", "model", "day")),
            bill(read, "2026-11", ("key",)),
        )


def test_a_request_is_stored_folded_and_billed(ledger: Ledger) -> None:
    written = Feeder(ledger).feed(scribed(say.life("r1")))
    assert written == Written(inserted=3)
    with ledger.read() as read:
        row = request_rows(read, MAIN, ["r1"])["r1"]
        (line,) = bill(read, "2026-11")
    assert (row.state, row.source, row.attempts) == ("finished", SOURCE, 1)
    assert row.accepted_at == START
    assert (line.requests, line.uncached_in, line.other_out) == (1, 12, 4)
    assert count(ledger, tables.events) == 3  # running totals are folded, not kept


def test_the_data_is_stored_byte_for_byte(ledger: Ledger) -> None:
    (event,) = scribed([say.accepted("r1")])
    data = msgspec.Raw(bytes(event.data)[:-1] + ', "später": [1.50]}'.encode())
    Feeder(ledger).feed([replace(event, data=data)])
    with ledger.read() as read:
        assert read.value(select(tables.events.c.data)).encode() == bytes(data)


@pytest.mark.parametrize("early", [3, 20])
def test_requests_of_which_an_end_came_before_their_acceptance(ledger: Ledger, early: int) -> None:
    """Whether their span holds few rows or more than there are new ones, each is folded on."""
    lives = [
        [say.accepted(f"r{n:02}", client_request=f"c{n}"), say.finished(f"r{n:02}")]
        for n in range(20)
    ]
    events = scribed(draft for life in lives for draft in life)
    feeder = Feeder(ledger)
    feeder.feed([event for event in events if event.sequence % 2 == 0][:early])
    accepted = [event for event in events if event.sequence % 2]
    feeder.feed([*accepted[:12], *[e for e in events if e.sequence % 2 == 0][early:]])
    feeder.feed(accepted[12:])
    with ledger.read() as read:
        rows = request_rows(read, MAIN, [f"r{n:02}" for n in range(20)])
        (line,) = bill(read, "2026-11")
    assert [(row.state, row.client_request) for _, row in sorted(rows.items())] == [
        ("finished", f"c{n}") for n in range(20)
    ]
    assert line.requests == 20
    with ledger.read() as read:
        assert audit(read).clean


def test_running_totals_stand_in_an_open_request(ledger: Ledger) -> None:
    feeder = Feeder(ledger)
    scribe = Scribe()
    feeder.feed(scribe.write_all(say.accepted("r1"), say.delivered("r1", 1, chunks=3)))
    feeder.feed(scribe.write_all(say.delivered("r1", 2, chunks=7)))
    with ledger.read() as read:
        row = request_rows(read, MAIN, ["r1"])["r1"]
        assert bill(read, None) == []
    assert (row.state, row.chunks, row.usage.other_out) == ("open", 7, 7)


def test_a_batch_written_again_moves_nothing(ledger: Ledger) -> None:
    batch = scribed(say.life("r1"))
    feeder = Feeder(ledger)
    feeder.feed(batch)
    before = summary(ledger)
    assert feeder.feed(batch) == Written(duplicates=3)
    assert Feeder(ledger, "another copy").feed(batch) == Written(duplicates=3)
    assert summary(ledger) == before


def test_a_stale_position_writes_nothing(ledger: Ledger) -> None:
    first = LedgerWriter(ledger, SystemClock())
    second = LedgerWriter(ledger, SystemClock())
    one, other = scribed(say.life("r1")), scribed(say.life("r2"), OTHER)
    first.write(Batch("log", 0, 100, one))
    with pytest.raises(PositionMoved, match="another writer was faster"):
        second.write(Batch("log", 0, 50, other))
    with pytest.raises(PositionMoved):
        second.write(Batch("log", 99, 150, other))
    with pytest.raises(PositionMoved):
        second.write(Batch("never read", 10, 20, other))
    assert count(ledger, tables.events) == 3
    assert (second.position("log"), second.position("never read")) == (100, 0)
    second.write(Batch("log", 100, 150, other))
    assert first.position("log") == 150


def test_two_writers_share_one_registry(ledger: Ledger) -> None:
    """Each keeps the book in memory, and sees that the other has moved it."""
    writers = [LedgerWriter(ledger, SystemClock()) for _ in range(2)]
    drafts = [say.key_issued("k1"), say.key_issued("k2"), say.key_revoked("k1")]
    stored = [scribed([draft], f"/cli/test/{n}") for n, draft in enumerate(drafts)]
    for n, batch in enumerate(stored):
        writers[n % 2].write(Batch("registry", n, n + 1, batch))
    with ledger.read() as read:
        keys = {row.key_id: row.version for row in read.rows(select(tables.keys))}
    assert keys == {"k1": 2, "k2": 1}


def test_what_the_registry_refuses_is_stored_without_effect(ledger: Ledger) -> None:
    stale = say.key_issued("k1", models=["m"])
    feeder = Feeder(ledger, "registry")
    feeder.feed(scribed([say.key_issued("k1")], "/cli/a"))
    again = replace(stale, id="k1/v1/raced")
    written = feeder.feed(scribed([again], "/cli/b"))
    assert written == Written(inserted=1)
    with ledger.read() as read:
        (key,) = read.rows(select(tables.keys))
    assert (key.version, key.models) == (1, None)


def test_the_same_fact_under_another_name_leaves_no_gap(ledger: Ledger) -> None:
    """Two adopters closed the same request; the second one's sequence must not look lost."""
    feeder = Feeder(ledger)
    feeder.feed(scribed([say.accepted("r1"), say.accepted("r2")]))
    feeder.feed(scribed([say.abandoned("r1")], RUNNER))
    twin = scribed([say.abandoned("r1"), say.abandoned("r2")], OTHER)
    before = count(ledger, tables.usage_hourly)
    assert feeder.feed(twin) == Written(inserted=1, duplicates=1)
    assert feeder.feed(twin) == Written(duplicates=2)
    assert count(ledger, tables.duplicates) == 1
    assert count(ledger, tables.usage_hourly) == before
    with ledger.read() as read:
        assert audit(read).clean


def conflicts(ledger: Ledger) -> list[tuple[str, int, str]]:
    with ledger.read() as read:
        rows = read.rows(select(tables.conflicts).order_by(tables.conflicts.c.reason))
    return [(row.source, row.sequence, row.reason) for row in rows]


def test_the_same_id_with_other_content_is_set_aside(ledger: Ledger) -> None:
    feeder = Feeder(ledger)
    feeder.feed(scribed(say.life("r1")))
    before = summary(ledger)[1:]
    told_otherwise = scribed([say.finished("r1", usage=say.tokens(out=99))], OTHER)
    assert feeder.feed(told_otherwise) == Written(conflicts=1)
    assert feeder.feed(told_otherwise) == Written()  # once is enough
    ((source, sequence, reason),) = conflicts(ledger)
    assert (source, sequence) == (OTHER, 1)
    assert f"already told otherwise by {SOURCE}:3" in reason
    assert summary(ledger)[1:] == before
    with ledger.read() as read:
        (finding,) = audit(read).findings
    assert finding.check == "set aside"


def test_the_same_sequence_with_another_fact_is_set_aside(ledger: Ledger) -> None:
    feeder = Feeder(ledger)
    feeder.feed(scribed([say.accepted("r1"), say.attempted("r1")]))
    assert feeder.feed(scribed([say.accepted("r2")])) == Written(conflicts=1)
    ((_, sequence, reason),) = conflicts(ledger)
    assert (sequence, reason) == (
        1,
        f"{SOURCE}:1 of requests already holds another fact, r1/accepted",
    )


def test_a_sequence_noted_as_a_repetition_is_taken_too(ledger: Ledger) -> None:
    feeder = Feeder(ledger)
    feeder.feed(scribed([say.abandoned("r1")], RUNNER))
    feeder.feed(scribed([say.abandoned("r1")], OTHER))
    assert feeder.feed(scribed([say.abandoned("r2")], OTHER)) == Written(conflicts=1)
    ((_, _, reason),) = conflicts(ledger)
    assert reason == f"{OTHER}:1 of requests was already used by r1/abandoned"


def test_conflicts_within_one_batch_are_seen(ledger: Ledger) -> None:
    one = scribed([say.accepted("r1")])
    other = scribed([say.accepted("r2")])
    third = scribed([say.accepted("r1", model="other")], OTHER)
    assert Feeder(ledger).feed([*one, *other, *third, *one]) == Written(1, 1, 2)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"topic": "sources"}, "belongs to the topic requests"),
        ({"id": "r2/accepted"}, "does not begin with its request's, r1/"),
        ({"data": msgspec.Raw(b'{"request_id": 7}')}, "Expected `str`"),
        ({"id": "r1/acc\0epted"}, "its envelope holds a NUL"),
        ({"source": f"{SOURCE}\0"}, "its envelope holds a NUL"),
        ({"data": msgspec.Raw(b'{"request_id": "r1", "x": "\xff"}')}, "missing required field"),
    ],
)
def test_an_event_that_cannot_count_is_set_aside(
    ledger: Ledger, change: dict[str, object], reason: str
) -> None:
    broken, good = scribed([say.accepted("r1"), say.accepted("r3")])
    broken = replace(broken, **change)
    feeder = Feeder(ledger)
    assert feeder.feed([broken, good]) == Written(inserted=1, conflicts=1)
    assert feeder.feed([broken, good]) == Written(duplicates=1)
    ((_, _, said),) = conflicts(ledger)
    assert reason in said
    with ledger.read() as read:
        assert audit(read).findings[0].check == "set aside"


def test_a_text_that_a_database_cannot_keep_is_set_aside(ledger: Ledger) -> None:
    """Postgres refuses a NUL; one such event must neither stop the writer nor be lost silently."""
    bad, good = scribed([say.accepted("r1", model="a\0b"), say.accepted("r2")])
    feeder = Feeder(ledger)
    assert feeder.feed([bad, good]) == Written(inserted=1, conflicts=1)
    ((_, _, reason),) = conflicts(ledger)
    assert reason == "its model holds a NUL, which no text has"
    poison = Poison(0, "not an event: a\0b", b"a\0b")
    assert Feeder(ledger, "other").feed([], [poison]) == Written(conflicts=1)


def test_a_nul_that_only_the_data_holds_is_kept(ledger: Ledger) -> None:
    (event,) = scribed([say.accepted("r1")])
    data = msgspec.Raw(bytes(event.data)[:-1] + b', "later": "a\\u0000b"}')
    assert Feeder(ledger).feed([replace(event, data=data)]) == Written(inserted=1)
    with ledger.read() as read:
        assert read.value(select(tables.events.c.data)).encode() == bytes(data)
        assert audit(read).clean


def test_data_that_is_no_text_is_set_aside(ledger: Ledger) -> None:
    (event,) = scribed([say.accepted("r1")])
    data = msgspec.Raw(bytes(event.data)[:-1] + b', "x": "\xff"}')
    written = Feeder(ledger).feed([replace(event, data=data)])
    assert written == Written(conflicts=1)
    with ledger.read() as read:
        assert "\\xff" in read.value(select(tables.conflicts.c.record))


def unread(ledger: Ledger) -> list[tuple[str, int, str]]:
    """What the audit finds set aside because a log could not be read there."""
    with ledger.read() as read:
        found = read.rows(select(tables.poison).where(tables.poison.c.record == b""))
    return sorted((row.log, row.log_offset, row.reason) for row in found)


def test_broken_bytes_that_are_read_in_the_end_are_forgotten(ledger: Ledger) -> None:
    first, second = scribed([say.accepted("r1"), say.finished("r1")])
    writer = LedgerWriter(ledger, SystemClock())
    writer.write(Batch("a", 0, 100, [first], [Poison(100, "broken bytes", b"")]))
    writer.write(Batch("b", 0, 100, [], [Poison(100, "broken too", b"")]))
    # Whoever starts again finds the same, and still nothing of it was read.
    again = Batch("a", 100, 100, [], [Poison(100, "broken bytes", b"")])
    assert LedgerWriter(ledger, SystemClock()).write(again) == Written()
    assert unread(ledger) == [("a", 100, "broken bytes"), ("b", 100, "broken too")]
    with ledger.read() as read:
        assert [finding.check for finding in audit(read).findings] == ["set aside"] * 2
    # A whole copy was put back, and another process reads it.
    LedgerWriter(ledger, SystemClock()).write(Batch("a", 100, 200, [second]))
    assert unread(ledger) == [("b", 100, "broken too")]
    writer.write(Batch("b", 100, 200))
    with ledger.read() as read:
        assert audit(read).clean


def test_a_gap_and_a_record_that_is_no_event_are_not_forgotten(ledger: Ledger) -> None:
    """The batch that reads past a gap is the one that tells of it; nothing of it can come later."""
    writer = LedgerWriter(ledger, SystemClock())
    gap, bad = Poison(100, "bytes are gone", b""), Poison(300, "no event", b"{")
    writer.write(Batch("a", 0, 100, [], [Poison(100, "broken bytes", b"")]))
    assert writer.write(Batch("a", 100, 300, [], [gap])) == Written(conflicts=1)
    writer.write(Batch("a", 300, 400, [], [bad, Poison(400, "broken", b"")]))
    writer.write(Batch("a", 400, 500))
    assert unread(ledger) == [("a", 100, "bytes are gone")]
    assert count(ledger, tables.poison) == 2


def test_a_failed_write_forgets_nothing(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = LedgerWriter(ledger, SystemClock())
    writer.write(Batch("a", 0, 0, [], [Poison(0, "broken bytes", b"")]))

    def refuse(*_: object) -> None:
        raise LedgerUnavailable("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr("ledger.sql.writer.project_reach", refuse)
        with pytest.raises(LedgerUnavailable):
            writer.write(Batch("a", 0, 100, scribed([say.accepted("r1")])))
    assert unread(ledger) == [("a", 0, "broken bytes")]


def test_poison_is_set_aside_with_its_bytes(ledger: Ledger) -> None:
    poison = Poison(offset=7, reason="not an event record", record=b"\x00\xff{")
    assert Feeder(ledger).feed([], [poison]) == Written(conflicts=1)
    with ledger.read() as read:
        (row,) = read.rows(select(tables.poison))
        (finding,) = audit(read).findings
    assert (row.log, row.log_offset, row.record) == ("log", 7, b"\x00\xff{")
    assert "at offset 7" in finding.says


def test_a_newer_event_type_stops_the_batch(ledger: Ledger) -> None:
    good, newer = scribed([say.accepted("r1"), say.accepted("r2")])
    newer = replace(newer, type="tollbook.request.teleported.v9")
    feeder = Feeder(ledger)
    with pytest.raises(UnknownEvent, match="upgrade"):
        feeder.feed([good, newer])
    assert count(ledger, tables.events) == 0
    assert feeder.writer.position("log") == 0


def test_sources_are_known_by_their_marks_and_closings(ledger: Ledger) -> None:
    scribe = Scribe()
    drafts = [
        say.mark(SOURCE, 1, START, {}),
        say.mark(SOURCE, 2, say.after(60), {"sources": 1}),
        say.closed(SOURCE, say.after(90), {"sources": 2}),
    ]
    stored = scribe.write_all(*drafts)
    Feeder(ledger).feed([stored[2], stored[1], stored[0]])
    with ledger.read() as read:
        (row,) = read.rows(select(tables.sources))
    assert row._asdict() == {
        "source": SOURCE,
        "first_us": to_us(START),
        "last_mark_us": to_us(say.after(60)),
        "closed_us": to_us(say.after(90)),
        "closed_by": "itself",
    }


def test_a_cell_that_nothing_counts_in_any_more_is_gone(ledger: Ledger) -> None:
    """A gateway that was given up came back with its tail: another basis, the same request."""
    feeder = Feeder(ledger)
    feeder.feed(scribed([say.abandoned("r1")], RUNNER))
    feeder.feed(scribed([say.finished("r1")]))
    with ledger.read() as read:
        (cell,) = read.rows(select(tables.usage_hourly))
    assert (cell.basis, cell.requests) == ("reported", 1)


def test_a_failed_write_leaves_the_writer_as_it_was(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    feeder = Feeder(ledger, "registry")
    issued = scribed([say.key_issued("k1")], "/cli/a")
    revoked = scribed([say.key_revoked("k1")], "/cli/b")
    feeder.feed(issued)

    def refuse(*_: object) -> None:
        raise LedgerUnavailable("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr("ledger.sql.writer.project_reach", refuse)
        with pytest.raises(LedgerUnavailable):
            feeder.feed(revoked)
    assert feeder.feed(revoked) == Written(inserted=1)
    with ledger.read() as read:
        assert read.value(select(tables.keys.c.revoked_us)) == to_us(START)


def test_thousands_of_known_events_fit_the_lookups(ledger: Ledger) -> None:
    stored = scribed(say.accepted(f"r{n:05}", START + timedelta(seconds=n)) for n in range(3000))
    feeder = Feeder(ledger)
    feeder.feed(stored[:2000])
    assert feeder.feed(stored) == Written(inserted=1000, duplicates=2000)


REGISTRY = [
    say.key_issued("key-1"),
    say.price("p1", {"uncached_in": "1.5", "other_out": "2"}, start=START),
    say.price("p2", {"uncached_in": "1.7"}, start=say.after(86_400 + 1234), base=1),
    say.price("p3", {"uncached_in": "9", "cached_in": "3"}, "*", START, currency="EUR"),
    say.key_revoked("key-1"),
]


@st.composite
def deliveries(draw: st.DrawFn) -> tuple[list[Event], list[list[Event]]]:
    """Events of two gateways and the registry in their own order, and another delivery of them:
    shuffled, repeated, in other batches. Only the registry keeps its order: it has but one log."""
    sources = (SOURCE, OTHER)
    scribes = [Scribe(source) for source in sources]
    stored: list[Event] = []
    for number in range(draw(st.integers(1, 5))):
        for draft in draw(lives(f"r{number}")):
            scribe = scribes[number % 2]
            if isinstance(draft.payload, RequestAbandoned):
                # Told by an adopter, of the gateway that accepted the request.
                payload = replace(draft.payload, abandoned_source=scribe.source)
                draft, scribe = replace(draft, payload=payload), Scribe(f"{RUNNER}{number}")
            stored.append(scribe.write(draft))
    marks = [say.mark(SOURCE, n, say.after(60 * n), {}) for n in range(draw(st.integers(0, 3)))]
    stored += scribes[0].write_all(*marks)
    registry = [scribed([draft], f"/cli/{n}")[0] for n, draft in enumerate(REGISTRY)]
    repeats = draw(st.lists(st.sampled_from(stored), max_size=8))
    shuffled = draw(st.permutations(stored + repeats))
    places = sorted(draw(st.lists(st.integers(0, len(shuffled)), min_size=5, max_size=5)))
    for place, event in reversed(list(zip(places, registry, strict=True))):
        shuffled.insert(place, event)
    batches: list[list[Event]] = [[]]
    for event in shuffled:
        batches[-1].append(event)
        if draw(st.booleans()):
            batches.append([])
    return stored + registry, batches


@given(delivery=deliveries())
@settings(max_examples=30)
def test_order_repetition_and_batches_change_nothing(
    make_ledger: Make, delivery: tuple[list[Event], list[list[Event]]]
) -> None:
    stored, batches = delivery
    with (
        tempfile.TemporaryDirectory() as directory,
        make_ledger(Path(directory), "one") as one,
        make_ledger(Path(directory), "other") as other,
    ):
        Feeder(one).feed(stored)
        feeder = Feeder(other)
        for batch in batches:
            feeder.feed(batch)
        assert summary(one) == summary(other)
        with other.read() as read:
            assert audit(read).findings == []


def test_a_long_shuffle_adds_up(ledger: Ledger, seed: int) -> None:
    """The totals are those of plain arithmetic on what was said, whatever the delivery."""
    dice = random.Random(seed)
    scribe, stored, total = Scribe(), [], 0
    for n in range(300):
        out = dice.randrange(1000)
        total += out
        at = START + timedelta(minutes=dice.randrange(40_000))
        usage = Usage(uncached_in=1, other_out=out)
        stored += scribe.write_all(*say.life(f"r{n}", at, f"k{n % 7}", usage=usage))
    stored += dice.choices(stored, k=300)
    dice.shuffle(stored)
    feeder = Feeder(ledger)
    while stored:
        size = dice.randrange(1, 200)
        feeder.feed(stored[:size])
        del stored[:size]
    with ledger.read() as read:
        lines = bill(read, None, ("key", "day"))
        assert audit(read).clean
    assert sum(line.other_out or 0 for line in lines) == total
    assert sum(line.requests for line in lines) == 300


def test_a_directory_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(LedgerUnavailable, match="cannot be opened"):
        open_ledger(tmp_path / "nowhere" / "ledger.db")


def test_observations_of_backends_leave_no_trace_and_no_gap(ledger: Ledger) -> None:
    scribe = Scribe()
    seen = BackendObserved(backend_id="b-1", gateway="box", up=True, expires_at=after(10))
    written = scribe.write_all(
        say.accepted("r1"), Draft("o/1", "b-1", START, seen), say.finished("r1")
    )
    last = {"requests": 2, "backends": 1}
    marked = scribe.write(say.mark(SOURCE, 1, START, last))
    assert Feeder(ledger).feed([*written, marked]) == Written(inserted=3)
    with ledger.read() as read:
        topics = read.rows(select(tables.source_topics.c.topic))
        assert {row.topic for row in topics} == {"requests", "sources"}
        assert audit(read).clean
