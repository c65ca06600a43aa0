"""Probes of the gateway's own: in the ledger like any request, pinned to one backend, measured."""

import asyncio

import pytest

from gateway.backends.port import BackendFailed
from gateway.prober import Prober
from ledger.events import RequestAccepted, RequestAttempted, RequestFinished
from ledger.events.requests import SYSTEM_KEY_ID
from tests.gateway.desk import Desk, ScriptedAnswer, ScriptedClient

USAGE = b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}'


def answer(status: int = 200) -> ScriptedAnswer:
    return ScriptedAnswer(USAGE, status=status, content_type="application/json")


class House:
    def __init__(
        self,
        *script: ScriptedAnswer | BackendFailed | asyncio.Event,
        backends: int = 1,
        seconds: float = 0.001,
    ) -> None:
        self.desk = desk = Desk(ScriptedClient(*script), backends=backends)
        for backend in desk.pool.backends.values():
            backend.learn(200, b'{"data":[{"id":"m"}]}')
        self.prober = Prober(
            desk.relay, desk.pool, desk.journal, desk.clock, desk.stats, seconds=seconds
        )

    async def until_called(self, times: int) -> None:
        for _ in range(10_000):
            if len(self.desk.client.called) >= times:
                break
            await asyncio.sleep(0.001)
        assert len(self.desk.client.called) >= times
        await self.desk.settle()

    def finished(self) -> list[RequestFinished]:
        return [one for one in self.desk.facts() if isinstance(one, RequestFinished)]


async def test_a_probe_is_a_request_of_the_system_key() -> None:
    house = House(answer(), asyncio.Event())
    house.prober.follow()
    await house.until_called(1)
    await house.prober.stop()
    accepted, attempted, finished = house.desk.facts()[:3]
    assert isinstance(accepted, RequestAccepted) and isinstance(attempted, RequestAttempted)
    assert isinstance(finished, RequestFinished)
    assert (accepted.key_id, accepted.model, accepted.held_out) == (SYSTEM_KEY_ID, "m", 1)
    assert (accepted.endpoint, accepted.stream) == ("chat/completions", False)
    assert (finished.outcome, finished.basis) == ("completed", "reported")
    assert (finished.usage.uncached_in, finished.usage.other_out) == (3, 1)
    assert house.desk.stats.probe_seconds == {("b-1", "m"): pytest.approx(0, abs=1)}
    assert not house.desk.stats.probe_failures


async def test_each_backend_is_probed_and_none_stands_in_for_another() -> None:
    refused = BackendFailed("unreachable", "refused")
    house = House(refused, refused, asyncio.Event(), backends=2, seconds=0.05)
    house.prober.follow()
    await house.until_called(2)
    await house.prober.stop()
    assert sorted(house.desk.client.called[:2]) == ["b-1", "b-2"]
    assert [one.attempts for one in house.finished()][:2] == [1, 1]
    assert house.desk.stats.probe_failures == {("b-1", "m"): 1, ("b-2", "m"): 1}
    assert not house.desk.stats.probe_seconds


async def test_a_failure_takes_back_the_last_time() -> None:
    house = House(answer(), answer(400), asyncio.Event())
    house.prober.follow()
    await house.until_called(3)
    assert house.desk.stats.probe_failures == {("b-1", "m"): 1}
    assert not house.desk.stats.probe_seconds
    await house.prober.stop()


@pytest.mark.parametrize(("status", "opens"), [(500, True), (400, False)])
async def test_one_that_cannot_make_a_token_is_set_aside_before_a_request_meets_it(
    status: int, opens: bool
) -> None:
    house = House(answer(status), asyncio.Event())
    house.prober.follow()
    await house.until_called(1)
    await house.desk.settle()
    backend = house.desk.pool.backends["b-1"]
    await house.prober.stop()
    assert (backend.breaker.state == "open", backend.up) == (opens, not opens)
    assert backend.rung == ("generation" if opens else None)


async def test_the_token_that_brings_one_back_is_not_waited_for_as_a_request_is() -> None:
    house = House(asyncio.Event())
    backend = house.desk.pool.backends["b-1"]
    async with asyncio.timeout(2):
        made = await house.prober.generate(backend, "m", 0.05)
    assert made is not None and made.verdict == "failed" and "first byte" in made.words
    assert [one.outcome for one in house.finished()] == ["timeout"]
    assert backend.in_flight == 0


async def test_a_probe_that_runs_at_the_end_is_cut_and_has_its_end() -> None:
    house = House(asyncio.Event())
    house.prober.follow()
    await house.until_called(1)
    async with asyncio.timeout(5):
        await house.prober.stop()
    (finished,) = house.finished()
    assert finished.outcome == "shutdown"
    assert not house.desk.stats.probe_failures
    assert not house.desk.relay.open


async def test_no_probe_is_made_of_what_is_down_or_when_the_spool_is_full_or_if_not_wanted() -> (
    None
):
    down, full, never = House(answer()), House(answer()), House(answer(), seconds=0)
    down.desk.pool.backends["b-1"].failed("gone")
    full.desk.memory.close()
    for house in (down, full, never):
        house.prober.follow()
    await asyncio.sleep(0.05)
    for house in (down, full, never):
        await house.prober.stop()
        assert house.desk.client.called == []


async def test_one_that_goes_while_it_is_probed_is_probed_no_more() -> None:
    house = House(asyncio.Event(), seconds=0.001)
    house.prober.follow()
    await house.until_called(1)
    house.desk.pool.drop("b-1")
    house.prober.follow()
    await house.desk.settle()
    await asyncio.sleep(0.05)
    assert [one.outcome for one in house.finished()] == ["shutdown"]
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    assert not tasks, "the relay takes the cancellation of a cut probe back"
    await house.prober.stop()
