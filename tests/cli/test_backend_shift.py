"""Whether a rolling update goes on, is held, or is rolled back."""

from math import comb
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from gateway.cli import backend_shift
from gateway.cli.backend_shift import Shift, parse_steps
from gateway.cli.place import Place
from gateway.cli.shifting import (
    Limits,
    Pace,
    Verdict,
    chance,
    judge,
    pace,
    together,
    unreached,
    worst,
)
from ledger.folds.routing import RoutingView
from tests.cli.books import run, run_json
from tests.support.events import START, after

OLD = Pace(1000, 2, 100_000)


def view(gateway: str = "g1", backend_id: str = "new", **more: Any) -> RoutingView:
    values: dict[str, Any] = {
        "up": True,
        "source": f"/gateway/{gateway}/1",
        "sequence": 7,
        "observed_at": START,
        "expires_at": after(10),
        "appended_ms": 0,
        "offset": 0,
    }
    return RoutingView(backend_id=backend_id, gateway=gateway, **(values | more))


@pytest.mark.parametrize(
    ("new", "verdict"),
    [
        (Pace(200, 0, 110_000), "good"),
        (Pace(200, 2, 110_000), "good"),
        (Pace(200, 20, 110_000), "bad"),
        (Pace(3, 3, None), "bad"),
        (Pace(3, 0, 110_000), "few"),
        (Pace(0, 0, None), "few"),
        (Pace(200, 0, 160_000), "slow"),
        (Pace(200, 0, None), "good"),
    ],
)
def test_more_failures_roll_back_and_late_first_tokens_hold(new: Pace, verdict: Verdict) -> None:
    assert judge(OLD, new, Limits()).verdict == verdict


def test_a_ratio_alone_is_not_slow_where_nobody_would_notice() -> None:
    assert judge(Pace(100, 0, 2_000), Pace(100, 0, 45_000), Limits()).verdict == "good"
    assert judge(Pace(100, 0, 2_000), Pace(100, 0, 55_000), Limits()).verdict == "slow"


def test_where_the_old_tell_too_little_a_few_failures_beyond_the_limit_are_enough() -> None:
    assert judge(Pace(), Pace(100, 2, None), Limits()).verdict == "good"
    assert judge(Pace(), Pace(100, 3, None), Limits()).verdict == "bad"
    assert judge(Pace(), Pace(1000, 3, None), Limits()).verdict == "good"


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 30), st.integers(0, 30))
def test_the_chance_is_that_of_fishers_exact_test(
    old: int, old_failed: int, new: int, new_failed: int
) -> None:
    old_failed, new_failed = min(old_failed, old), min(new_failed, new)
    failed = old_failed + new_failed
    ways = sum(
        comb(new, count) * comb(old, failed - count)
        for count in range(new_failed, min(new, failed) + 1)
    )
    exact = ways / comb(old + new, failed) if new_failed else 1.0
    assert chance(Pace(old, old_failed), Pace(new, new_failed)) == pytest.approx(exact)


@given(st.tuples(*[st.integers(0, 10**6)] * 4))
def test_the_chance_is_one_for_any_counts(counts: tuple[int, int, int, int]) -> None:
    old, old_failed, new, new_failed = counts
    found = chance(Pace(old, old_failed % 1000), Pace(new, new_failed % 1000))
    assert -1e-9 <= found <= 1 + 1e-6


