"""Which ends of a request are told to the backend's breaker, and which are the client's own."""

import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest

from gateway.backends.port import BackendFailed
from gateway.cuts import fault_of_cut, fault_of_status
from gateway.errors import ApiError
from gateway.routing.breaker import (
    RISE_SECONDS,
    SHARE_FIRST,
    TRIALS,
    Breaker,
    State,
    share,
)
from gateway.wire.faults import ClientFault, fault_of
from ledger.folds.routing import RoutingView
from tests.gateway.desk import BODY, PLAIN, Desk, ScriptedAnswer, ScriptedClient

TEXT = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
LOST = BackendFailed("lost", "the connection broke")
START = datetime(2026, 1, 1, tzinfo=UTC)


def error(code: object) -> bytes:
    return b"data: " + json.dumps({"error": {"message": "no", "code": code}}).encode() + b"\n\n"


def test_a_status_of_the_server_is_a_fault_and_one_of_the_call_is_none() -> None:
    assert [status for status in range(200, 600) if fault_of_status(status)] == [
        *range(300, 400),
        401,
        *(status for status in range(500, 600) if status not in (501, 505)),
    ]


def test_only_silence_of_the_server_is_a_fault_of_a_cut() -> None:
    for heard in (True, False):
        assert fault_of_cut("first_byte", heard=heard)
        assert fault_of_cut("between_chunks", heard=heard)
        assert bool(fault_of_cut("total", heard=heard)) is not heard
        for cut in ("client_gone", "client_stalled", "spool_failed", None):
            assert fault_of_cut(cut, heard=heard) is None


@pytest.mark.parametrize(
    ("event", "clients"),
    [
        ({"error": {"message": "too long", "code": 400}}, True),
        ({"object": "error", "message": "too long", "code": 400}, True),
        ({"type": "response.failed", "response": {"error": {"message": "x", "code": 422}}}, True),
        ({"error": {"message": "dead", "code": 500}}, False),
        ({"error": {"message": "dead", "code": "engine_dead"}}, False),
        ({"error": "dead"}, False),
    ],
)
def test_an_error_in_a_stream_is_the_clients_if_its_code_says_so(
    event: dict[str, object], clients: bool
) -> None:
    found = fault_of(json.dumps(event).encode())
    assert found and isinstance(found, ClientFault) is clients


STREAMS = {
    "whole": (ScriptedAnswer(TEXT, DONE), 0),
    "no word, but its end": (ScriptedAnswer(DONE), 0),
    "nothing at all": (ScriptedAnswer(), 1),
    "no end behind its text": (ScriptedAnswer(TEXT), 0),
    "broken off": (ScriptedAnswer(TEXT, LOST), 1),
    "broken off behind its end": (ScriptedAnswer(TEXT, DONE, LOST), 0),
    "an error of the engine": (ScriptedAnswer(TEXT, error(500)), 1),
    "an error of the request": (ScriptedAnswer(error(400)), 0),
    "a plain error of the request": (ScriptedAnswer(b"{}", status=400, content_type="x"), 0),
    "a plain error of the server": (ScriptedAnswer(b"{}", status=500, content_type="x"), 1),
}


@pytest.mark.parametrize(("answer", "faults"), STREAMS.values(), ids=STREAMS)
async def test_a_stream_that_ends_so(answer: ScriptedAnswer, faults: int) -> None:
    again = ScriptedAnswer(*answer.steps, status=answer.status, content_type=answer.content_type)
    desk = Desk(ScriptedClient(again))
    await asyncio.gather(desk.begin(), return_exceptions=True)
    backend = desk.pool.backends["b-1"]
    assert (backend.failures, backend.in_flight) == (faults, 0)


