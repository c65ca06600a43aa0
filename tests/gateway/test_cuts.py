"""What is billed when a request does not end well: every cause, at every point of an answer."""

import asyncio
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import relay
from gateway.backends.port import BackendFailed
from gateway.cuts import DRAINED, POLICIES, Cause, Cut, bettered, billed, wants_tokens
from gateway.errors import ApiError
from gateway.keeping import ALL_BYTES_MAX, STREAM_BYTES_MAX, Allowance, Kept
from gateway.tokenizers import SILENT_SECONDS
from ledger.events import Basis, Usage
from ledger.events.requests import Outcome
from tests.gateway.desk import Desk, ScriptedAnswer, ScriptedClient, Step
from tests.gateway.test_relay import DONE, LOST, REPORTED, USAGE, chunk

BODY = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}'
PLAIN = BODY.replace(b"true", b"false")
TOKENS = b'{"count":5,"tokens":[1,2,3,4,5]}'
"""What a tokenizer says, whatever it is asked."""

FAULT = b'data: {"error":{"message":"out of memory","code":500}}\n\n'
counts = st.none() | st.integers(0, 1000)
usages = st.builds(
    Usage,
    uncached_in=counts,
    cached_in=counts,
    cache_write_in=counts,
    reasoning_out=counts,
    other_out=counts,
)


def test_every_cause_has_a_policy_and_every_outcome_but_the_good_one_a_cause() -> None:
    assert set(POLICIES) == set(get_args(Cause)) >= set(get_args(Cut))
    assert {policy.outcome for policy in POLICIES.values()} == set(get_args(Outcome)) - {
        "completed"
    }
    assert len({policy.reason for policy in POLICIES.values()}) == len(POLICIES)


@given(usages, st.none() | usages, st.integers(0, 50))
def test_a_tokenizer_never_takes_away_what_was_counted(
    known: Usage, found: Usage | None, chunks: int
) -> None:
    better = bettered(known, found, chunks)
    if better is None:
        assert found is None or not any(found.counts())
        return
    basis, usage = better
    by_chunks = found is not None and found.other_out is None and known.other_out is not None
    assert basis == ("counted" if by_chunks else "tokenized")
    if known.uncached_in is not None:
        assert usage.counts()[:3] == known.counts()[:3]
    if usage.other_out is not None and found is not None and found.other_out is not None:
        assert usage.other_out + (usage.reasoning_out or 0) >= chunks


def test_what_arrived_decides_where_a_server_failed_and_not_where_the_client_left() -> None:
    counted: tuple[Basis, Usage] = ("running", REPORTED)
    for cause, policy in POLICIES.items():
        nothing = policy.billed == "delivered"
        assert billed(policy, counted, 0) == (("none", Usage()) if nothing else counted), cause
        assert billed(policy, counted, 1) == counted
        assert not wants_tokens(policy, "running", 3)
    assert wants_tokens(None, "none", 0)


async def cut_at(desk: Desk, cause: str, body: bytes = BODY) -> tuple[str, str | None, str, Usage]:
    """Begin a request, let `cause` happen once all that can be read was read, and say its end."""
    task = desk.begin(body)
    await desk.settle()
    assert desk.call is not None
    if cause == "client_gone":
        desk.relay.client_gone(desk.call)
    elif cause == "stall":
        desk.clock.advance(1_000)
        desk.relay.tick()
    elif cause == "shutdown":
        task.cancel()
    try:
        await task
    except ApiError as refused:
        assert desk.call.head_sent is False, refused
    assert not desk.relay.open
    assert all(backend.in_flight == 0 for backend in desk.pool.backends.values())
    end = desk.last()
    return end.outcome, end.reason, end.basis, end.usage


ROLE = chunk("")
PROMPT_ONLY = Usage(uncached_in=5, reasoning_out=0, other_out=0)
PROMPT_AND_TEXT = Usage(uncached_in=5, reasoning_out=0, other_out=5)
NOTHING = Usage()


