"""Ends of requests where somebody lies, stalls or sends what nobody expects."""

import asyncio
import json
from typing import Any

import pytest

from gateway.backends.port import BackendFailed, Target
from gateway.errors import ApiError
from gateway.wire.endpoints import BY_NAME, CHAT, Endpoint
from gateway.wire.prompts import BODY_BYTES_MAX, prompt_of
from gateway.wire.requests import Engine
from ledger.events import RequestFinished, TokensDelivered, Usage
from ledger.events.usage import TOKENS_MAX
from tests.gateway.desk import BODY, Desk, ScriptedAnswer, ScriptedClient, SlowJournal
from tests.streams.builders import FakeClock

COUNTED = json.dumps({"count": 7}).encode()
TEXT = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
ASKED = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"x"}]}'
LOST = BackendFailed("lost", "the connection broke")


class Endless(ScriptedAnswer):
    """One that goes on with comments for ever."""

    async def read(self) -> bytes:
        await asyncio.sleep(0)
        return await super().read() or b": still here\n\n"


class SlowTokenizer(ScriptedClient):
    """One whose tokenizer answers when it is let go; `gone`: not at the backend that was called."""

    def __init__(self, *script: ScriptedAnswer) -> None:
        super().__init__(*script)
        self.tokenizer = COUNTED
        self.let_go = asyncio.Event()
        self.gone = False

    async def fetch(
        self, target: Target, path: str, *, seconds: float, body: bytes | None = None
    ) -> tuple[int, bytes]:
        if self.gone and target.backend_id in self.called:
            raise BackendFailed("unreachable", "the connection was refused")
        await self.let_go.wait()
        return await super().fetch(target, path, seconds=seconds, body=body)


def up(client: ScriptedClient, **more: Any) -> Desk:
    """A desk whose backends were heard of, so that their tokenizers are asked."""
    desk = Desk(client, **more)
    for backend in desk.pool.backends.values():
        backend.up = backend.listed = True
    return desk


def lie(dialect: str) -> tuple[Endpoint, bytes, Engine, bytes]:
    """A stream that says the largest count there is, and then goes on."""
    if dialect == "responses":
        said = {"prompt_n": 1, "predicted_n": TOKENS_MAX}
        event: dict[str, Any] = {"type": "response.output_text.delta", "delta": "a"}
        data = b"".join(
            b"data: %s\n\n" % json.dumps(one).encode() for one in (event | {"timings": said}, event)
        )
        return BY_NAME["responses"], BODY, "llamacpp", data
    usage = b',"usage":{"prompt_tokens":%d,"completion_tokens":%d}}' % (TOKENS_MAX, TOKENS_MAX)
    chunks = [
        b'data: {"choices":[{"index":%d,"delta":{"content":"a"}}]%s\n\n' % (index, end)
        for index, end in ((0, usage), (1, usage), (1, b"}"))
    ]
    body = b'{"model":"m","stream":true,"n":2}' if dialect == "choices" else BODY
    return CHAT, body, "vllm", b"".join(chunks)


@pytest.mark.parametrize("dialect", ["chat", "choices", "responses"])
async def test_the_largest_lie_about_usage_stops_no_heartbeat(dialect: str) -> None:
    endpoint, body, engine, data = lie(dialect)
    stall = asyncio.Event()
    desk = Desk(ScriptedClient(ScriptedAnswer(data, stall)), engine=engine)
    task = desk.begin(body, endpoint)
    await desk.settle()
    desk.relay.tick()
    told = desk.last()
    assert isinstance(told, TokensDelivered)
    assert told.usage.other_out == TOKENS_MAX
    stall.set()
    await task
    assert desk.last().usage.other_out == TOKENS_MAX


ODD: dict[str, tuple[Endpoint, dict[str, Any]]] = {
    "a system that is no text": (BY_NAME["messages"], {"system": [5], "messages": []}),
    "template arguments that are a list": (
        CHAT,
        {"messages": [], "reasoning_effort": "low", "chat_template_kwargs": [1]},
    ),
    "a kind that is a list": (CHAT, {"messages": [{"content": [{"type": [1], "text": "x"}]}]}),
    "a text within texts within texts": (CHAT, {"messages": [{"role": "user", "content": "deep"}]}),
}


