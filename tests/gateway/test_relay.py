"""The life of one request at moments that no socket hits at will."""

import asyncio
import json
from typing import Any

import pytest

from gateway.backends.port import BackendFailed
from gateway.errors import ApiError, Overloaded, TooSlow, Upstream
from ledger.events import (
    RequestAccepted,
    RequestAttempted,
    RequestFinished,
    TokensDelivered,
    Usage,
)
from streams.errors import SpoolFailed, SpoolFull
from tests.gateway.answers import Style, written
from tests.gateway.desk import (
    BODY,
    PLAIN,
    Desk,
    FullDisk,
    ScriptedAnswer,
    ScriptedClient,
    SlowJournal,
)
from tests.streams.builders import FakeClock

LOST = BackendFailed("lost", "the connection broke")
UNREACHABLE = BackendFailed("unreachable", "the connection was refused")


def chunk(text: str, **more: Any) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    return written([{"choices": [choice]} | more], Style(done=False))


USED = {"prompt_tokens": 9, "completion_tokens": 2}
USAGE = written([{"choices": [], "usage": USED}], Style(done=False))
DONE = b"data: [DONE]\n\n"
REPORTED = Usage(uncached_in=9, cached_in=0, cache_write_in=0, reasoning_out=0, other_out=2)


def plain(body: bytes, **more: Any) -> ScriptedAnswer:
    return ScriptedAnswer(body, content_type="application/json", **more)


async def served(desk: Desk, body: bytes = BODY) -> ApiError | None:
    """Serve one request to its end; the refusal, if it was one."""
    try:
        await desk.begin(body)
    except ApiError as refused:
        return refused
    return None


async def test_the_finish_is_written_before_the_client_gets_the_last_bytes() -> None:
    desk = Desk(ScriptedClient(ScriptedAnswer(chunk("a"), USAGE + DONE)))
    seen: list[tuple[int, bytes]] = []
    send = desk.reply.body

    async def watched(data: bytes, *, more: bool) -> None:
        seen.append((len(desk.facts()), data))
        await send(data, more=more)

    desk.reply.body = watched  # type: ignore[method-assign]
    await desk.begin()
    assert seen == [(2, chunk("a")), (3, DONE), (3, b"")]
    assert [type(fact) for fact in desk.facts()] == [
        RequestAccepted,
        RequestAttempted,
        RequestFinished,
    ]
    assert (desk.last().basis, desk.last().usage) == ("reported", REPORTED)
    assert not desk.relay.open
    assert desk.pool.backends["b-1"].in_flight == 0


async def test_a_plain_answer_is_billed_and_passed_as_it_is() -> None:
    body = json.dumps({"choices": [], "usage": USED}).encode()
    desk = Desk(ScriptedClient(plain(body)))
    assert await served(desk, PLAIN) is None
    assert (desk.reply.status, desk.reply.sent, desk.reply.ended) == (200, body, True)
    assert (desk.last().basis, desk.last().usage) == ("reported", REPORTED)


async def test_waiting_for_the_backend_is_no_overhead() -> None:
    gate = asyncio.Event()
    desk = Desk(ScriptedClient(ScriptedAnswer(chunk("a"), gate, USAGE + DONE)))
    task = desk.begin()
    await desk.settle()
    desk.clock.advance(20)
    gate.set()
    await task
    assert desk.last().duration_us == 20_000_000
    assert desk.last().overhead_us == 0
    assert desk.stats.overhead.sum == 0


async def test_running_totals_are_told_once_for_each_change() -> None:
    gates = [asyncio.Event() for _ in range(3)]
    silent = chunk("", usage={"prompt_tokens": 9, "completion_tokens": 7})
    answer = ScriptedAnswer(
        chunk("a", usage={"prompt_tokens": 9, "completion_tokens": 1}),
        gates[0],
        silent,
        gates[1],
        DONE,
    )
    desk = Desk(ScriptedClient(answer), engine="vllm")
    task = desk.begin()
    await desk.settle()
    desk.relay.tick()
    desk.relay.tick()
    gates[0].set()
    await desk.settle()
    desk.relay.tick()
    gates[1].set()
    await task
    desk.relay.tick()
    told = [fact for fact in desk.facts() if isinstance(fact, TokensDelivered)]
    # Tokens that gave no text are told as well: a kill must not cost them.
    assert [(fact.chunks, fact.usage.other_out) for fact in told] == [(1, 1), (1, 7)]
    assert all(fact.basis == "running" for fact in told)