@pytest.mark.parametrize(
    ("cause", "steps", "outcome", "basis", "usage"),
    [
        # The client leaves: before the first token, in the middle, before the usage chunk.
        ("client_gone", [ROLE, "wait"], "client_gone", "tokenized", PROMPT_ONLY),
        ("client_gone", [chunk("a"), "wait"], "client_gone", "tokenized", PROMPT_AND_TEXT),
        ("client_gone", [chunk("a") * 9, "wait"], "client_gone", "tokenized", None),
        ("client_gone", [chunk("a"), USAGE, "wait"], "client_gone", "reported", REPORTED),
        # The backend breaks off at the same three points.
        ("lost", [ROLE, LOST], "backend_lost", "none", NOTHING),
        ("lost", [chunk("a"), LOST], "backend_lost", "tokenized", PROMPT_AND_TEXT),
        ("lost", [chunk("a"), USAGE, LOST], "backend_lost", "reported", REPORTED),
        # It says an error inside its stream, and ends in order.
        ("lost", [ROLE, FAULT + DONE], "backend_lost", "none", NOTHING),
        ("lost", [chunk("a"), FAULT + DONE], "backend_lost", "tokenized", PROMPT_AND_TEXT),
        ("lost", [chunk("a"), FAULT], "backend_lost", "tokenized", PROMPT_AND_TEXT),
        # Silence beyond the limits.
        ("stall", ["wait"], "timeout", "none", NOTHING),
        ("stall", [ROLE, "wait"], "timeout", "none", NOTHING),
        ("stall", [chunk("a"), "wait"], "timeout", "tokenized", PROMPT_AND_TEXT),
        # The gateway stops: no time for a tokenizer.
        ("shutdown", [ROLE, "wait"], "shutdown", "none", NOTHING),
        ("shutdown", [chunk("a"), "wait"], "shutdown", "counted", Usage(other_out=1)),
        # An answer that is whole and carries no usage.
        ("none", [chunk("a"), DONE], "completed", "tokenized", PROMPT_AND_TEXT),
        ("none", [chunk("a")], "completed", "tokenized", PROMPT_AND_TEXT),
    ],
)
async def test_the_policy_of_each_cause_at_each_point(
    cause: str, steps: list[Step | str], outcome: str, basis: str, usage: Usage | None
) -> None:
    script = [asyncio.Event() if isinstance(step, str) else step for step in steps]
    client = ScriptedClient(ScriptedAnswer(*script))
    client.tokenizer = TOKENS
    desk = Desk(client)
    for backend in desk.pool.backends.values():
        backend.up = backend.listed = True
    said = await cut_at(desk, cause)
    assert (said[0], said[2]) == (outcome, basis)
    # Nine chunks are nine tokens at least, whatever a tokenizer makes of their text.
    assert said[3] == (usage or Usage(uncached_in=5, reasoning_out=0, other_out=9))
    assert (said[1] is None) == (outcome == "completed" and DONE in steps)
    assert bool(client.asked) == (basis == "tokenized")


async def test_who_leaves_a_plain_call_pays_for_its_prompt_and_for_no_output() -> None:
    client = ScriptedClient(asyncio.Event())
    client.tokenizer = TOKENS
    desk = Desk(client)
    desk.pool.backends["b-1"].up = desk.pool.backends["b-1"].listed = True
    said = await cut_at(desk, "client_gone", PLAIN)
    assert said[2:] == ("tokenized", Usage(uncached_in=5))


async def test_the_slot_is_free_and_the_client_knows_before_the_tokenizer_has_answered() -> None:
    gate = asyncio.Event()
    client = ScriptedClient(ScriptedAnswer(chunk("a"), LOST))
    client.tokenizer = TOKENS
    fetch = client.fetch

    async def slow(*args: object, **more: object) -> tuple[int, bytes]:
        await gate.wait()
        return await fetch(*args, **more)  # type: ignore[arg-type]

    client.fetch = slow  # type: ignore[method-assign]
    desk = Desk(client, limits={"total_seconds": 10})
    desk.pool.backends["b-1"].up = desk.pool.backends["b-1"].listed = True
    task = desk.begin(BODY)
    await desk.settle()
    assert desk.pool.backends["b-1"].in_flight == 0
    assert b'"error"' in desk.reply.sent
    assert not desk.reply.ended
    assert [type(fact).__name__ for fact in desk.facts()][-1] == "RequestAttempted"
    # No limit and no hang-up ends a request that is only being counted.
    desk.clock.advance(100)
    desk.relay.tick()
    assert desk.call is not None
    desk.relay.client_gone(desk.call)
    gate.set()
    await task
    assert (desk.last().outcome, desk.last().basis) == ("backend_lost", "tokenized")
    assert desk.reply.ended


