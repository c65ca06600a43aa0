"""A backend that refuses fast: what that makes of its score, and that another one is asked."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.backends.port import BackendFailed
from gateway.errors import Upstream
from gateway.routing import breaker as rule
from gateway.routing.policies import POLICIES, REFUSES_ALL
from gateway.routing.policy import BackendView, Rules, Wanted, choose
from gateway.routing.refusals import (
    FORGOTTEN,
    NONE,
    REFUSED,
    Refusals,
    refused,
    refused_part,
    taken,
)
from ledger.events import RequestAttempted
from tests.gateway.desk import PLAIN, Desk, ScriptedAnswer, ScriptedClient
from tests.gateway.test_recovery import breaks, clinic, mends, state
from tests.support.fake_backend import fake_backend

LOST = BackendFailed("lost", "the connection broke")


def plain(status: int = 200, body: bytes = b"{}") -> ScriptedAnswer:
    return ScriptedAnswer(body, status=status, content_type="application/json")


def many(number: int, now: float = 0.0, known: Refusals = NONE) -> Refusals:
    for _ in range(number):
        known = refused(known, now)
    return known


def view(refused: float, backend_id: str = "bad", **more: Any) -> BackendView:
    values: dict[str, Any] = {"waiting": 0, "running": 0, "kv_usage": 0.0} | more
    return BackendView(backend_id, None, True, 0, refused=refused, **values)


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 120)), max_size=60))
def test_the_part_that_is_refused_is_a_part_whatever_happens(
    steps: list[tuple[bool, float]],
) -> None:
    known, now = NONE, 0.0
    for is_refusal, seconds in steps:
        now += seconds
        before = refused_part(known, now)
        known = (refused if is_refusal else taken)(known, now)
        after = refused_part(known, now)
        assert 0 <= after <= 1
        assert after >= before if is_refusal else after <= before


def test_it_rises_with_refusals_and_fades_by_itself_and_with_every_answer() -> None:
    assert refused_part(many(1), 0.0) == 0.06 and refused_part(many(40), 0.0) > 0.9
    assert refused_part(Refusals(0.8, 0.0), rule.HALF_LIFE_SECONDS) == 0.4
    assert refused_part(many(10_000), 60.0) == 0.0, "within a minute nothing is left of it"
    known = many(40)
    for _ in range(70):
        known = taken(known, 0.0)
    assert known is NONE, "and nothing is counted any more"
    assert refused_part(Refusals(FORGOTTEN / 2), 0.0) == 0.0


def test_one_that_refuses_everything_ranks_behind_a_long_queue() -> None:
    score = POLICIES["fewest_waiting"].score
    bad, good = view(1.0), view(0.0, "good", waiting=500, kv_usage=0.9)
    assert score(Wanted("r", "m"), [bad, good]) == [REFUSES_ALL, 500.9]
    found = Counter(
        choice.backend_id
        for n in range(400)
        if (choice := choose(Wanted(f"r{n}", "m"), [bad, good])) is not None
    )
    assert found["good"] > 390 and found["bad"] > 0, "it is explored all the same"
    # One refusal, as any client can cause it, weighs less than one request that waits.
    assert score(Wanted("r", "m"), [view(0.06)])[0] < 0.25


def test_the_reasons_say_how_much_it_refuses() -> None:
    for views in ([view(0.83)], [view(0.83), view(0.9, "worse")]):
        choice = choose(Wanted("r", "m"), views, Rules(explore=0))
        assert choice is not None and choice.backend_id == "bad"
        assert "refused 83% of late" in choice.reasons
        assert choice.score == pytest.approx(1000 * 0.83**3)
    # The choice of the only one is kept, and must not be kept with what is not so any more.
    for part in (0.0, 0.5, 0.0):
        choice = choose(Wanted("r", "m"), [view(part)])
        assert choice is not None
        assert any("refused" in reason for reason in choice.reasons) is bool(part)


@pytest.mark.parametrize("policy", ["round_robin", "weighted"])
def test_policies_that_go_by_no_load_go_by_no_refusals(policy: Any) -> None:
    assert POLICIES[policy].score(Wanted("r", "m"), [view(1.0), view(0.0)]) == [0.0, 0.0]


def test_one_on_trial_that_refuses_most_is_not_asked_first_each_time() -> None:
    good = view(0.0, "good")
    for part, expected in ((0.0, "bad"), (0.45, "bad"), (0.5, "good")):
        choice = choose(Wanted("r", "m"), [view(part, trial=4), good])
        assert choice is not None and choice.backend_id == expected
    alone = choose(Wanted("r", "m"), [view(1.0, trial=4)])
    assert alone is not None and alone.last_resort


async def ask(desk: Desk) -> None:
    """One request that is not streamed, with every backend of the desk up."""
    for backend in desk.pool.backends.values():
        backend.learn(200, b'{"data":[{"id":"m"}]}')
    await desk.begin(PLAIN)


def attempts(desk: Desk) -> list[str | None]:
    return [fact.after for fact in desk.facts() if isinstance(fact, RequestAttempted)]


@pytest.mark.parametrize("status", sorted(REFUSED))
async def test_a_refusal_is_tried_once_on_another_backend(status: int) -> None:
    refusal = plain(status, b"no")
    desk = Desk(ScriptedClient(refusal, plain(200, b'{"a":1}')), backends=2)
    await ask(desk)
    assert (desk.reply.status, desk.reply.sent) == (200, b'{"a":1}')
    assert attempts(desk) == [None, f"status {status}"] and refusal.closed
    first, second = (desk.pool.backends[name] for name in desk.client.called)
    assert first is not second and desk.last().backend_id == second.backend_id
    assert desk.stats.attempts_failed[first.backend_id, f"status {status}"] == 1
    assert (first.in_flight, second.in_flight) == (0, 0)
    # A refused server key is a fault; none of the others is.
    assert first.failures == (status == 401) and first.breaker.state == "closed"


async def test_if_that_one_refuses_too_the_client_has_its_answer() -> None:
    desk = Desk(ScriptedClient(plain(429, b"first"), plain(404, b"second")), backends=3)
    await ask(desk)
    assert (desk.reply.status, desk.reply.sent) == (404, b"second")
    assert attempts(desk) == [None, "status 429"]
    assert [fact.outcome for fact in desk.facts()[-1:]] == ["completed"]  # type: ignore[attr-defined]


async def test_if_that_one_fails_the_client_hears_of_it() -> None:
    desk = Desk(ScriptedClient(plain(429, b"first"), LOST), backends=2)
    with pytest.raises(Upstream):
        await ask(desk)
    assert attempts(desk) == [None, "status 429"]


@pytest.mark.parametrize("status", [400, 408, 409, 413, 415, 418, 422])
async def test_what_is_about_the_request_is_not_tried_again(status: int) -> None:
    desk = Desk(ScriptedClient(plain(status, b"no")), backends=2)
    await ask(desk)
    assert (desk.reply.status, attempts(desk)) == (status, [None])
    assert all(one.refusals is NONE for one in desk.pool.backends.values())


@pytest.mark.parametrize("why", ["there is none", "down", "draining", "on trial"])
async def test_without_another_that_is_fit_the_refusal_is_the_answer(why: str) -> None:
    desk = Desk(ScriptedClient(plain(429, b"full")), backends=1 if why == "there is none" else 2)
    for backend in list(desk.pool.backends.values())[1:]:
        backend.draining = why == "draining"
        if why != "draining":
            backend.learn(200, b'{"data":[{"id":"m"}]}')
            backend.faulty("gone", 0.0, sure=True)
        if why == "on trial":
            backend.probed(0.0)
            for _ in range(rule.TRIALS):
                backend.take()
    await ask(desk)
    assert (desk.reply.status, desk.reply.sent) == (429, b"full")
    assert attempts(desk) == [None] and desk.client.called == ["b-1"]
    assert not desk.stats.attempts_failed and desk.stats.picks.total() == 1


async def test_no_other_model_answers_for_a_refusal() -> None:
    desk = Desk(ScriptedClient(plain(429, b"full")))
    (backend,) = desk.pool.backends.values()
    backend.learn(200, b'{"data":[{"id":"m"}]}')
    task = desk.begin(PLAIN)
    assert desk.call is not None
    desk.call.fallbacks = ("small",)
    await task
    assert (desk.reply.status, desk.call.asked_model) == (429, None)


@pytest.mark.parametrize("status", [403, 404, 429])
async def test_one_that_refuses_at_once_draws_no_traffic_and_comes_back(status: int) -> None:
    """Without this it seems idle: it would have all requests that come one after another."""
    async with (
        fake_backend(name="one") as one,
        fake_backend(name="two") as two,
        clinic(one.url, two.url) as made,
    ):
        bad = made["b-2"]
        breaks(two, f"e{status}")
        answers = [await made.ask() for _ in range(200)]
        assert Counter(answers) == {("b-1", 200): 200}, "no client sees any of it"
        assert len(two.calls) < 20
        assert state(bad) == "closed" and bad.failures == 0 and bad.up
        for _ in range(60):
            bad.refused(made.clock.monotonic())
        assert f"{bad.view(made.clock.monotonic()).refused:.1f}" == "1.0"
        mends(two)
        bad.refusals = Refusals(0.95, made.clock.monotonic() - 60)
        assert {(await made.ask())[0] for _ in range(40)} == {"b-1", "b-2"}
        assert bad.refusals is NONE