@pytest.mark.parametrize("outcome", [LOST, UNREACHABLE, "500"])
async def test_a_failure_before_the_first_byte_is_tried_once_elsewhere(outcome: Any) -> None:
    failed = plain(b"no", status=500) if outcome == "500" else outcome
    desk = Desk(ScriptedClient(failed, ScriptedAnswer(chunk("a"), USAGE + DONE)), backends=2)
    assert await served(desk) is None
    assert len(set(desk.client.called)) == 2
    attempts = [fact for fact in desk.facts() if isinstance(fact, RequestAttempted)]
    assert [fact.attempt for fact in attempts] == [1, 2]
    assert attempts[1].after == ("status 500" if outcome == "500" else outcome.reason)
    assert desk.last().attempts == 2
    assert all(backend.in_flight == 0 for backend in desk.pool.backends.values())


async def test_two_failures_are_enough() -> None:
    desk = Desk(ScriptedClient(UNREACHABLE, LOST), backends=3)
    refused = await served(desk)
    assert isinstance(refused, Upstream)
    assert len(desk.client.called) == 2
    assert (desk.last().outcome, desk.last().basis) == ("backend_unreachable", "none")


async def test_the_error_of_the_last_backend_passes_if_there_is_no_other() -> None:
    desk = Desk(ScriptedClient(plain(b'{"error":1}', status=503)))
    assert await served(desk, PLAIN) is None
    assert (desk.reply.status, desk.reply.sent) == (503, b'{"error":1}')
    assert (desk.last().outcome, desk.last().status) == ("completed", 503)


async def test_after_the_first_byte_nothing_is_tried_again() -> None:
    desk = Desk(ScriptedClient(ScriptedAnswer(chunk("a"), LOST)), backends=2)
    assert await served(desk) is None
    assert len(desk.client.called) == 1
    assert (desk.last().outcome, desk.last().basis) == ("backend_lost", "counted")
    assert desk.reply.sent.startswith(chunk("a") + b'data: {"error":')
    assert b"[DONE]" not in desk.reply.sent
    assert desk.reply.ended


@pytest.mark.parametrize("status", [301, 302, 307, 308, 401])
async def test_an_answer_about_our_own_settings_is_none_of_the_callers_business(
    status: int,
) -> None:
    headers = [(b"location", b"http://10.0.0.7/v1/secret")]
    desk = Desk(ScriptedClient(plain(b"see http://10.0.0.7", status=status, headers=headers)))
    refused = await served(desk, PLAIN)
    assert isinstance(refused, Upstream)
    assert "must correct" in refused.message
    assert desk.reply.status is None
    assert (desk.last().outcome, desk.last().status) == ("completed", status)


async def test_the_limit_of_the_first_byte_holds_until_a_byte_of_the_body() -> None:
    """Engines send the head of a stream at once and its first token after the prompt."""
    gate = asyncio.Event()
    desk = Desk(
        ScriptedClient(ScriptedAnswer(gate, chunk("a"), USAGE + DONE)),
        limits={"first_byte_seconds": 100, "between_chunks_seconds": 5},
    )
    task = desk.begin()
    await desk.settle()
    desk.clock.advance(50)
    desk.relay.tick()
    gate.set()
    await task
    assert desk.last().outcome == "completed"


@pytest.mark.parametrize("body", [BODY, PLAIN])
@pytest.mark.parametrize("head", [False, True])
async def test_no_byte_in_time(body: bytes, head: bool) -> None:
    kind = "text/event-stream" if body == BODY else "application/json"
    gate = asyncio.Event()
    step = ScriptedAnswer(gate, content_type=kind) if head else gate
    desk = Desk(
        ScriptedClient(step), limits={"first_byte_seconds": 10, "between_chunks_seconds": 1}
    )
    task = desk.begin(body)
    await desk.settle()
    desk.clock.advance(9)
    desk.relay.tick()
    await desk.settle()
    assert not task.done()
    desk.clock.advance(2)
    desk.relay.tick()
    await desk.settle()
    if head and body == BODY:
        await task
        assert b"no first byte" in desk.reply.sent
    else:
        with pytest.raises(TooSlow, match="no first byte"):
            await task
    assert (desk.last().outcome, desk.last().basis) == ("timeout", "none")