async def test_a_stop_while_the_tokenizer_is_asked_leaves_what_was_counted() -> None:
    client = ScriptedClient(ScriptedAnswer(chunk("a"), LOST))

    async def never(*args: object, **more: object) -> tuple[int, bytes]:
        await asyncio.Event().wait()
        raise AssertionError

    client.fetch = never  # type: ignore[method-assign]
    desk = Desk(client)
    desk.pool.backends["b-1"].up = desk.pool.backends["b-1"].listed = True
    task = desk.begin(BODY)
    await desk.settle()
    task.cancel()
    await task
    assert (desk.last().outcome, desk.last().basis) == ("backend_lost", "counted")


@pytest.mark.parametrize("answer", [b"", b"[]", b'{"count":"many"}', b"\xff", b'{"count":-4}'])
async def test_a_tokenizer_that_makes_no_sense_leaves_what_was_counted(answer: bytes) -> None:
    client = ScriptedClient(ScriptedAnswer(chunk("a"), LOST))
    client.tokenizer = answer
    desk = Desk(client)
    desk.pool.backends["b-1"].up = desk.pool.backends["b-1"].listed = True
    assert (await cut_at(desk, "lost"))[2:] == ("counted", Usage(other_out=1))


async def test_a_backend_without_a_tokenizer_is_not_asked_again_and_another_of_its_kind_is() -> (
    None
):
    client = ScriptedClient(*[ScriptedAnswer(chunk("a"), LOST) for _ in range(4)])
    asked: list[str] = []

    async def fetch(target: object, *args: object, **more: object) -> tuple[int, bytes]:
        name = target.backend_id  # type: ignore[attr-defined]
        asked.append(name)
        return (404, b"") if name == "b-1" else (200, TOKENS)

    client.fetch = fetch  # type: ignore[method-assign]
    desk = Desk(client, backends=2)
    for backend in desk.pool.backends.values():
        backend.up = backend.listed = True
    desk.pool.backends["b-2"].in_flight = 99  # so that the first one is chosen
    await desk.begin(BODY)
    assert desk.last().basis == "counted"
    first = asked.count("b-1")
    assert first
    desk.reply.status, desk.reply.ended = None, False
    await desk.begin(BODY)
    assert desk.last().basis == "tokenized"
    assert asked.count("b-1") == first


@pytest.mark.parametrize("models", [("m",), ("*",), ("other",)])
@pytest.mark.parametrize("body", [BODY, PLAIN])
async def test_drain_to_end_reads_on_for_the_count_of_the_engine(
    models: tuple[str, ...], body: bytes
) -> None:
    gate = asyncio.Event()
    answer = (
        ScriptedAnswer(chunk("a"), gate, chunk("b"), USAGE + DONE)
        if body == BODY
        else ScriptedAnswer(
            gate, b'{"usage":{"prompt_tokens":9,"completion_tokens":2}}', content_type="x/json"
        )
    )
    desk = Desk(ScriptedClient(answer), drain_to_end=models)
    task = desk.begin(body)
    await desk.settle()
    assert desk.call is not None
    desk.relay.client_gone(desk.call)
    await desk.settle()
    gate.set()
    await task
    end = desk.last()
    assert end.outcome == "client_gone"
    if "other" in models:
        assert end.basis == ("counted" if body == BODY else "none")
        return
    assert (end.basis, end.usage, end.reason) == ("reported", REPORTED, DRAINED)
    assert desk.reply.sent == (chunk("a") if body == BODY else desk.reply.sent)


async def test_what_ends_a_drained_answer_early_bills_as_for_one_who_left() -> None:
    desk = Desk(
        ScriptedClient(ScriptedAnswer(chunk("a"), asyncio.Event())),
        drain_to_end=["m"],
        limits={"between_chunks_seconds": 3},
    )
    task = desk.begin(BODY)
    await desk.settle()
    assert desk.call is not None
    desk.relay.client_gone(desk.call)
    await desk.settle()
    desk.clock.advance(5)
    desk.relay.tick()
    await task
    end = desk.last()
    assert (end.outcome, end.basis) == ("client_gone", "counted")
    assert end.reason == "the client hung up: silence within the stream beyond the time limit"


