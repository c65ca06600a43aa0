"""Shares of a process as they are watched: what is told, what is called off and for how long."""

import logging
import random
from collections.abc import Mapping
from datetime import timedelta

import pytest

from gateway.routing.shares import LOOKS, Odds
from gateway.sharing import (
    BEFORE_SECONDS,
    OFF_SECONDS,
    SLOT_SECONDS,
    SLOTS,
    WINDOW_SECONDS,
    Sharing,
    Told,
    picks_before,
)
from gateway.stats import Stats
from ledger.folds.routing import RoutingView
from tests.streams.builders import FakeClock

NAMES = ("b-1", "b-2", "b-3")
EVEN: Odds = ((1.0, NAMES),)
FAIR = (1.0, 1.0, 1.0)


class House:
    """A process whose choices are made here."""

    def __init__(self, before: Mapping[str, int] | None = None) -> None:
        self.clock, self.stats, self.dice = FakeClock(), Stats(), random.Random(4)
        self.before = dict(before or {})
        self.sharing = Sharing(self.stats, self.clock, lambda: self.before)

    def pick(self, number: int, weights: tuple[float, ...] = FAIR, how: str = "score") -> None:
        """So many choices of which each promised every backend the same."""
        for name in self.dice.choices(NAMES, weights, k=number):
            self.stats.picks[name, how] += 1
            if how != "asked":
                self.stats.drawn[EVEN] += 1

    def run(self, seconds: float, each: int, weights: tuple[float, ...] = FAIR) -> None:
        """Time passes, with so many picks each second, and the heartbeat looks."""
        for _ in range(int(seconds)):
            self.pick(each, weights)
            self.clock.advance(1)
            self.sharing.tick()

    def off(self) -> set[str]:
        return {name for name in NAMES if self.sharing.told(name).off is not None}

    def gauges(self) -> dict[tuple[str, str], float]:
        return {
            (name, labels["backend"]): value for name, _, labels, value in self.sharing.gauges()
        }


def test_it_tells_the_last_minute_and_probes_of_the_gateways_own_are_no_picks() -> None:
    house = House()
    house.run(200, 30)
    house.pick(500, how="asked")
    house.sharing.tick()
    told = [house.sharing.told(name) for name in NAMES]
    assert (SLOTS - 1) * SLOT_SECONDS <= told[0].seconds <= SLOTS * SLOT_SECONDS
    number = sum(one.picks for one in told)
    assert number == told[0].seconds * 30
    assert [one.expected for one in told] == pytest.approx([number / 3] * 3)
    assert all(one.picks == pytest.approx(number / 3, rel=0.15) for one in told)
    assert house.off() == set() and told[0].before is None
    house.run(SLOTS * SLOT_SECONDS, 0)
    assert house.sharing.told("b-1").picks == 0
    assert house.sharing.told("nobody's") == Told(seconds=told[0].seconds)


def test_a_draw_that_leans_is_logged_once_told_and_measured(
    caplog: pytest.LogCaptureFixture,
) -> None:
    house = House()
    house.run(100, 10)
    with caplog.at_level(logging.WARNING):
        house.run(30, 40, (0.6, 0.2, 0.2))
    assert "b-1" in house.off()
    told = house.sharing.told("b-1").off
    assert told is not None and "its odds were 33.3%" in told
    said = [one.message for one in caplog.records if "backend b-1 is off" in one.message]
    assert len(said) == 1 and "tollbook shares" in said[0]
    measured = house.gauges()
    assert measured["tollbook_share_off", "b-1"] == 1
    assert measured["tollbook_share_measured", "b-1"] > 0.45
    assert measured["tollbook_share_expected", "b-1"] == pytest.approx(1 / 3)


def test_it_is_off_until_some_minutes_after_it_was_last_found() -> None:
    house = House()
    house.run(30, 40, (0.6, 0.2, 0.2))
    assert "b-1" in house.off()
    house.run(OFF_SECONDS, 40)
    assert house.off() == set()
    assert set(house.gauges().values()) - {0.0}, "the shares themselves are still shown"
    assert house.gauges()["tollbook_share_off", "b-1"] == 0


def test_an_old_fault_is_not_hidden_by_hours_that_went_well() -> None:
    house = House()
    house.run(WINDOW_SECONDS * 2.5, 2)
    assert house.off() == set()
    house.run(60, 10, (0.6, 0.2, 0.2))
    assert "b-1" in house.off()


def test_a_start_that_leans_is_off_within_its_first_seconds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The draw keeps to its odds, but these are not what they were before."""
    house = House({"b-1": 1_000, "b-2": 1_000, "b-3": 1_000})
    leaning: Odds = ((0.965, ("b-1",)), (0.035, ("b-2", "b-3")))
    for _ in range(int(SLOT_SECONDS)):
        for _ in range(20):
            name = house.dice.choices(NAMES, (0.965, 0.0175, 0.0175))[0]
            house.stats.picks[name, "score"] += 1
            house.stats.drawn[leaning] += 1
        house.clock.advance(1)
        house.sharing.tick()
    told = house.sharing.told("b-1")
    assert told.off is not None and "33.3% in the last minute before it" in told.off
    assert told.before == pytest.approx(1 / 3)


def test_a_start_like_the_last_minute_before_says_so_and_is_looked_at_no_longer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    house = House({"b-1": 500, "b-2": 510, "b-3": 490})
    with caplog.at_level(logging.INFO):
        house.run(SLOT_SECONDS * LOOKS, 20)
    assert house.off() == set()
    assert [one for one in caplog.records if "shares in the first minute" in one.message]
    house.before = {"b-1": 1_000_000, "b-2": 1, "b-3": 1}
    house.run(60, 20)
    assert house.off() == set()


def test_only_a_fresh_last_word_with_picks_is_compared() -> None:
    clock = FakeClock()
    now = clock.now()

    def view(backend_id: str, picks: int | None, age: float) -> RoutingView:
        at = now - timedelta(seconds=age)
        return RoutingView(
            backend_id=backend_id,
            gateway="box",
            up=True,
            source="/gateway/box/1",
            sequence=1,
            observed_at=at,
            expires_at=at,
            appended_ms=0,
            offset=0,
            picks=picks,
        )

    views = [view("b-1", 7, 60), view("b-2", None, 60), view("b-3", 9, BEFORE_SECONDS)]
    assert picks_before(views, now) == {"b-1": 7}