@pytest.mark.parametrize("limits", [{"between_chunks_seconds": 3.0}, {"total_seconds": 3.0}])
async def test_a_stream_that_takes_too_long_is_cut_with_words(limits: dict[str, float]) -> None:
    gate = asyncio.Event()
    desk = Desk(ScriptedClient(ScriptedAnswer(chunk("a"), gate)), limits=limits)
    task = desk.begin()
    await desk.settle()
    desk.clock.advance(3.5)
    desk.relay.tick()
    await task
    assert (desk.last().outcome, desk.last().basis) == ("timeout", "counted")
    assert b'"code":"backend_timeout"' in desk.reply.sent
    assert desk.reply.ended


async def test_a_backend_that_never_ends_what_it_finished_is_cut_quietly() -> None:
    gate = asyncio.Event()
    answer = ScriptedAnswer(chunk("a"), USAGE + DONE, gate)
    desk = Desk(ScriptedClient(answer), limits={"between_chunks_seconds": 3})
    task = desk.begin()
    await desk.settle()
    assert desk.last().outcome == "completed"
    desk.clock.advance(4)
    desk.relay.tick()
    await task
    assert desk.reply.sent == chunk("a") + DONE
    assert desk.reply.ended
    assert len(desk.facts()) == 3
    assert (answer.closed, desk.pool.backends["b-1"].in_flight) == (1, 0)


async def test_a_hang_up_after_the_last_token_changes_nothing_but_ends_it() -> None:
    gate = asyncio.Event()
    desk = Desk(ScriptedClient(ScriptedAnswer(chunk("a"), USAGE + DONE, gate)))
    task = desk.begin()
    await desk.settle()
    assert desk.call is not None
    desk.relay.client_gone(desk.call)
    await task
    assert (desk.last().outcome, len(desk.facts())) == ("completed", 3)


async def test_a_client_that_stops_reading_is_not_blamed_on_the_backend() -> None:
    desk = Desk(
        ScriptedClient(ScriptedAnswer(chunk("a"), DONE)), limits={"between_chunks_seconds": 3}
    )
    stuck = asyncio.Event()

    async def body(data: bytes, *, more: bool) -> None:
        await stuck.wait()

    desk.reply.body = body  # type: ignore[method-assign]
    task = desk.begin()
    await desk.settle()
    desk.clock.advance(4)
    desk.relay.tick()
    await task
    assert (desk.last().outcome, desk.last().reason) == (
        "client_gone",
        "the client stopped reading beyond the time limit",
    )


async def test_a_stop_of_the_server_bills_what_was_delivered() -> None:
    desk = Desk(ScriptedClient(ScriptedAnswer(chunk("a"), asyncio.Event())))
    task = desk.begin()
    await desk.settle()
    task.cancel()
    await task
    assert (desk.last().outcome, desk.last().usage) == ("shutdown", Usage(other_out=1))
    assert b"the gateway stopped" in desk.reply.sent


async def test_a_hang_up_during_the_first_fsync_leaves_no_request_without_its_end() -> None:
    journal = SlowJournal(FakeClock())
    desk = Desk(ScriptedClient(), journal=journal, wait_durable=True)
    task = desk.begin()
    await desk.settle()
    assert desk.call is not None
    desk.relay.client_gone(desk.call)
    await task
    assert not desk.client.called
    assert (desk.last().outcome, desk.last().basis) == ("client_gone", "none")


async def test_an_fsync_that_fails_refuses_the_request_and_ends_it() -> None:
    journal = SlowJournal(FakeClock())
    journal.failure = SpoolFailed("fsync failed: I/O error")
    journal.let_go.set()
    desk = Desk(ScriptedClient(), journal=journal, wait_durable=True)
    refused = await served(desk)
    assert isinstance(refused, Overloaded)
    assert not desk.client.called
    assert desk.last().outcome == "spool_failed"


async def test_power_waits_before_the_first_call_and_before_the_last_bytes() -> None:
    journal = SlowJournal(FakeClock())
    desk = Desk(
        ScriptedClient(ScriptedAnswer(chunk("a"), USAGE + DONE)), journal=journal, wait_durable=True
    )
    task = desk.begin()
    await desk.settle()
    assert not desk.client.called
    journal.let_go.set()
    await task
    assert desk.reply.sent.endswith(DONE)


