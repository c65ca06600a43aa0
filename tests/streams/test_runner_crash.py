"""The runner dies between any two steps of its work, and the next one ends it: nothing is lost,

nothing is told twice, and nothing contradicts what was told before.
"""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ledger.sql.writer import LedgerWriter
from streams.log import lock
from streams.log.spool import segment_name
from tests.streams.builders import accepted, attempted, delivered, finished
from tests.streams.house import House
from tests.streams.test_registry_log import issue

STEPS = [
    (os, "write"),
    (os, "pwrite"),
    (os, "truncate"),
    (Path, "touch"),
    (Path, "unlink"),
    (Path, "mkdir"),
    (Path, "rename"),
    (Path, "write_bytes"),
    (LedgerWriter, "write"),
]
"""Everything by which a runner changes anything. A crash comes right behind one of these."""


class Crash(BaseException):
    """The end of the process. No `except` of the product may catch it."""


class Fate:
    """Counts the steps of a runner and ends it after the `deadly` one (null: never)."""

    def __init__(self, deadly: int | None) -> None:
        self.deadly = deadly
        self.steps = 0

    def after(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def fatal(*args: Any, **kwargs: Any) -> Any:
            result = step(*args, **kwargs)
            self.steps += 1
            if self.steps == self.deadly:
                raise Crash
            return result

        return fatal


def prepare(house: House) -> None:
    """A house in which a runner has everything to do."""
    dead = house.gateway("aa01", segment_bytes=900)
    dead.append(accepted("done"), attempted("done"))
    dead.append(accepted("stream"), attempted("stream"))
    dead.append(finished("done"))
    dead.append(delivered("stream", 1, 5))
    dead.append(accepted("plain"), attempted("plain"))
    dead.append(delivered("stream", 2, 9))
    newest = sorted(dead.directory.glob("*.seg"))[-1]
    assert newest.name != segment_name(0)
    with newest.open("ab") as file:
        file.write(b"\x00\x00\x01")
    other = house.gateway("aa02")
    other.append(accepted("second"))
    house.die(dead)
    house.die(other)
    living = house.gateway("aa03")
    living.append(accepted("alive"))
    house.registry().append(issue("k1"))


def live_and_die(house: House, deadly: int | None) -> int:
    """One runner from start to end, or to its `deadly` step. Returns the steps it took."""
    fate = Fate(deadly)
    others = set(lock._held)
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in STEPS:
            patch.setattr(owner, name, fate.after(getattr(owner, name)))
        try:
            runner = house.runner()
            runner.catch_up()
            runner.close()
        except Crash:
            # The kernel gives back the locks of a process that is gone.
            for held in set(lock._held) - others:
                held.release()
    return fate.steps


def check(house: House) -> None:
    house.catch_up()
    assert house.states() == {
        "done": "finished",
        "stream": "abandoned",
        "plain": "abandoned",
        "second": "abandoned",
        "alive": "open",
    }
    assert house.requests()["stream"].chunks == 9
    closed = house.closed()
    assert {"/gateway/test/aa01", "/gateway/test/aa02"} <= set(closed)
    assert house.adopted() == set(house.spools()) - {"aa03"}
    assert house.findings() == []
    before = house.spools()
    house.catch_up()
    assert house.spools() == before, "there is nothing left to do"


def test_a_runner_may_die_behind_any_step(tmp_path: Path) -> None:
    whole = House(tmp_path / "whole")
    prepare(whole)
    steps = live_and_die(whole, None)
    check(whole)
    whole.close()
    assert steps > 15
    for deadly in range(1, steps + 1):
        house = House(tmp_path / str(deadly))
        prepare(house)
        assert live_and_die(house, deadly) >= deadly
        check(house)
        house.close()


def test_runners_may_die_one_after_the_other(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    for number in range(12):
        house = House(tmp_path / str(number))
        prepare(house)
        for _ in range(3):
            live_and_die(house, dice.randint(1, 25))
        check(house)
        house.close()
