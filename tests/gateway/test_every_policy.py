"""What holds for every routing policy: one suite, run over each function with `choose`'s signature.

A new policy joins `POLICIES`; what is special to one stands below the suite.
"""

from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.policy import BackendView, Choice, Rules, Wanted, choose

Policy = Callable[[Wanted, Sequence[BackendView]], Choice | None]
POLICIES: dict[str, Policy] = {"fewest in flight": choose}

REQUESTS = 2_000
BACKENDS = ("b-1", "b-2", "b-3", "b-4")

every_policy = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
states = st.lists(
    st.builds(
        BackendView,
        backend_id=st.sampled_from(BACKENDS),
        models=st.none() | st.frozensets(st.sampled_from(("m", "other"))),
        up=st.booleans(),
        in_flight=st.integers(0, 3),
    ),
    unique_by=lambda view: view.backend_id,
    max_size=len(BACKENDS),
)
requests = st.builds(
    Wanted,
    request_id=st.text(max_size=8),
    model=st.sampled_from(("m", "nobody's")),
    tried=st.lists(st.sampled_from(BACKENDS), max_size=2).map(tuple),
)


def view(backend_id: str, in_flight: int = 0, *, up: bool = True) -> BackendView:
    return BackendView(backend_id, frozenset(("m",)), up, in_flight)


def fits(request: Wanted, backend: BackendView) -> bool:
    served = backend.models is None or request.model in backend.models
    return served and backend.backend_id not in request.tried


@every_policy
@given(request=requests, state=states)
def test_a_choice_is_fit_and_there_is_one_whenever_there_can_be(
    policy: Policy, request: Wanted, state: list[BackendView]
) -> None:
    fit = [one for one in state if fits(request, one)]
    choice = policy(request, state)
    if not fit:
        assert choice is None
        return
    assert choice is not None
    chosen = next(one for one in fit if one.backend_id == choice.backend_id)
    # One that is not up is a last resort: it may have come back since it was last asked.
    assert chosen.up or not any(one.up for one in fit)


@every_policy
@given(request=requests, state=states)
def test_the_same_input_gives_the_same_choice_and_stays_as_it_was(
    policy: Policy, request: Wanted, state: list[BackendView]
) -> None:
    before = msgspec.json.encode([request, state])
    first = policy(request, state)
    assert policy(request, state) == first
    assert policy(request, tuple(reversed(state))) == first
    assert msgspec.json.encode([request, state]) == before


@every_policy
@given(request=requests, state=states)
def test_a_choice_explains_itself(
    policy: Policy, request: Wanted, state: list[BackendView]
) -> None:
    choice = policy(request, state)
    if choice is not None:
        assert choice.reasons
        assert all(reason.strip() for reason in choice.reasons)
        chosen = next(one for one in state if one.backend_id == choice.backend_id)
        assert chosen.up or any("last resort" in reason for reason in choice.reasons)


@every_policy
def test_ties_are_spread_evenly(policy: Policy) -> None:
    state = [view(name) for name in BACKENDS]
    counts = Counter(
        choice.backend_id
        for number in range(REQUESTS)
        if (choice := policy(Wanted(f"req_{number}", "m"), state))
    )
    share = REQUESTS / len(BACKENDS)
    # Four standard deviations of a fair draw: the ids are fixed, so this never fails by chance.
    assert all(abs(counts[name] - share) < 4 * (share * 0.75) ** 0.5 for name in BACKENDS)


@every_policy
def test_a_second_try_goes_elsewhere(policy: Policy) -> None:
    state = [view("b-1"), view("b-2", 9), view("b-3", up=False)]
    choice = policy(Wanted("r", "m", tried=("b-1",)), state)
    assert choice is not None
    assert choice.backend_id == "b-2"
    assert policy(Wanted("r", "m", tried=("b-1", "b-2", "b-3")), state) is None


@every_policy
def test_no_backend_starves_when_all_are_down(policy: Policy) -> None:
    state = [view(name, up=False) for name in BACKENDS]
    chosen = {
        choice.backend_id
        for number in range(100)
        if (choice := policy(Wanted(f"req_{number}", "m"), state))
    }
    assert chosen == set(BACKENDS)


@given(request=requests, state=states)
def test_without_signals_of_engines_fewest_in_flight_wins(
    request: Wanted, state: list[BackendView]
) -> None:
    choice = choose(request, state, Rules(explore=0))
    if choice is not None:
        fit = [one for one in state if fits(request, one)]
        candidates = [one for one in fit if one.up] or fit
        assert int(choice.score) == min(one.in_flight for one in candidates)
