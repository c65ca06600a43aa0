"""Views of backends without Kafka: the runner folds them into a file, and a gateway that starts
finds the last word of each process that died, with a runner and without one."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from ledger.events import BackendObserved, Draft
from ledger.identity import mint_id
from ledger.sql.session import open_ledger
from streams.local.layout import Layout
from streams.local.routed import Routed, RoutedFile, read_routed, recall
from streams.local.runner import Runner
from streams.log.spool import SpoolWriter
from tests.streams.builders import FakeClock


class House:
    """A data directory with gateways that say something of one backend."""

    def __init__(self, root: Path) -> None:
        self.layout, self.clock = Layout(root), FakeClock()
        self.layout.make()

    @contextmanager
    def gateway(self) -> Iterator[SpoolWriter]:
        """One life of the gateway `box`."""
        incarnation = mint_id()
        spool = SpoolWriter.create(
            self.layout.spool(incarnation),
            f"/gateway/box/{incarnation}",
            clock=self.clock,
            reserve_bytes=1 << 16,
        )
        try:
            yield spool
        finally:
            spool.close()

    def say(self, spool: SpoolWriter, in_flight: int, backend: str = "b") -> None:
        now = self.clock.now()
        said = BackendObserved(
            backend_id=backend,
            gateway="box",
            up=True,
            expires_at=now + timedelta(seconds=10),
            in_flight=in_flight,
            kv_usage="0.5",
        )
        spool.append(Draft(f"{spool.source}/observed/{mint_id()}", backend, now, said))

    def run(self, times: int = 1) -> None:
        """A runner's life of so many rounds, each half a second after the last."""
        with open_ledger(self.layout.ledger) as ledger:
            runner = Runner(self.layout, ledger, self.clock, say=print, name="test")
            for _ in range(times):
                self.clock.advance(0.5)
                while runner.step():
                    pass
            runner.close()


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def in_flight(house: House) -> list[int]:
    """What a gateway that starts now would read, and then what one that runs does."""
    start = RoutedFile(house.layout)
    start.start()
    return [view.in_flight for view in (*start.views().values(), *recall(house.layout).values())]


def test_the_runner_leaves_the_newest_view_of_each_backend(house: House) -> None:
    with house.gateway() as spool:
        house.say(spool, 1)
        house.say(spool, 2)
        house.say(spool, 7, backend="c")
        house.run()
        found = read_routed(house.layout.root)
    assert {key: view.in_flight for key, view in found.items()} == {
        ("b", "box"): 2,
        ("c", "box"): 7,
    }
    assert found["b", "box"].kv_usage == "0.5"
    assert found["b", "box"].source == spool.source


def test_a_later_life_goes_before_an_earlier_one_in_whatever_order_they_are_read(
    house: House,
) -> None:
    with house.gateway() as first:
        for count in range(5):
            house.say(first, count)
    with house.gateway() as second:
        house.say(second, 77)
    house.run(2)
    assert read_routed(house.layout.root)["b", "box"].in_flight == 77
    assert read_routed(house.layout.root)["b", "box"].source == second.source


def test_without_any_runner_a_start_finds_the_last_word_of_the_last_life(house: House) -> None:
    with house.gateway() as spool:
        house.say(spool, 1)
        house.say(spool, 2)
    assert in_flight(house) == [2, 2]


def test_what_the_runner_has_not_taken_yet_is_found_too(house: House) -> None:
    with house.gateway() as spool:
        house.say(spool, 1)
        house.run()
        house.say(spool, 2)
    assert read_routed(house.layout.root)["b", "box"].in_flight == 1
    assert in_flight(house) == [2, 2]


def test_what_a_killed_runner_had_taken_and_not_told_yet_is_found_too(house: House) -> None:
    with house.gateway() as spool:
        house.say(spool, 1)
        house.run()
        older = house.layout.routed.read_bytes()
        house.say(spool, 2)
        house.run()
    # As if it had been killed between the ledger's commit and its file.
    house.layout.routed.write_bytes(older)
    assert in_flight(house) == [2, 2]


def test_a_lost_file_is_made_again_from_the_spools(house: House) -> None:
    with house.gateway() as spool:
        house.say(spool, 3)
        house.run()
        house.layout.routed.unlink()
        house.run()
    assert read_routed(house.layout.root)["b", "box"].in_flight == 3


def test_a_runner_that_starts_again_keeps_what_it_knew(house: House) -> None:
    with house.gateway() as spool:
        house.say(spool, 3)
        house.run()
    house.run()
    before = house.layout.routed.stat().st_ino
    house.run()
    assert read_routed(house.layout.root)["b", "box"].in_flight == 3
    assert house.layout.routed.stat().st_ino == before, "what did not change is not written again"


def test_a_running_gateway_reads_the_file_when_it_is_replaced(house: House) -> None:
    reader = RoutedFile(house.layout)
    reader.start()
    assert reader.views() == {}
    with house.gateway() as spool:
        house.say(spool, 1)
        house.run()
        assert [view.in_flight for view in reader.views().values()] == [1]
        house.say(spool, 4)
        house.run()
        assert [view.in_flight for view in reader.views().values()] == [4]
        house.layout.routed.write_bytes(b'[{"backend_id":"b"')
        assert [view.in_flight for view in reader.views().values()] == [4]


def test_a_clock_that_is_set_back_makes_no_view_an_old_one(house: House) -> None:
    reader = RoutedFile(house.layout)
    with house.gateway() as spool:
        house.say(spool, 1)
        house.run()
        assert [view.in_flight for view in reader.views().values()] == [1]
        house.clock.advance(-3600)
        house.say(spool, 4)
        house.run(2)
        assert [view.in_flight for view in reader.views().values()] == [4]


def test_a_view_that_nobody_renews_is_gone_after_a_day(house: House) -> None:
    with house.gateway() as spool:
        house.say(spool, 1)
        house.run()
        house.clock.advance(86_500)
        house.say(spool, 2, backend="c")
        house.run()
    assert list(read_routed(house.layout.root)) == [("c", "box")]


def test_a_disk_that_refuses_is_said_once_and_keeps_nothing_back(house: House) -> None:
    house.layout.routed.parent.write_text("a file where the directory should be")
    words: list[str] = []
    with house.gateway() as spool:
        house.say(spool, 1)
        with open_ledger(house.layout.ledger) as ledger:
            runner = Runner(house.layout, ledger, house.clock, say=words.append, name="test")
            for _ in range(3):
                house.clock.advance(0.5)
                runner.step()
            runner.close()
    assert len([one for one in words if "routing-state.json cannot be written" in one]) == 1


def test_damage_in_the_file_is_as_no_file(house: House) -> None:
    house.layout.routed.parent.mkdir()
    house.layout.routed.write_bytes(b"\xff\x00")
    assert read_routed(house.layout.root) == {}
    assert Routed(house.layout, print).views == {}
