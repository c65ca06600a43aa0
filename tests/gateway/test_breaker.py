"""The breaker alone: what opens it, what does not, and that nothing keeps a backend away."""

from collections.abc import Sequence
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.breaker import (
    ANSWERED_MIN,
    HALF_LIFE_SECONDS,
    IN_A_ROW,
    RISE_SECONDS,
    SHARE_FIRST,
    TRIALS,
    Breaker,
    State,
    answered,
    began,
    ended,
    error_score,
    failed,
    may_try,
    probed,
    restored,
    share,
    succeeded,
    trials_left,
)

Step = tuple[Literal["fail", "sure", "succeed", "probe", "begin", "end", "answer"], bool, float]

steps = st.lists(
    st.tuples(
        st.sampled_from(("fail", "sure", "succeed", "probe", "begin", "end", "answer")),
        st.booleans(),
        st.floats(0, 60),
    ),
    max_size=40,
)


class World:
    """A breaker and the requests that are at its backend: what the pool does, without sockets."""

    def __init__(self) -> None:
        self.breaker = Breaker()
        self.now = 0.0
        self.held: list[int | None] = []
        self.faults_since_closed = 0

    def play(self, script: Sequence[Step]) -> None:
        for step, flag, seconds in script:
            self.now += seconds
            was = self.breaker.state
            self.one(step, flag)
            self.check(was)

    def one(self, step: str, flag: bool) -> None:
        now = self.now
        match step:
            case "fail" | "sure":
                self.breaker = failed(self.breaker, now, sure=step == "sure")
                self.faults_since_closed += 1
            case "succeed":
                self.breaker = succeeded(self.breaker, now)
            case "probe":
                self.breaker = probed(self.breaker, flag, now, generated=True)
                self.faults_since_closed += not flag
            case "begin" if may_try(self.breaker):
                self.breaker, trial = began(self.breaker)
                self.held.append(trial)
            case "end" if self.held:
                self.breaker = ended(self.breaker, self.held.pop())
            case "answer" if self.held:
                self.breaker = answered(self.breaker, self.held.pop(), now)

    def check(self, was: State) -> None:
        breaker = self.breaker
        if was != "closed" and breaker.state == "closed":
            self.faults_since_closed = 0
        # A trial's place is held by a request that waits, and by none that is gone.
        current = [one for one in self.held if one == breaker.period]
        assert breaker.trials == (len(current) if breaker.state == "half_open" else 0)
        assert 0 <= breaker.trials <= TRIALS
        assert 0 <= breaker.faults <= breaker.tried
        assert 0 <= error_score(breaker, self.now) <= 1
        assert 0 <= share(breaker, self.now) <= 1
        # It opens by a fault, closes by trials that were answered, and by nothing else.
        if was == "closed" and breaker.state == "open":
            assert self.faults_since_closed
        assert (was, breaker.state) not in {("open", "closed"), ("closed", "half_open")}


@given(steps)
def test_whatever_happens_its_books_are_right(script: list[Step]) -> None:
    World().play(script)


@given(steps)
def test_one_good_probe_brings_a_trial_and_trials_bring_all_of_its_share(
    script: list[Step],
) -> None:
    world = World()
    world.play(script)
    world.held.clear()
    breaker, now = world.breaker, world.now
    if breaker.state != "closed":
        # Whatever it went through, the next probe is enough; the requests of before are let go.
        breaker = probed(failed(breaker, now, sure=True), True, now, generated=True)
        assert may_try(breaker)
        for _ in range(ANSWERED_MIN):
            assert may_try(breaker)
            breaker, trial = began(breaker)
            breaker = answered(breaker, trial, now)
        assert breaker.state == "closed"
        assert share(breaker, now) == SHARE_FIRST
        breaker = succeeded(breaker, now)
        assert SHARE_FIRST <= share(breaker, now) < 1
    assert share(breaker, now + 1.001 * RISE_SECONDS) == 1


@given(st.floats(0, 60), st.integers(1, 100))
def test_one_fault_in_three_opens_nothing_at_any_rate(apart: float, rounds: int) -> None:
    breaker = Breaker()
    for number in range(3 * rounds):
        now = number * apart
        breaker = failed(breaker, now) if number % 3 == 2 else succeeded(breaker, now)
        assert breaker.state == "closed"


def test_one_fault_in_a_hundred_is_told_and_opens_nothing() -> None:
    breaker = Breaker()
    for number in range(20_000):
        now = number / 1000
        breaker = failed(breaker, now) if number % 100 == 0 else succeeded(breaker, now)
        assert breaker.state == "closed"
    assert 0.005 < error_score(breaker, 20.0) < 0.02


def test_faults_in_a_row_open_it_however_far_apart_they_are() -> None:
    breaker = Breaker()
    for number in range(1, IN_A_ROW + 1):
        assert breaker.state == "closed"
        breaker = failed(breaker, number * 300.0)
    assert breaker.state == "open"
    assert not may_try(breaker)