async def test_a_backend_that_breaks_off_a_drained_answer_bills_as_for_one_who_left() -> None:
    gate = asyncio.Event()
    broken = BackendFailed("lost", "the connection broke")
    desk = Desk(ScriptedClient(ScriptedAnswer(gate, broken)), drain_to_end=["m"])
    task = desk.begin(BODY)
    await desk.settle()
    assert desk.call is not None
    desk.relay.client_gone(desk.call)
    gate.set()
    await task
    assert desk.last().outcome == "client_gone"


def test_kept_bytes_are_bounded_and_given_back() -> None:
    allowance = Allowance()
    kept = Kept(allowance)
    kept.add(b"ab")
    kept.add(b"c")
    assert (kept.bytes(), allowance.left) == (b"abc", ALL_BYTES_MAX - 3)
    kept.add(bytes(STREAM_BYTES_MAX))
    assert (kept.bytes(), allowance.left) == (None, ALL_BYTES_MAX)
    small = Allowance(4)
    one, other = Kept(small), Kept(small)
    one.add(b"abc")
    other.add(b"de")
    assert (other.bytes(), one.bytes(), small.left) == (None, b"abc", 1)
    one.let_go()
    one.let_go()
    assert small.left == 4


async def test_nothing_is_kept_of_a_stream_whose_engine_counts_as_it_goes() -> None:
    gate = asyncio.Event()
    running = chunk("a", usage={"prompt_tokens": 9, "completion_tokens": 1})
    desk = Desk(ScriptedClient(ScriptedAnswer(running, gate, USAGE + DONE)), engine="vllm")
    task = desk.begin(BODY)
    await desk.settle()
    assert desk.call is not None
    assert desk.call.kept is not None
    assert not desk.call.kept.whole
    gate.set()
    await task
    assert desk.relay._allowance.left == ALL_BYTES_MAX


@pytest.mark.parametrize("ends", ["never", "server stops", "client leaves"])
async def test_a_client_that_does_not_read_that_it_failed_keeps_no_end_from_being_written(
    ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "SAY_SECONDS_MAX", 0.05)
    desk = Desk(ScriptedClient(ScriptedAnswer(chunk("a"), LOST)))
    send, saying = desk.reply.body, asyncio.Event()

    async def stuck(data: bytes, *, more: bool) -> None:
        if b"error" in data:
            saying.set()
            await asyncio.Event().wait()
        await send(data, more=more)

    desk.reply.body = stuck  # type: ignore[method-assign]
    task = desk.begin(BODY)
    await saying.wait()
    assert desk.call is not None
    if ends == "server stops":
        task.cancel()
    elif ends == "client leaves":
        desk.relay.client_gone(desk.call)
    await task
    assert (desk.last().outcome, desk.last().basis) == ("backend_lost", "counted")
    assert desk.reply.ended


async def test_a_tokenizer_that_is_silent_is_left_alone_for_a_while_and_its_neighbour_asked() -> (
    None
):
    client = ScriptedClient(*[ScriptedAnswer(chunk("a"), LOST) for _ in range(3)])
    asked: list[str] = []

    async def fetch(target: object, *args: object, **more: object) -> tuple[int, bytes]:
        name = target.backend_id  # type: ignore[attr-defined]
        asked.append(name)
        if name == "b-1":
            raise BackendFailed("unreachable", "no answer within 2 s")
        return 200, TOKENS

    client.fetch = fetch  # type: ignore[method-assign]
    desk = Desk(client, backends=2)
    for backend in desk.pool.backends.values():
        backend.up = backend.listed = True
    desk.pool.backends["b-2"].in_flight = 99  # so that the first one is chosen
    silent = []
    for seconds in (0.0, 1.0, SILENT_SECONDS):
        desk.clock.advance(seconds)
        desk.reply.status, desk.reply.ended = None, False
        await desk.begin(BODY)
        assert desk.last().basis == "tokenized"
        silent.append(asked.count("b-1"))
    assert silent == [1, 1, 2]
