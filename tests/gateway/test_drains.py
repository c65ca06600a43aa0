"""How long what runs at a drained backend may still take: from the limits and pace of its calls."""

import pytest

from gateway.backends.pool import Backend
from gateway.call import Call
from gateway.drains import drain_us, running
from gateway.wire.endpoints import CHAT
from gateway.wire.meters import make_meter
from gateway.wire.requests import asked

SECOND = 1_000_000
TOTAL = 600.0


def a_backend() -> Backend:
    made = Backend("b", "http://b:1", key=None, engine=None, models=("m",), any_model=False)
    made.draining = True
    made.between_tokens_us, made.first_token_us = 20_000, 500_000
    return made


def a_call(backend: Backend, body: bytes, sent: float = 0.0) -> Call:
    call = Call("req_1", "k", CHAT, asked(body), sent, body=body)
    call.lease(backend)
    call.sent = sent
    return call


PLAIN = b'{"model":"m","max_tokens":100}'
STREAM = b'{"model":"m","max_tokens":100,"stream":true}'


def test_before_its_first_token_an_answer_has_all_of_its_limit_to_go() -> None:
    backend = a_backend()
    call = a_call(backend, PLAIN)
    assert drain_us(backend, [call], 0.0, TOTAL) == 500_000 + 100 * 20_000
    assert drain_us(backend, [call], 0.2, TOTAL) == 300_000 + 100 * 20_000


def test_a_stream_counts_down_at_its_own_pace() -> None:
    backend = a_backend()
    call = a_call(backend, STREAM)
    meter = make_meter(CHAT, call.wish, "openai")
    call.begin_stream(meter, 1.0)
    call.first_token = 1.0
    for _ in range(40):
        meter.feed(b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n')
    # 40 tokens in 4 s are 100 ms for each of the 60 that are left.
    assert running(call, backend, 5.0, TOTAL).interval_us == 100_000
    assert drain_us(backend, [call], 5.0, TOTAL) == 60 * 100_000


def test_several_answers_come_side_by_side() -> None:
    backend = a_backend()
    call = a_call(backend, b'{"model":"m","max_tokens":100,"n":4}')
    assert call.wish.held_out == 400
    assert drain_us(backend, [call], 0.0, TOTAL) == 500_000 + 100 * 20_000


def test_without_a_limit_of_tokens_its_time_limit_stands() -> None:
    backend = a_backend()
    call = a_call(backend, b'{"model":"m"}', sent=10.0)
    assert drain_us(backend, [call], 110.0, TOTAL) == pytest.approx(500 * SECOND)
    assert drain_us(backend, [call], 10_000.0, TOTAL) == 0


def test_only_what_is_at_the_backend_counts_and_only_while_it_is_drained() -> None:
    backend, other = a_backend(), a_backend()
    call = a_call(other, PLAIN)
    assert drain_us(backend, [call], 0.0, TOTAL) is None
    assert drain_us(other, [call], 0.0, TOTAL) is not None
    call.lease(None)
    assert drain_us(other, [call], 0.0, TOTAL) is None
    call.lease(other)
    other.draining = False
    assert drain_us(other, [call], 0.0, TOTAL) is None