async def test_a_full_spool_refuses_before_any_backend_is_called() -> None:
    journal = FullDisk(FakeClock())
    for failure in (SpoolFull("the ledger is behind"), SpoolFailed("the disk is full")):
        journal.failure = failure
        desk = Desk(ScriptedClient(), journal=journal)
        refused = await served(desk)
        assert isinstance(refused, Overloaded)
        assert str(failure) in refused.message
        assert not desk.client.called
        assert not desk.relay.open


async def test_an_end_that_the_spool_does_not_take_is_owed_and_the_answer_is_cut() -> None:
    journal = FullDisk(FakeClock())
    gate = asyncio.Event()
    desk = Desk(ScriptedClient(ScriptedAnswer(chunk("a"), gate, USAGE + DONE)), journal=journal)
    task = desk.begin()
    await desk.settle()
    journal.failure = SpoolFailed("the disk is full")
    gate.set()
    await task
    assert DONE not in desk.reply.sent
    assert b'"error"' in desk.reply.sent
    assert desk.relay.owes
    journal.failure = None
    desk.relay.tick()
    assert [draft for draft in desk.facts() if isinstance(draft, RequestFinished)]
    assert (desk.last().outcome, desk.last().usage) == ("spool_failed", REPORTED)


async def test_a_spool_that_fails_cuts_what_is_open_at_the_next_tick() -> None:
    journal = FullDisk(FakeClock())
    desk = Desk(ScriptedClient(ScriptedAnswer(chunk("a"), asyncio.Event())), journal=journal)
    task = desk.begin()
    await desk.settle()
    journal.failure = SpoolFailed("the disk is full")
    desk.relay.tick()
    await task
    assert b"could not take a write" in desk.reply.sent
    assert desk.relay.owes


@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_billed_is_sent_to_its_end_even_if_the_spool_fails_meanwhile(
    stream: bool,
) -> None:
    journal = FullDisk(FakeClock())
    body = json.dumps({"choices": [], "usage": USED}).encode()
    answer = ScriptedAnswer(chunk("a"), USAGE + DONE) if stream else plain(body)
    desk = Desk(ScriptedClient(answer), journal=journal, limits={"first_byte_seconds": 1})
    slow, send = asyncio.Event(), desk.reply.body

    async def slowly(data: bytes, *, more: bool) -> None:
        if DONE in data or not stream:
            await slow.wait()
        await send(data, more=more)

    desk.reply.body = slowly  # type: ignore[method-assign]
    task = desk.begin(BODY if stream else PLAIN)
    await desk.settle()
    assert desk.last().outcome == "completed"
    journal.failure = SpoolFailed("the disk is full")
    desk.clock.advance(30)
    desk.relay.tick()
    await desk.settle()
    slow.set()
    await task
    assert desk.reply.sent.endswith(DONE if stream else body)
    assert desk.reply.ended


async def test_a_fault_of_our_own_is_raised_and_has_an_end() -> None:
    desk = Desk(ScriptedClient(ScriptedAnswer(chunk("a"))))

    async def broken(status: int, headers: list[tuple[bytes, bytes]]) -> None:
        raise ZeroDivisionError

    desk.reply.start = broken  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        await desk.begin()
    assert (desk.last().outcome, desk.last().reason) == (
        "gateway_failed",
        "a fault of the gateway itself: ZeroDivisionError",
    )
    assert not desk.relay.open


async def test_a_secret_that_the_backend_says_is_shown_to_nobody() -> None:
    key = "sk-server-key-of-the-backend"
    headers = [(b"x-echo", f"Bearer {key}".encode()), (b"x-other", b"1")]
    said = [
        ScriptedAnswer(chunk(key), USAGE + DONE, headers=headers),
        plain(json.dumps({"choices": key}).encode(), headers=headers),
        plain(f'{{"error":"bad key {key}"}}'.encode(), status=400, headers=headers),
    ]
    for answer in said:
        desk = Desk(ScriptedClient(answer))
        assert await served(desk, BODY if answer is said[0] else PLAIN) is None
        assert key.encode() not in desk.reply.sent
        assert b"[server key]" in desk.reply.sent
        names = [name for name, _ in desk.reply.headers]
        assert b"x-other" in names
        assert b"x-echo" not in names


async def test_a_placeholder_for_a_key_does_not_mangle_texts() -> None:
    desk = Desk(ScriptedClient(ScriptedAnswer(chunk("an EMPTY set"), USAGE + DONE)), key="EMPTY")
    assert await served(desk) is None
    assert b"an EMPTY set" in desk.reply.sent
