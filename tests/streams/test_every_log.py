"""One suite of behaviour for every journal: what the gateway may rely on, whichever it gets."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from ledger.events import Event, payload_of
from streams.errors import SpoolFailed, SpoolFull
from streams.log.memory import MemoryJournal
from streams.log.port import Journal
from streams.log.reader import SpoolReader
from streams.log.spool import CONSUMED, SpoolWriter
from tests.streams.builders import FakeClock, accepted, attempted, delivered, finished

SOURCE = "/gateway/test/0192aa"


class Log(Protocol):
    """A journal with what the tests need besides: reading back, consuming, and its end."""

    clock: FakeClock

    @property
    def journal(self) -> Journal: ...

    def events(self) -> list[Event]: ...

    def consume(self) -> None: ...

    def unconsumed(self) -> int: ...

    def close(self) -> None: ...


class MemoryLog:
    def __init__(self, directory: Path, limit_bytes: int) -> None:
        self.clock = FakeClock()
        self.journal = MemoryJournal(
            SOURCE, clock=self.clock, limit_bytes=limit_bytes, reserve_bytes=4096
        )

    def events(self) -> list[Event]:
        return list(self.journal.events())

    def consume(self) -> None:
        self.journal.consume()

    def unconsumed(self) -> int:
        return self.journal.unconsumed_bytes()

    def close(self) -> None:
        self.journal.close()


class SpoolLog:
    durability = "process"

    def __init__(self, directory: Path, limit_bytes: int) -> None:
        self.clock = FakeClock()
        self.journal = SpoolWriter.create(
            directory / "0192aa",
            SOURCE,
            clock=self.clock,
            limit_bytes=limit_bytes,
            reserve_bytes=4096,
            segment_bytes=2000,
            durability="power" if self.durability == "power" else "process",
        )

    def events(self) -> list[Event]:
        reader = SpoolReader(self.journal.directory)
        found: list[Event] = []
        offset = 0
        while (chunk := reader.read(offset)).next_offset > offset:
            assert not chunk.poison and chunk.missing is None and chunk.broken is None
            found += chunk.events
            offset = chunk.next_offset
        reader.close()
        assert offset == self.journal.written_bytes()
        return found

    def consume(self) -> None:
        mark = self.journal.written_bytes().to_bytes(8, "big")
        (self.journal.directory / CONSUMED).write_bytes(mark)
        self.clock.advance(0.3)

    def unconsumed(self) -> int:
        return self.journal.unconsumed_bytes()

    def close(self) -> None:
        self.journal.close()


class PowerLog(SpoolLog):
    durability = "power"


Make = Callable[[int], Log]


@pytest.fixture(params=[MemoryLog, SpoolLog, PowerLog])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    made: list[Log] = []

    def build(limit_bytes: int = 1 << 20) -> Log:
        made.append(request.param(tmp_path, limit_bytes))
        return made[-1]

    yield build
    for log in made:
        log.close()


@pytest.fixture
def log(make: Make) -> Log:
    return make(1 << 20)


def test_what_was_appended_is_read_in_order_with_its_sequences(log: Log) -> None:
    log.journal.append(accepted("a"), attempted("a"))
    log.journal.append(delivered("a", 1, 3))
    log.journal.append(delivered("a", 2, 5), finished("a"))
    events = log.events()
    assert [(event.topic, event.sequence) for event in events] == [
        ("requests", 1),
        ("requests", 2),
        ("tokens", 1),
        ("tokens", 2),
        ("requests", 3),
    ]
    assert {event.source for event in events} == {SOURCE}
    assert log.journal.last() == {"requests": 3, "tokens": 2}


def test_an_event_holds_what_its_draft_said(log: Log) -> None:
    draft = finished("a")
    log.journal.append(draft)
    (event,) = log.events()
    assert (event.id, event.subject, event.time) == (draft.id, draft.subject, draft.time)
    assert payload_of(event) == draft.payload
    assert event.recordedtime == log.clock.now()


def test_nothing_appended_is_nothing_written(log: Log) -> None:
    log.journal.append()
    assert log.events() == []
    assert log.journal.last() == {}


def test_last_is_a_copy(log: Log) -> None:
    log.journal.append(accepted("a"))
    log.journal.last()["requests"] = 99
    assert log.journal.last() == {"requests": 1}


def test_full_refuses_what_opens_a_request_and_takes_what_ends_one(make: Make) -> None:
    log = make(12_000)
    number = 0
    while log.journal.room():
        log.journal.append(accepted(f"r{number}"), attempted(f"r{number}"))
        number += 1
    before = log.journal.last()
    with pytest.raises(SpoolFull):
        log.journal.append(accepted("new"), attempted("new"))
    assert log.journal.last() == before, "a refused append takes no sequence number"
    log.journal.append(delivered("r0", 1, 1))
    log.journal.append(finished("r0"))
    ids = [event.id for event in log.events()]
    assert "new/accepted" not in ids and "new/attempted/1" not in ids
    assert ids[-1] == "r0/finished"


def test_room_comes_back_once_the_ledger_has_taken_what_is_there(make: Make) -> None:
    log = make(12_000)
    while log.journal.room():
        log.journal.append(accepted("r"), finished("r"))
    log.consume()
    assert log.journal.room()
    assert log.unconsumed() == 0
    log.journal.append(accepted("new"))


def test_only_what_was_not_taken_counts_towards_the_limit(make: Make) -> None:
    log = make(12_000)
    for number in range(100):
        log.journal.append(accepted(f"r{number}"), finished(f"r{number}"))
        if number % 5 == 4:
            log.consume()
    assert len(log.events()) == 200


def test_a_closed_log_takes_nothing(log: Log) -> None:
    log.journal.append(accepted("a"))
    log.close()
    log.close()
    assert not log.journal.room()
    with pytest.raises(SpoolFailed):
        log.journal.append(finished("a"))
    assert [event.id for event in log.events()] == ["a/accepted"]


@pytest.mark.parametrize("limits", [(4096, 4096), (4096, 0), (10, 20)])
def test_a_reserve_has_to_fit_into_the_limit(tmp_path: Path, limits: tuple[int, int]) -> None:
    limit, reserve = limits
    clock = FakeClock()
    with pytest.raises(ValueError, match="with a reserve of"):
        MemoryJournal(SOURCE, clock=clock, limit_bytes=limit, reserve_bytes=reserve)
    with pytest.raises(ValueError, match="with a reserve of"):
        SpoolWriter.create(
            tmp_path / "x", SOURCE, clock=clock, limit_bytes=limit, reserve_bytes=reserve
        )