@pytest.mark.parametrize("name", ODD)
async def test_a_body_that_no_tokenizer_can_take_has_its_end(name: str) -> None:
    endpoint, said = ODD[name]
    deep = b'[{"type":"text","content":' * 450 + b'"x"' + b"}]" * 450
    body = json.dumps({"model": "m", "stream": True} | said).encode().replace(b'"deep"', deep)
    client = ScriptedClient(ScriptedAnswer(asyncio.Event()))
    client.tokenizer = COUNTED
    desk = up(client)
    task = desk.begin(body, endpoint)
    await desk.settle()
    assert desk.call is not None
    desk.relay.client_gone(desk.call)
    await task
    assert isinstance(desk.last(), RequestFinished)
    assert desk.last().outcome == "client_gone"


def test_a_prompt_beyond_every_context_is_not_looked_through() -> None:
    many = b",".join([b'{"role":"user","content":"x"}'] * 1000)
    assert prompt_of(CHAT, b'{"model":"m","messages":[%b]}' % many) is not None
    padded = b'{"model":"m","messages":[%b]%b}' % (many, b" " * BODY_BYTES_MAX)
    assert prompt_of(CHAT, padded) is None


@pytest.mark.parametrize("error", [b"", b'data: {"error":{"message":"no"}}\n\n'])
async def test_a_backend_that_stalls_behind_its_end_is_cut_though_its_text_was_counted(
    error: bytes,
) -> None:
    client = ScriptedClient(ScriptedAnswer(TEXT, error + DONE, asyncio.Event()))
    client.tokenizer = COUNTED
    desk = up(client)
    task = desk.begin(ASKED)
    await desk.settle()
    assert desk.last().basis == "tokenized"
    desk.clock.advance(100_000)
    desk.relay.tick()
    await task
    assert desk.reply.sent == TEXT + error + DONE
    assert desk.reply.ended
    assert not desk.relay.open
    assert desk.pool.backends["b-1"].in_flight == 0


@pytest.mark.parametrize("status", [400, 500])
async def test_an_error_written_as_a_stream_of_events_bills_no_prompt(status: int) -> None:
    body = b'data: {"detail":"no"}\n\n'
    client = ScriptedClient(ScriptedAnswer(body, status=status))
    client.tokenizer = COUNTED
    desk = up(client)
    await desk.begin(ASKED)
    assert (desk.reply.status, desk.reply.sent) == (status, body)
    assert (desk.last().basis, desk.last().usage) == ("none", Usage())
    assert client.asked == []


async def test_a_refused_server_key_is_not_told_as_a_stream_either() -> None:
    desk = Desk(ScriptedClient(ScriptedAnswer(b"data: your key is wrong\n\n", status=401)))
    with pytest.raises(ApiError) as refused:
        await desk.begin()
    assert refused.value.code == "backend_key_refused"


async def test_a_stop_does_not_wait_for_the_tokenizer_of_a_client_who_left() -> None:
    client = SlowTokenizer(ScriptedAnswer(TEXT, asyncio.Event()))
    desk = up(client, drain_to_end=["m"])
    task = desk.begin()
    await desk.settle()
    assert desk.call is not None
    desk.relay.client_gone(desk.call)
    task.cancel()
    await desk.settle()
    assert task.done()
    assert (desk.last().outcome, desk.last().basis) == ("client_gone", "counted")
    assert client.asked == []


async def test_a_neighbour_is_asked_where_the_backend_itself_is_gone() -> None:
    client = SlowTokenizer(ScriptedAnswer(TEXT, LOST))
    client.let_go.set()
    client.gone = True
    desk = up(client, backends=2)
    task = desk.begin(ASKED)
    await task
    assert desk.last().basis == "tokenized"


async def test_no_slot_is_held_while_a_whole_answer_is_counted() -> None:
    client = SlowTokenizer(ScriptedAnswer(b'{"choices":[]}', content_type="application/json"))
    desk = up(client)
    task = desk.begin(ASKED)
    await desk.settle()
    assert desk.pool.backends["b-1"].in_flight == 0
    client.let_go.set()
    await task


async def test_a_stop_in_the_middle_of_a_count_keeps_what_is_known() -> None:
    client = SlowTokenizer(ScriptedAnswer(TEXT, LOST))
    desk = up(client)
    task = desk.begin()
    await desk.settle()
    task.cancel()
    await task
    assert (desk.last().outcome, desk.last().basis) == ("backend_lost", "counted")
    assert desk.reply.ended