@pytest.mark.parametrize(
    ("answer", "whole"),
    [
        (ScriptedAnswer(TEXT, DONE), True),
        (ScriptedAnswer(TEXT), True),
        (ScriptedAnswer(DONE), True),
        (ScriptedAnswer(), False),
        (ScriptedAnswer(TEXT, LOST), False),
        (ScriptedAnswer(TEXT, error(500)), False),
    ],
    ids=["whole", "no end behind its text", "no word", "nothing", "broken off", "an error"],
)
async def test_a_share_rises_by_a_stream_that_came_to_a_clean_end(
    answer: ScriptedAnswer, whole: bool
) -> None:
    """Some servers never send a closing event: their share must not stay at a tenth for ever."""
    desk = Desk(ScriptedClient(answer))
    backend = desk.pool.backends["b-1"]
    backend.learn(200, b'{"data":[{"id":"m"}]}')
    backend.breaker = Breaker("closed", counted_at=-1.0, share=SHARE_FIRST, proven=False)
    await asyncio.gather(desk.begin(), return_exceptions=True)
    desk.clock.advance(RISE_SECONDS)
    assert backend.breaker.proven is (whole or backend.breaker.state == "open")
    assert share(backend.breaker, desk.clock.monotonic()) == pytest.approx(float(whole))


def test_one_that_drains_says_so_and_not_that_it_is_up() -> None:
    backend = Desk(ScriptedClient()).pool.backends["b-1"]
    backend.learn(200, b'{"data":[{"id":"m"}]}')
    assert backend.condition(0.0) == "up"
    backend.draining = True
    assert backend.condition(0.0) == "draining"
    backend.failed("gone")
    assert backend.condition(0.0) == "down: gone (draining)"
    backend.held = "env:K is not there"
    assert backend.condition(0.0) == "down: env:K is not there (draining)"
    backend.draining = False
    assert backend.condition(0.0) == "down: env:K is not there"


@pytest.mark.parametrize(
    ("limit", "heard", "faults"),
    [
        ("first_byte_seconds", False, 1),
        ("between_chunks_seconds", True, 1),
        ("total_seconds", True, 0),
        ("total_seconds", False, 1),
    ],
)
async def test_each_time_limit_stands_alone_and_is_judged(
    limit: str, heard: bool, faults: int
) -> None:
    """Only the limit in question is short: it cuts, and the others are far away."""
    never = asyncio.Event()
    answer = ScriptedAnswer(TEXT, never) if heard else never
    desk = Desk(ScriptedClient(answer), limits={limit: 2.0})
    task = desk.begin()
    await desk.settle()
    desk.clock.advance(1.9)
    desk.relay.tick()
    await desk.settle()
    assert not task.done()
    desk.clock.advance(0.2)
    desk.relay.tick()
    await desk.settle()
    assert task.done()
    await asyncio.gather(task, return_exceptions=True)
    backend = desk.pool.backends["b-1"]
    assert (backend.failures, backend.in_flight) == (faults, 0)
    assert desk.last().outcome == "timeout"


async def test_a_trial_gives_its_place_back_however_it_ends() -> None:
    """With its first token, with its end, with an error of the client, and when it is cut."""
    for script in (
        [ScriptedAnswer(TEXT, DONE)],
        [ScriptedAnswer(DONE)],
        [ScriptedAnswer(b"{}", status=400, content_type="x")],
        [ScriptedAnswer(b"{}", content_type="application/json")],
    ):
        desk = Desk(ScriptedClient(*script))
        backend = desk.pool.backends["b-1"]
        backend.learn(200, b'{"data":[{"id":"m"}]}')
        backend.faulty("gone", desk.clock.monotonic(), sure=True)
        backend.probed(desk.clock.monotonic())
        assert backend.breaker.state == "half_open"
        body = PLAIN if script[0].content_type.startswith("app") else BODY
        await asyncio.gather(desk.begin(body), return_exceptions=True)
        assert (backend.breaker.trials, backend.in_flight) == (0, 0)


