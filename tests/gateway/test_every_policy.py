"""What holds for every routing policy: one suite, run over each with `choose`.

A new policy is in `POLICIES` of gateway/routing/policies.py and so in this suite; what is special
to one stands below it.
"""

import time
import timeit
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.policies import POLICIES
from gateway.routing.policy import BackendView, Choice, Policy, Rules, Ruling, Wanted, choose
from tests.bench.micro import crowds

RULES = {name: Rules(policy=name) for name in POLICIES}
REQUESTS = 4_000
BACKENDS = ("b-1", "b-2", "b-3", "b-4")

every_policy = pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
counts = st.integers(0, 3)
states = st.lists(
    st.builds(
        BackendView,
        backend_id=st.sampled_from(BACKENDS),
        models=st.none() | st.frozensets(st.sampled_from(("m", "other"))),
        up=st.booleans(),
        in_flight=counts,
        others_in_flight=counts,
        running=st.none() | counts,
        waiting=st.none() | counts,
        kv_usage=st.none() | st.floats(0, 1),
        picked=counts,
        weight=st.sampled_from((0, 10, 100)),
        draining=st.booleans(),
        trial=st.none() | st.integers(0, 2),
        share=st.sampled_from((0.0, 0.25, 1.0)),
        refused=st.sampled_from((0.0, 0.0, 0.06, 0.5, 1.0)),
    ),
    unique_by=lambda view: view.backend_id,
    max_size=len(BACKENDS),
)
requests = st.builds(
    Wanted,
    request_id=st.text(max_size=8),
    model=st.sampled_from(("m", "nobody's")),
    tried=st.lists(st.sampled_from(BACKENDS), max_size=2).map(tuple),
    number=st.integers(0, 9),
)


def view(backend_id: str, in_flight: int = 0, *, up: bool = True, **more: Any) -> BackendView:
    return BackendView(backend_id, frozenset(("m",)), up, in_flight, **more)


def fits(request: Wanted, backend: BackendView) -> bool:
    served = backend.models is None or request.model in backend.models
    return served and not backend.draining and backend.backend_id not in request.tried


def chosen(state: Iterable[BackendView], choice: Choice | None) -> BackendView:
    assert choice is not None
    return next(one for one in state if one.backend_id == choice.backend_id)


def many(state: Sequence[BackendView], rules: Rules, number: int = REQUESTS) -> Counter[str]:
    """How often each was chosen, of `number` requests at this same moment."""
    found = (choose(Wanted(f"req_{n}", "m", number=n), state, rules) for n in range(number))
    return Counter(choice.backend_id for choice in found if choice is not None)


def is_about(count: int, part: float, number: int = REQUESTS) -> bool:
    """Within four standard deviations of a fair draw. Ids are fixed: it never fails by chance."""
    return bool(abs(count - number * part) <= 4 * (number * part * (1 - part)) ** 0.5)


@every_policy
@given(request=requests, state=states)
def test_a_choice_is_fit_and_there_is_one_whenever_there_can_be(
    rules: Rules, request: Wanted, state: list[BackendView]
) -> None:
    fit = [one for one in state if fits(request, one)]
    choice = choose(request, state, rules)
    if not fit:
        assert choice is None
        return
    one = chosen(fit, choice)
    assert choice is not None
    up = [each for each in fit if each.up and each.trial is None]
    if one.trial and one.weight and not request.tried:
        return
    # One that is not up is a last resort: it may have come back since it was last asked.
    assert choice.last_resort == (not up)
    assert not up or one in up
    assert one.up or not any(each.up for each in fit)
    assert one.weight or not any(each.weight for each in up)


@every_policy
@given(request=requests, state=states)
def test_the_same_input_gives_the_same_choice_and_stays_as_it_was(
    rules: Rules, request: Wanted, state: list[BackendView]
) -> None:
    before = msgspec.json.encode([request, state])
    first = choose(request, state, rules)
    assert choose(request, state, rules) == first
    assert choose(request, tuple(reversed(state)), rules) == first
    assert msgspec.json.encode([request, state]) == before