@pytest.mark.parametrize("name", ["messages", "responses"])
async def test_half_a_line_is_not_passed_on_before_an_error(name: str) -> None:
    """It would make the error a part of what nobody can read."""
    whole = b'data: {"type":"ping"}\n\n'
    desk = Desk(ScriptedClient(ScriptedAnswer(whole, b'event: x\ndata: {"type":"con', LOST)))
    await desk.begin(BODY, BY_NAME[name])
    *_, last = desk.reply.sent.removeprefix(whole).removesuffix(b"\n\n").split(b"\n")
    assert desk.reply.sent.startswith(whole)
    assert "error" in json.loads(last.removeprefix(b"data: "))


async def test_a_secret_in_two_reads_is_veiled_in_every_dialect() -> None:
    secret = b"sk-server-key-of-the-backend"
    steps = b'data: {"type":"ping","key":"%b"}\n\n' % secret
    desk = Desk(ScriptedClient(ScriptedAnswer(steps[:40], steps[40:])))
    await desk.begin(BODY, BY_NAME["messages"])
    assert desk.reply.sent == steps.replace(secret, b"[server key]")


async def test_nothing_is_begun_for_a_client_who_has_left() -> None:
    """What runs is read to its end where that is set; no backend is called for it any more."""
    journal = SlowJournal(FakeClock())
    desk = Desk(ScriptedClient(), journal=journal, wait_durable=True, drain_to_end=["m"])
    task = desk.begin()
    await desk.settle()
    assert desk.call is not None
    desk.relay.client_gone(desk.call)
    journal.let_go.set()
    await task
    assert desk.client.called == []
    assert (desk.last().outcome, desk.last().basis) == ("client_gone", "none")


async def test_a_failed_attempt_is_not_repeated_for_a_client_who_has_left() -> None:
    wait = asyncio.Event()
    client = ScriptedClient(wait, ScriptedAnswer(b"no", status=500, content_type="text/plain"))
    desk = Desk(client, backends=2, drain_to_end=["m"])
    task = desk.begin()
    await desk.settle()
    assert desk.call is not None
    desk.relay.client_gone(desk.call)
    wait.set()
    await task
    assert (desk.last().outcome, desk.last().attempts) == ("client_gone", 1)


@pytest.mark.parametrize("name", ["chat/completions", "messages"])
async def test_a_connection_that_breaks_behind_the_end_is_no_error(name: str) -> None:
    end = DONE if name == "chat/completions" else b'data: {"type":"message_stop"}\n\n'
    desk = Desk(ScriptedClient(ScriptedAnswer(TEXT, end, LOST)))
    await desk.begin(BODY, BY_NAME[name])
    assert desk.reply.sent == TEXT + end
    assert desk.reply.ended
    assert desk.last().outcome == "completed"


@pytest.mark.parametrize("end", [DONE, b'data: {"error":{"message":"no"}}\n\n'])
async def test_a_backend_that_never_stops_behind_its_end_is_cut_by_the_limit_of_all(
    end: bytes,
) -> None:
    desk = Desk(ScriptedClient(Endless(TEXT, end)))
    task = desk.begin()
    await desk.settle()
    desk.clock.advance(100_000)
    await desk.settle()
    desk.relay.tick()
    await desk.settle()
    ended = task.done()
    task.cancel()
    await task
    assert ended
    assert desk.reply.ended
    assert not desk.relay.open


class SlowAtTheEnd(SlowJournal):
    """One whose first `durable` is quick."""

    async def durable(self) -> None:
        if len(self.events()) > 2:
            await super().durable()


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_stop_while_the_last_bytes_wait_for_the_disk_is_told(streamed: bool) -> None:
    """They were not sent, and a clean end would say that there were none."""
    plain = ScriptedAnswer(b'{"usage":{"prompt_tokens":1}}', content_type="application/json")
    answer = ScriptedAnswer(TEXT, DONE) if streamed else plain
    journal = SlowAtTheEnd(FakeClock())
    desk = Desk(ScriptedClient(answer), journal=journal, wait_durable=True)
    task = desk.begin(BODY if streamed else b'{"model":"m"}')
    await desk.settle()
    assert desk.last().outcome == "completed"
    task.cancel()
    if not streamed:
        with pytest.raises(ApiError):
            await task
        return
    await task
    assert b'"code":"shutdown"' in desk.reply.sent
    assert DONE not in desk.reply.sent
    assert desk.reply.ended