async def test_a_trial_is_over_with_its_first_token_though_its_stream_goes_on() -> None:
    never = asyncio.Event()
    desk = Desk(ScriptedClient(ScriptedAnswer(TEXT, never)))
    backend = desk.pool.backends["b-1"]
    backend.learn(200, b'{"data":[{"id":"m"}]}')
    backend.faulty("gone", desk.clock.monotonic(), sure=True)
    backend.probed(desk.clock.monotonic())
    task = desk.begin()
    await desk.settle()
    assert (backend.in_flight, backend.breaker.trials, backend.breaker.answered) == (1, 0, 1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (backend.in_flight, backend.breaker.trials) == (0, 0)


def seen(gateway: str, state: State, seconds_ago: float, had: str = "1") -> RoutingView:
    at = START - timedelta(seconds=seconds_ago)
    return RoutingView(
        backend_id="b-1",
        gateway=gateway,
        up=state != "open",
        source=f"/gateway/{gateway}/1",
        sequence=1,
        observed_at=at,
        expires_at=at + timedelta(seconds=10),
        appended_ms=0,
        offset=0,
        first_token_us=7,
        state=state,
        share=had,
    )


@pytest.mark.parametrize(
    ("views", "state", "had"),
    [
        ([seen("me", "open", 3)], "open", 0.0),
        ([seen("me", "open", 60)], "half_open", 0.1),
        ([seen("me", "closed", 3, "0.4")], "closed", 0.67),
        ([seen("me", "closed", 3600, "0.4")], "closed", 1.0),
        ([seen("me", "closed", 3), seen("a", "open", 1), seen("b", "open", 1)], "closed", 1.0),
        ([seen("a", "open", 1), seen("b", "open", 1), seen("c", "closed", 1)], "open", 0.0),
        ([seen("a", "open", 1), seen("b", "closed", 1)], "closed", 1.0),
        ([seen("a", "open", 60)], "closed", 1.0),
        ([], "closed", 1.0),
    ],
)
def test_a_gateway_begins_as_it_ended_and_else_as_most_others_say(
    views: list[RoutingView], state: State, had: float
) -> None:
    desk = Desk(ScriptedClient())
    backend, now = desk.pool.backends["b-1"], desk.clock.monotonic()
    desk.pool.restore(views, "me", START)
    assert backend.breaker.state == state
    assert share(backend.breaker, now) == pytest.approx(had)
    fresh_or_own = [v for v in views if v.gateway == "me" or v.expires_at > START]
    assert backend.first_token_us == (7 if fresh_or_own else None)


async def test_the_quota_of_trials_is_divided_by_the_gateways_that_live() -> None:
    desk = Desk(ScriptedClient())
    backend, now = desk.pool.backends["b-1"], desk.clock.monotonic()
    backend.learn(200, b'{"data":[{"id":"m"}]}')
    backend.faulty("gone", now, sure=True)
    backend.probed(now)
    for gateways, left in ((1, TRIALS), (2, TRIALS // 2), (9, 1)):
        desk.pool.live_gateways = gateways
        assert [view.trial for view in desk.pool.views()] == [left]


async def test_backends_come_and_go_while_the_pool_runs() -> None:
    desk = Desk(ScriptedClient(), backends=2)
    await desk.pool.start()
    gone = desk.pool.backends["b-2"]
    trial = gone.take()
    desk.pool.drop("b-2")
    await desk.settle()
    assert list(desk.pool.backends) == ["b-1"]
    gone.give_back(trial)
    desk.pool.put(gone)
    assert set(desk.pool.backends) == {"b-1", "b-2"}
    asked = len(desk.client.asked)
    await desk.settle()
    assert len(desk.client.asked) == asked + 1, "it is asked at once"
    await desk.pool.stop()
    await desk.settle()
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


async def test_a_request_to_one_whose_requests_all_fail_is_refused_and_not_held() -> None:
    desk = Desk(ScriptedClient(LOST, LOST, LOST))
    for _ in range(3):
        with pytest.raises(ApiError):
            await desk.begin()
    backend = desk.pool.backends["b-1"]
    assert backend.breaker.state == "open" and backend.rung == "requests"
    assert backend.condition(0.0) == "down: the connection broke"


def test_what_a_probe_found_out_is_not_forgotten_for_the_next_request_that_fails() -> None:
    backend = Desk(ScriptedClient()).pool.backends["b-1"]
    backend.not_generated("it answered 500 (its /health answers 200)", 1.0)
    backend.faulty("the connection broke", 2.0)
    assert (backend.fault, backend.rung) == (
        "it answered 500 (its /health answers 200)",
        "generation",
    )