def test_pace_is_what_came_since_and_a_new_process_counts_from_its_start() -> None:
    before = {
        ("new", "g1"): view(requests=100, failures=5),
        ("new", "g2"): view("g2", requests=900, failures=9),
    }
    views = [
        view(requests=110, failures=6, first_token_us=100),
        view("g2", source="/gateway/g2/2", requests=30, failures=0, first_token_us=500),
        view("g3", requests=7, expires_at=START),
        view("g1", "other", requests=70),
    ]
    assert pace(before, views, ["new"], after(1)) == Pace(40, 1, (10 * 100 + 30 * 500) // 40)


def test_paces_add_up_and_the_last_first_token_stands() -> None:
    assert together(Pace(1, 1, 5), Pace(2, 0, None)) == Pace(3, 1, 5)
    assert together(Pace(1, 1, 7), Pace(2, 0, 5)) == Pace(3, 1, 5)


def test_the_new_are_held_against_the_worst_of_the_old() -> None:
    assert worst(Pace(1, 1, 7), Pace(2, 0, 5)) == worst(Pace(2, 0, 5), Pace(1, 1, 7))
    assert worst(Pace(1, 1, 7), Pace(2, 0, 5)) == Pace(3, 1, 7)
    assert worst(Pace(), Pace(2, 0, 5)) == Pace(2, 0, 5)


def test_a_backend_is_reached_if_one_gateway_reaches_it() -> None:
    down = view("g2", up=False, fault="refused")
    assert unreached([view(), down], ["new"], START) == ()
    assert unreached([down], ["new"], START) == ("new: refused",)
    assert unreached([view(expires_at=START)], ["new"], START) == ("new: no gateway tells of it",)


def test_steps_rise() -> None:
    assert parse_steps("5, 50,100") == (5, 50, 100)
    for wrong in ("", "5,5", "50,5", "0,5", "101", "five"):
        with pytest.raises(ValueError, match="steps"):
            parse_steps(wrong)


class Stage:
    """`shift` with gateways of a script: of each hold, what came at the new ones. Time stands."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, data: Path, *holds: Pace) -> None:
        self.data = ("--data", str(data))
        self.holds = list(holds)
        self.weights: list[tuple[str, int]] = []
        for name in ("old", "new"):
            run_json("backends", "add", name, "--url", f"http://{name}:1", *self.data)
        real = backend_shift._weigh

        def weigh(place: Place, name: str, weight: int) -> None:
            self.weights.append((name, weight))
            real(place, name, weight)

        def came(before: Any, views: Any, backends: tuple[str, ...], now: Any) -> Pace:
            return OLD if backends == ("old",) else self.holds.pop(0)

        monkeypatch.setattr(backend_shift, "_weigh", weigh)
        monkeypatch.setattr(backend_shift, "_hold", lambda *_: ())
        monkeypatch.setattr(backend_shift, "views_of", lambda _: {})
        monkeypatch.setattr(backend_shift, "unreached", lambda *_: ())
        monkeypatch.setattr(backend_shift, "pace", came)

    def shift(self, *args: str) -> Any:
        result = run("backends", "shift", "--from", "old", "--to", "new", *args, *self.data)
        return result.exit_code, result.output

    def listed(self) -> dict[str, int]:
        found = run_json("backends", "list", *self.data)["backends"]
        return {one["id"]: one["weight"] for one in found}


GOOD, SLOW, FEW = Pace(200, 0, 110_000), Pace(200, 0, 400_000), Pace(1, 0, None)


def test_a_shift_goes_step_by_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stage = Stage(monkeypatch, tmp_path / "data", GOOD, GOOD)
    code, said = stage.shift("--steps", "10,100")
    assert code == 0 and "tollbook backends drain old" in said
    assert stage.weights == [("new", 10), ("old", 90), ("new", 100), ("old", 0)]
    assert stage.listed() == {"old": 0, "new": 100}


def test_a_shift_moves_the_weight_that_was_there_and_no_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stage = Stage(monkeypatch, tmp_path / "data", GOOD, GOOD)
    run_json("backends", "set", "old", "--weight", "30", *stage.data)
    run_json("backends", "set", "new", "--weight", "0", *stage.data)
    assert stage.shift("--steps", "10,100")[0] == 0
    assert stage.weights == [("new", 3), ("old", 27), ("new", 30), ("old", 0)]


def test_a_shift_goes_on_from_where_an_ended_one_left_the_weights() -> None:
    shift = Shift(
        old=("a", "b"),
        new=("c",),
        limits=Limits(),
        hold_seconds=0,
        weights={"a": 60, "b": 30, "c": 40},
    )
    assert shift.at(50) == {"c": 50, "a": 50, "b": 25}
    assert shift.at(100) == {"c": 100, "a": 0, "b": 0}
    nothing = structs.replace(shift, weights={"a": 0, "b": 0, "c": 0})
    assert nothing.at(10) == {"c": 10, "a": 90, "b": 90}


def test_a_shift_that_is_broken_off_says_that_weights_stay(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stage = Stage(monkeypatch, tmp_path / "data", GOOD)

    def removed(*_: object) -> tuple[str, ...]:
        run("backends", "remove", "old", "--now", *stage.data)
        return ()

    monkeypatch.setattr(backend_shift, "_hold", removed)
    code, said = stage.shift("--steps", "10,100")
    assert code == 1 and "weights stay as they are" in said and "was removed" in said


def test_a_shift_may_end_on_the_way(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stage = Stage(monkeypatch, tmp_path / "data", GOOD)
    code, said = stage.shift("--steps", "10")
    assert code == 0 and "new has 10 % of its usual part" in said
    assert stage.listed() == {"old": 90, "new": 10}


def test_first_tokens_that_stay_late_roll_back_to_the_weights_that_were(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stage = Stage(monkeypatch, tmp_path / "data", GOOD, *[SLOW] * (backend_shift.HOLDS_MAX + 1))
    run_json("backends", "set", "new", "--weight", "3", *stage.data)
    code, said = stage.shift("--steps", "10,50,100")
    assert code == 1 and "rolled back" in said and "400 ms at the new" in said
    assert stage.listed() == {"old": 100, "new": 3} and not stage.holds


def test_a_step_that_was_late_for_a_while_goes_on_once_it_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stage = Stage(monkeypatch, tmp_path / "data", SLOW, SLOW, GOOD)
    assert stage.shift("--steps", "100")[0] == 0 and not stage.holds


def test_with_too_few_requests_a_step_is_held_and_then_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stage = Stage(monkeypatch, tmp_path / "data", *[FEW] * (backend_shift.HOLDS_MAX + 1))
    code, said = stage.shift("--steps", "100")
    assert code == 0 and "too few to tell" in said and not stage.holds


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("--from", "old", "--to", "old"), "both old and new"),
        (("--from", "old", "--to", "newer"), "did you mean 'new'"),
        (("--from", "old", "--to", "new"), "gateways do not reach new"),
    ],
)
def test_what_cannot_be_shifted_is_refused_before_anything_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, args: tuple[str, ...], why: str
) -> None:
    monkeypatch.setattr(backend_shift, "TOLD_SECONDS", 0.0)
    data = ("--data", str(tmp_path / "data"))
    for name in ("old", "new"):
        run_json("backends", "add", name, "--url", f"http://{name}:1", *data)
    refused = run("backends", "shift", *args, *data)
    assert refused.exit_code == 1 and why in refused.stderr, refused.output
    listed = run_json("backends", "list", *data)["backends"]
    assert [one["weight"] for one in listed] == [100, 100]