def test_half_of_all_that_fails_opens_it() -> None:
    breaker = Breaker()
    for number in range(40):
        breaker = (failed if number % 2 else succeeded)(breaker, number / 100)
    assert breaker.state == "open"


def test_a_port_that_refuses_opens_it_at_once() -> None:
    assert failed(Breaker(), 1.0, sure=True).state == "open"


def test_what_requests_made_of_it_is_undone_by_a_generation_and_not_by_a_list() -> None:
    breaker = Breaker()
    for _ in range(IN_A_ROW):
        breaker = failed(breaker, 1.0)
    assert probed(breaker, True, 2.0).state == "open", "its /v1/models worked all the time"
    assert probed(breaker, True, 2.0, generated=True).state == "half_open"


def test_a_list_is_enough_for_one_that_had_refused() -> None:
    breaker = probed(failed(Breaker(), 1.0, sure=True), True, 2.0)
    assert breaker.state == "half_open"


def test_one_that_could_not_make_a_token_is_not_brought_back_by_a_list() -> None:
    breaker = probed(Breaker(), False, 1.0, generated=True)
    assert breaker.state == "open"
    assert probed(breaker, True, 2.0).state == "open"
    assert probed(breaker, True, 2.0, generated=True).state == "half_open"


def test_a_trial_of_an_older_period_frees_no_place_and_closes_nothing() -> None:
    first, trial = began(probed(failed(Breaker(), 1.0, sure=True), True, 2.0))
    again, _ = began(probed(failed(first, 3.0), True, 4.0, generated=True))
    assert (again.state, again.trials) == ("half_open", 1)
    assert ended(again, trial) == again
    for _ in range(ANSWERED_MIN):
        assert answered(again, trial, 5.0) == again


def test_a_late_success_of_before_closes_nothing() -> None:
    breaker = failed(Breaker(), 1.0, sure=True)
    assert succeeded(breaker, 2.0) == breaker
    assert answered(breaker, None, 2.0) == breaker


def test_trials_are_few_divided_by_gateways_and_one_at_least() -> None:
    breaker = probed(failed(Breaker(), 1.0, sure=True), True, 2.0)
    assert [trials_left(breaker, n) for n in (1, 2, 3, 4, 9)] == [TRIALS, 2, 1, 1, 1]
    begun = 0
    while may_try(breaker, 2):
        breaker, _ = began(breaker)
        begun += 1
    assert begun == 2
    assert not may_try(breaker, 2)
    assert trials_left(Breaker()) is None


def test_a_fault_of_a_trial_or_while_the_share_rises_opens_it_again() -> None:
    half = probed(failed(Breaker(), 1.0, sure=True), True, 2.0)
    assert failed(half, 3.0).state == "open"
    risen = half
    for _ in range(ANSWERED_MIN):
        risen, trial = began(risen)
        risen = answered(risen, trial, 3.0)
    assert risen.state == "closed"
    # First tokens alone lift nothing: it may fall silent behind each of them.
    assert share(risen, 60.0) == SHARE_FIRST
    assert failed(risen, 60.0).state == "open"
    risen = succeeded(risen, 3.0)
    assert failed(risen, 3.0 + RISE_SECONDS / 2).state == "open"
    assert failed(risen, 3.1 + RISE_SECONDS).state == "closed"


@given(st.floats(0, 100), st.floats(0, 100))
def test_the_share_never_falls_while_nothing_happens(first: float, later: float) -> None:
    breaker = Breaker("closed", 0.0, share=SHARE_FIRST)
    assert share(breaker, first) <= share(breaker, first + later)


def test_a_success_neither_lifts_nor_forgets_a_share_that_rises() -> None:
    breaker = Breaker("closed", 0.0, share=SHARE_FIRST)
    for now in (RISE_SECONDS / 2, 1.1 * RISE_SECONDS):
        assert share(succeeded(breaker, now), now) == share(breaker, now)
    assert succeeded(breaker, RISE_SECONDS / 2).share == SHARE_FIRST
    assert succeeded(breaker, 1.1 * RISE_SECONDS).share == 1


def test_faults_fade() -> None:
    breaker = failed(failed(Breaker(), 0.0), 0.0)
    assert error_score(breaker, 0.0) == 1
    assert error_score(breaker, 4 * HALF_LIFE_SECONDS) == 2 / 16
    assert error_score(breaker, 100 * HALF_LIFE_SECONDS) < 1e-9


def test_an_old_view_never_means_down() -> None:
    assert restored("open", 0.0, 5.0, fresh=True).state == "open"
    old = restored("open", 0.0, 5.0, fresh=False)
    assert old.state == "half_open" and may_try(old)
    assert share(restored("closed", 0.4, 5.0, fresh=True), 5.0) == 0.4
    assert share(restored("closed", 1.0, 5.0, fresh=False), 5.0) == 1