@every_policy
@given(request=requests, state=states)
def test_a_choice_explains_itself_in_words_that_a_header_can_hold(
    rules: Rules, request: Wanted, state: list[BackendView]
) -> None:
    choice = choose(request, state, rules)
    if choice is None:
        return
    assert choice.reasons
    for reason in choice.reasons:
        assert reason.strip() == reason and reason.isascii() and reason.isprintable()
        assert reason and "," not in reason and ";" not in reason
    assert float(choice.score_text) >= 0
    assert choice.last_resort == any("last resort" in reason for reason in choice.reasons)


@every_policy
@given(request=requests, state=states)
def test_the_odds_are_those_of_a_draw_that_the_chosen_one_was_in(
    rules: Rules, request: Wanted, state: list[BackendView]
) -> None:
    choice = choose(request, state, rules)
    if choice is None:
        return
    fit = {one.backend_id for one in state if fits(request, one)}
    assert sum(part for part, _ in choice.odds) == pytest.approx(1)
    assert all(part > 0 and names and fit.issuperset(names) for part, names in choice.odds)
    assert any(choice.backend_id in names for _, names in choice.odds)


STATES: dict[str, list[BackendView]] = {
    "one wins": [view("b-1", 3), view("b-2", 1), view("b-3", 2)],
    "two tie": [view("b-1", 1), view("b-2", 1), view("b-3", 2)],
    "weights": [view("b-1", weight=10), view("b-2"), view("b-3", 4), view("b-4", weight=30)],
    "recovering": [view("b-1", share=0.1), view("b-2", 2), view("b-3", 5, share=0.4)],
    "trials": [view("b-1", trial=1), view("b-2"), view("b-3", trial=2)],
    "down": [view("b-1", up=False), view("b-2", up=False, weight=50)],
}


@every_policy
@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_the_odds_come_true(rules: Rules, state: list[BackendView]) -> None:
    rules = msgspec.structs.replace(rules, explore=0.1)
    choice, found = choose(Wanted("any", "m"), state, rules), many(state, rules)
    assert choice is not None
    expected: Counter[str] = Counter()
    for part, names in choice.odds:
        for name in names:
            expected[name] += part / len(names)  # type: ignore[assignment]  # a sum of parts
    assert set(found) == set(expected)
    for name, count in found.items():
        assert is_about(count, expected[name]) or rules.policy == "round_robin"


@every_policy
def test_ties_are_spread_evenly(rules: Rules) -> None:
    found = many([view(name) for name in BACKENDS], rules)
    assert all(is_about(found[name], 1 / len(BACKENDS)) for name in BACKENDS)


@every_policy
def test_a_second_try_goes_elsewhere_and_is_no_trial(rules: Rules) -> None:
    state = [view("b-1"), view("b-2", 9), view("b-3", up=False), view("b-4", trial=1)]
    choice = choose(Wanted("r", "m", tried=("b-1",)), state, rules)
    assert choice is not None
    assert choice.backend_id == "b-2"
    assert choose(Wanted("r", "m", tried=BACKENDS), state, rules) is None


@every_policy
def test_no_backend_starves_when_all_are_down(rules: Rules) -> None:
    assert set(many([view(name, up=False) for name in BACKENDS], rules, 100)) == set(BACKENDS)


@every_policy
def test_a_backend_that_recovers_is_tried_first_and_only_within_its_quota(rules: Rules) -> None:
    state = [view("b-1"), view("b-2", 9, up=False, trial=1)]
    choice = choose(Wanted("r", "m"), state, rules)
    assert choice is not None and (choice.backend_id, choice.how) == ("b-2", "trial")
    assert set(many([view("b-1", 9), view("b-2", trial=0)], rules)) == {"b-1"}


@every_policy
def test_a_canary_has_its_part_of_the_requests(rules: Rules) -> None:
    """10 of 10 + 100 + 100, and of these two the score decides."""
    state = [view("b-1", weight=10), view("b-2", 5), view("b-3", 5)]
    assert is_about(many(state, rules)["b-1"], 10 / 210)
    busy = [view("b-1", 50, weight=10), view("b-2"), view("b-3")]
    assert is_about(many(busy, rules)["b-1"], 10 / 210)


