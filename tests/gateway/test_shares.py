"""The check of shares: it is silent as often as it says, and it finds what is really off."""

import itertools
import random
from collections import Counter
from math import exp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.policies import POLICIES
from gateway.routing.policy import BackendView, Rules, Wanted, choose
from gateway.routing.shares import Draws, Odds, moved, parts, shares

NAMES = ("b-1", "b-2", "b-3", "b-4")
EVEN: Odds = ((1.0, NAMES[:3]),)
LEANING = (0.965, 0.0347, 0.0003)
"""The shares that a widely used router gave three equal backends after a restart."""

groups = st.tuples(st.floats(0, 1), st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
drawings = st.lists(
    st.lists(groups.map(lambda group: (group[0], tuple(group[1]))), max_size=4).map(tuple),
    max_size=12,
)


def fed(picks: Counter[str], drawn: Counter[Odds]) -> dict[str, Draws]:
    found = {}
    for name, odds in parts(drawn).items():
        found[name] = Draws()
        found[name].add(picks[name], odds)
    return found


def called_off(draws: dict[str, Draws]) -> set[str]:
    return {name for name, one in draws.items() if one.off(len(draws))}


@given(drawings)
def test_each_backend_has_the_sum_of_what_each_draw_gave_it(drawn: list[Odds]) -> None:
    found = parts(Counter(drawn))
    for name in NAMES:
        plain = [
            sum(part / len(names) for part, names in odds if name in names)
            for odds in drawn
            if any(name in names for _, names in odds)
        ]
        counts = found.get(name, Counter())
        assert all(number >= 0 for number in counts.values())
        assert counts.total() == len(plain)
        assert sum(part * number for part, number in counts.items()) == pytest.approx(sum(plain))


@given(st.lists(st.floats(0.01, 0.99), max_size=7))
def test_the_mean_of_the_test_is_one_whatever_the_odds_are(odds: list[float]) -> None:
    """Over all that may be picked, each with its own chance. With this, and because it is never
    negative, it reaches 1/a with a chance of at most a: the false alarms that are stated."""
    mean = 0.0
    for outcome in itertools.product((0, 1), repeat=len(odds)):
        draws, chance = Draws(), 1.0
        for picked, part in zip(outcome, odds, strict=True):
            draws.add(picked, {part: 1})
            chance *= part if picked else 1 - part
        mean += chance * exp(draws.doubt())
    assert mean == pytest.approx(1)


def test_false_alarms_are_no_more_than_stated_though_it_is_asked_after_every_pick() -> None:
    dice, chance, windows, alarms = random.Random(6), 0.1, 400, 0
    for _ in range(windows):
        draws = [Draws() for _ in range(3)]
        for _ in range(120):
            odds = [0.6, 0.3, 0.1] if dice.random() < 0.5 else [0.2, 0.2, 0.6]
            picked = dice.choices(range(3), odds)[0]
            for at, one in enumerate(draws):
                one.add(int(at == picked), {odds[at]: 1})
            if any(one.off(3, chance) for one in draws):
                alarms += 1
                break
    # Four standard deviations above would still be a fault of the test; it is well below.
    assert 0 < alarms <= windows * chance


def _picks_until_off(shares_: tuple[float, ...], most: int) -> int:
    """So many picks are enough to see it."""
    dice, draws = random.Random(1), [Draws() for _ in shares_]
    for count in range(1, most + 1):
        picked = dice.choices(range(len(shares_)), shares_)[0]
        for at, one in enumerate(draws):
            one.add(int(at == picked), {1 / len(shares_): 1})
        if any(one.off(len(draws)) for one in draws):
            return count
    raise AssertionError(f"nothing was seen in {most} picks")


@pytest.mark.parametrize(
    ("skewed", "most"),
    [(LEANING, 40), ((0.5, 0.25, 0.25), 500), ((0.4, 0.3, 0.3), 3_000), ((0.0, 0.5, 0.5), 120)],
    ids=["leaning", "one-half", "seven-points", "starved"],
)
def test_a_real_skew_is_found(skewed: tuple[float, ...], most: int) -> None:
    assert 5 < _picks_until_off(skewed, most) <= most


def test_a_skew_of_two_points_needs_a_great_many_picks_and_is_found() -> None:
    number = 60_000
    draws = fed(Counter({"b-1": 21_200, "b-2": 19_400, "b-3": 19_400}), Counter({EVEN: number}))
    assert "b-1" in called_off(draws)
    some = fed(Counter({"b-1": 106, "b-2": 97, "b-3": 97}), Counter({EVEN: 300}))
    assert not called_off(some)


def test_what_was_never_in_the_odds_is_found_when_it_is_picked() -> None:
    draws = {"b-9": Draws()}
    draws["b-9"].add(20, {0.0: 20})
    assert called_off(draws) == {"b-9"}


def test_what_is_sure_proves_nothing() -> None:
    draws = fed(Counter({"b-1": 1_000_000}), Counter({((1.0, ("b-1",)),): 1_000_000}))
    assert draws["b-1"].doubt() == pytest.approx(0, abs=1e-6)
    assert draws["b-1"].expected == pytest.approx(1_000_000)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("honest", [True, False], ids=["honest", "broken"])
def test_choices_keep_to_their_odds_and_a_broken_pick_does_not(policy: str, honest: bool) -> None:
    """Broken: every third choice goes to the same backend, whatever was chosen."""
    dice, rules = random.Random(2), Rules(policy=policy, explore=0.05)  # type: ignore[arg-type]
    picks: Counter[str] = Counter()
    drawn: Counter[Odds] = Counter()
    for number in range(6_000):
        state = [
            BackendView(name, None, True, dice.randrange(2), weight=weight, share=0.5 + at / 4)
            for at, (name, weight) in enumerate(zip(NAMES[:3], (100, 100, 40), strict=True))
        ]
        choice = choose(Wanted(f"req_{number}", "m", number=number), state, rules)
        assert choice is not None
        drawn[choice.odds] += 1
        picks["b-1" if not honest and number % 3 == 0 else choice.backend_id] += 1
    draws = fed(picks, drawn)
    assert bool(called_off(draws)) is not honest
    assert sum(one.expected for one in draws.values()) == pytest.approx(6_000)


def test_shares_are_parts_of_what_the_named_have_together() -> None:
    assert shares({"b-1": 30, "b-2": 10, "b-3": 60}, ["b-1", "b-2"]) == {"b-1": 0.75, "b-2": 0.25}
    assert shares({}, ["b-1"]) == {}


def test_a_start_that_leans_is_found_in_its_first_seconds() -> None:
    before = {"b-1": 1_000, "b-2": 1_010, "b-3": 990}
    after = {name: int(share * 60) for name, share in zip(before, LEANING, strict=True)}
    assert "b-1" in moved(before, after)
    was, now = moved(before, after)["b-1"]
    assert was == pytest.approx(1 / 3) and now > 0.9


@given(
    st.lists(st.integers(50, 10**6), min_size=2, max_size=4),
    st.floats(-0.049, 0.049),
)
def test_a_share_that_moves_by_less_than_five_points_is_never_called_off(
    counts: list[int], by: float
) -> None:
    before = dict(zip(NAMES, counts, strict=False))
    total = sum(counts)
    shift = int(max(-counts[0], min(counts[1], by * total)))
    after = before | {"b-1": counts[0] + shift, "b-2": counts[1] - shift}
    assert not moved(before, after)


def test_few_picks_call_nothing_off_and_many_show_a_small_move() -> None:
    even = {"b-1": 1, "b-2": 1, "b-3": 1}
    assert not moved(even, {"b-1": 3, "b-2": 0, "b-3": 0})
    many = dict.fromkeys(even, 50_000)
    assert moved(many, {"b-1": 62_000, "b-2": 44_000, "b-3": 44_000}).keys() == {"b-1"}
    assert not moved(many, {"b-1": 56_000, "b-2": 47_000, "b-3": 47_000})


def test_a_start_is_called_off_wrongly_no_more_often_than_stated() -> None:
    dice, chance, starts, alarms = random.Random(3), 0.2, 300, 0
    for _ in range(starts):
        before = Counter(dice.choices(NAMES[:3], (0.5, 0.3, 0.2), k=200))
        after: Counter[str] = Counter()
        for _look in range(6):
            after.update(dice.choices(NAMES[:3], (0.45, 0.35, 0.2), k=40))
            if moved(before, after, chance=chance):
                alarms += 1
                break
    assert alarms <= starts * chance


def test_a_backend_that_is_new_or_gone_is_no_skew() -> None:
    before = {"b-1": 500, "b-2": 500}
    assert not moved(before, {"b-1": 500, "b-3": 500})
    assert not moved(before, {"b-1": 240, "b-2": 260, "b-3": 500})