@every_policy
def test_a_recovered_backend_rises_to_its_part(rules: Rules) -> None:
    for share in (0.25, 0.5):
        state = [view("b-1", share=share), view("b-2", 5), view("b-3", 5)]
        assert is_about(many(state, rules)["b-1"], share / (2 + share))


@every_policy
def test_weight_0_is_for_when_nothing_else_is_up(rules: Rules) -> None:
    out, down = view("b-1", weight=0), view("b-2", up=False)
    assert set(many([out, view("b-3", 99)], rules, 300)) == {"b-3"}
    choice = choose(Wanted("r", "m"), [out, down], rules)
    assert choice is not None and (choice.backend_id, choice.last_resort) == ("b-1", False)
    assert "its weight is 0 but no other is up" in choice.reasons
    assert set(many([out, view("b-2", share=0.0)], rules, 300)) == {"b-2"}


@every_policy
def test_one_that_is_half_open_is_the_better_last_resort(rules: Rules) -> None:
    state = [view("b-1", up=False), view("b-2", 9, trial=0), view("b-3", up=False, trial=0)]
    assert set(many(state, rules, 300)) == {"b-2"}
    choice = choose(Wanted("r", "m"), state, rules)
    assert choice is not None and choice.last_resort


@every_policy
@pytest.mark.parametrize(
    "state", [view("b-1", 9, up=False), view("b-1", weight=0), view("b-1", trial=0, draining=True)]
)
def test_a_probe_goes_where_it_must(rules: Rules, state: BackendView) -> None:
    wanted = Wanted("r", "m", only="b-1")
    choice = choose(wanted, [state, view("b-2")], rules)
    assert choice is not None and (choice.backend_id, choice.how) == ("b-1", "asked")
    assert choose(wanted, [view("b-2")], rules) is None
    assert choose(Wanted("r", "m", ("b-1",), "b-1"), [state], rules) is None
    assert choose(Wanted("r", "other", only="b-1"), [state], rules) is None


def test_round_robin_goes_by_turns() -> None:
    """For requests one after another, whatever is in flight."""
    state = [view("b-1", 9), view("b-2", 3), view("b-3")]
    found = [
        chosen(state, choose(Wanted(f"r{n}", "m", number=n), state, RULES["round_robin"]))
        for n in range(6)
    ]
    assert [one.backend_id for one in found] == ["b-1", "b-2", "b-3"] * 2


def test_a_backend_with_a_bad_score_is_explored_and_says_so() -> None:
    """A gauge that is stuck must not starve a backend for ever."""
    state = [view("b-1", waiting=99), view("b-2", waiting=0)]
    assert is_about(many(state, Rules(explore=0.2))["b-1"], 0.1)
    assert many(state, Rules(explore=0))["b-1"] == 0
    found = [choose(Wanted(f"r{n}", "m"), state, Rules(explore=0.2)) for n in range(100)]
    told = {(one.backend_id, one.how) for one in found if one is not None}
    assert told == {("b-1", "explored"), ("b-2", "explored"), ("b-2", "score")}
    assert 0 < many(state, Rules())["b-1"] < REQUESTS * 0.02


def full(waiting: int | None, kv: float | None = 0.0, **more: Any) -> Callable[[str], BackendView]:
    """A view with signals of its engine; its name comes later."""
    return lambda name: view(name, **{"in_flight": 0, **more}, waiting=waiting, kv_usage=kv)


@pytest.mark.parametrize(
    ("better", "worse", "scores"),
    [
        (full(0, 0.9), full(1, 0.1), (0.9, 1.1)),  # fewest waiting
        (full(2, 0.1), full(2, 0.2), (2.1, 2.2)),  # then least KV use
        (full(0, 1.0), full(1, 0.0), (0.999, 1.0)),  # full is not yet waiting
        (full(0, 0.5), full(0, 0.1, picked=1, in_flight=1), (0.5, 1.1)),  # own picks count at once
        (full(0, 0.1, picked=5, in_flight=0), full(0, 0.2), (0.1, 0.2)),  # unless they ended
        # Of ten in flight at all gateways the engine knew of eight at work.
        (full(1), full(0, running=8, in_flight=6, others_in_flight=4), (1.0, 2.0)),
        # KV use is not told: eight at work are 8 / (8 + 32).
        (full(0, None, running=8, in_flight=8), full(0, 0.3), (0.2, 0.3)),
        # Those of others than gateways are at work as well.
        (full(0, None, running=8), full(0, 0.3), (0.2, 0.3)),
        # How many run is not told: those in flight are taken to run.
        (full(0, 0.1, in_flight=9), full(0, 0.2), (0.1, 0.2)),
        # One does not tell how many wait: the fewest at work, for all.
        (full(None, 0.5, in_flight=2), full(0, 0.5, running=3, in_flight=3), (2.5, 3.5)),
        (full(None, 0.5, others_in_flight=1), full(1, 0.5, running=3, in_flight=0), (1.5, 4.5)),
        (full(None, None), full(None, None, in_flight=1), (0.0, 1 + 1 / 33)),
    ],
)
def test_fewest_waiting_then_least_kv_use(
    better: Callable[[str], BackendView],
    worse: Callable[[str], BackendView],
    scores: tuple[float, float],
) -> None:
    state = [worse("b-1"), better("b-2")]
    choice = choose(Wanted("r", "m"), state, Rules(explore=0))
    assert choice is not None and choice.backend_id == "b-2"
    found = POLICIES["fewest_waiting"].score(Wanted("r", "m"), state)
    assert found == pytest.approx([scores[1], scores[0]])
    assert choice.score == found[1]


@given(request=requests, state=states)
def test_without_signals_of_engines_fewest_in_flight_wins(
    request: Wanted, state: list[BackendView]
) -> None:
    silent = [BackendView(one.backend_id, one.models, one.up, one.in_flight) for one in state]
    choice = choose(request, silent, Rules(explore=0))
    if choice is not None:
        fit = [one for one in silent if fits(request, one)]
        candidates = [one for one in fit if one.up] or fit
        assert int(choice.score) == min(one.in_flight for one in candidates)


@pytest.mark.parametrize("told", [True, False])
def test_a_burst_at_three_gateways_between_two_readings_is_spread(told: bool) -> None:
    """None sees what the others pick, and no engine is read meanwhile: the busiest of four gets no
    more than 1.5 x the mean."""
    signals: dict[str, Any] = {"running": 2, "waiting": 0, "kv_usage": 0.25} if told else {}
    total: Counter[str] = Counter()
    for gateway in range(3):
        mine: Counter[str] = Counter()
        for number in range(20):
            state = [
                view(name, mine[name], others_in_flight=2, picked=mine[name], **signals)
                for name in BACKENDS
            ]
            choice = choose(Wanted(f"req_{gateway}_{number}", "m"), state)
            assert choice is not None
            mine[choice.backend_id] += 1
        total += mine
    assert max(total.values()) <= 1.5 * total.total() / len(BACKENDS)
    assert set(total) == set(BACKENDS)


def test_each_policy_that_can_be_set_is_there() -> None:
    assert set(POLICIES) == set(get_args(Policy))
    ruling = Ruling(Rules(), {"m": RULES["round_robin"]})
    assert (ruling.of("m").policy, ruling.of("x").policy) == ("round_robin", "fewest_waiting")


@pytest.mark.parametrize("views", crowds().values(), ids=crowds())
def test_a_choice_among_64_backends_costs_little(views: list[BackendView]) -> None:
    """50 µs are the budget, which `python -m tests.bench.micro` measures. Three of them here: the
    suite runs on busy machines."""
    wanted = Wanted("req_" + "a" * 32, "m")
    work = partial(choose, wanted, views)
    taken = timeit.repeat(work, timer=time.process_time, number=20, repeat=50)
    assert min(taken) / 20 <= 3 * 50e-6
