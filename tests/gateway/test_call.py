"""One request in flight as its events tell it."""

from datetime import timedelta

import pytest

from gateway.backends.pool import Backend
from gateway.call import BYTES_PER_TOKEN, Call
from gateway.routing.policy import Choice
from gateway.wire.endpoints import CHAT
from gateway.wire.requests import asked
from gateway.wire.sse import StreamMeter
from ledger.events import Basis, Draft, TokensDelivered, Usage, payload_of
from ledger.events.requests import RequestAccepted, RequestAttempted, RequestFinished
from streams.codec import decode
from tests.streams.builders import START
from tests.support.events import Scribe

NONE_KNOWN: tuple[Basis, Usage] = ("none", Usage())


def call(body: bytes = b'{"model":"m","stream":true,"max_tokens":7,"n":2}') -> Call:
    return Call("req_1", "key-1", CHAT, asked(body), started=100.0, body=body)


def backend(backend_id: str = "b-1") -> Backend:
    return Backend(backend_id, "http://x", key=None, engine=None, models=(), any_model=True)


def accepted(one: Call) -> Draft:
    return one.accepted(START, 1800.0, "hashed", 2)


def test_what_is_accepted_holds_an_estimate_and_a_deadline() -> None:
    one = call()
    draft = accepted(one)
    assert (draft.id, draft.subject, draft.time) == ("req_1/accepted", "key-1", START)
    said = draft.payload
    assert isinstance(said, RequestAccepted)
    assert (said.held_in, said.held_out) == (len(one.body) // BYTES_PER_TOKEN, 14)
    assert said.deadline == START + timedelta(seconds=1800)
    assert (said.endpoint, said.stream) == ("chat/completions", True)
    assert (said.client_request, said.client_retry) == ("hashed", 2)


def test_attempts_are_numbered_and_name_what_went_wrong() -> None:
    one = call()
    first, second = one.attempted(START, backend(), None), one.attempted(START, backend("b-2"), "x")
    assert [first.id, second.id] == ["req_1/attempted/1", "req_1/attempted/2"]
    said = second.payload
    assert isinstance(said, RequestAttempted)
    assert (said.attempt, said.backend_id, said.after) == (2, "b-2", "x")
    assert one.backend is not None
    assert one.backend.backend_id == "b-2"


@pytest.mark.parametrize("reason", ["fallback: no backend of modèle", "a\r\nset-cookie: b", "漢"])
def test_no_text_of_a_choice_ends_the_header_that_it_is_in(reason: str) -> None:
    one = call()
    assert one.route_headers() == []
    one.choice = Choice("b-1", 1.5, (reason, "1 waiting"))
    one.attempted(START, backend(), None)
    _, (name, value) = one.route_headers()
    assert name == b"x-tollbook-route" and value.startswith(b"score=1.500; ")
    assert value.isascii() and value.decode().isprintable() and value.endswith(b", 1 waiting")


def test_a_lease_is_held_at_one_backend_at_most() -> None:
    one, first, second = call(), backend(), backend("b-2")
    one.lease(first)
    one.lease(second)
    assert (first.in_flight, second.in_flight) == (0, 1)
    one.lease(None)
    one.lease(None)
    assert (first.in_flight, second.in_flight) == (0, 0)


def test_nothing_is_known_of_a_plain_answer_before_its_end() -> None:
    one = call()
    assert one.counted() == NONE_KNOWN
    assert one.delivered(START) is None


def test_running_totals_are_told_when_they_move_and_not_after_the_end() -> None:
    one = call()
    accepted(one)
    meter = StreamMeter(one.wish, "openai", chat=True)
    one.begin_stream(meter, 101.0)
    assert one.delivered(START) is None
    meter.feed(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n' * 3)
    told = one.delivered(START)
    assert told is not None
    assert told.id == "req_1/delivered/1"
    assert told.payload == TokensDelivered(
        request_id="req_1", chunks=3, basis="counted", usage=Usage(other_out=3)
    )
    assert one.delivered(START) is None
    meter.feed(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n')
    again = one.delivered(START)
    assert again is not None
    assert again.id == "req_1/delivered/2"
    meter.feed(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n')
    one.finish(START, 102.0, "completed", counted=one.counted())
    assert one.delivered(START) is None


def test_overhead_is_the_time_without_the_backend() -> None:
    one = call()
    one.upstream = 1.5
    assert one.overhead(102.0) == pytest.approx(0.5)
    assert one.overhead(101.0) == 0.0
    # Of a stream it stands once the head is out: then the client waits for tokens, not for us.
    one.begin_stream(StreamMeter(one.wish, "openai", chat=True), 102.0)
    assert one.overhead(500.0) == pytest.approx(0.5)


def test_the_end_repeats_what_a_bill_needs() -> None:
    one = call()
    accepted(one)
    one.attempted(START, backend(), None)
    one.first_token = 100.25
    one.upstream = 1.999
    ended = START + timedelta(seconds=2)
    draft = one.finish(
        ended, 102.0, "completed", status=200, reason=None, counted=("counted", Usage(other_out=1))
    )
    assert (draft.id, draft.time) == ("req_1/finished", ended)
    said = draft.payload
    assert isinstance(said, RequestFinished)
    assert (said.model, said.accepted_at, said.backend_id) == ("m", START, "b-1")
    assert (said.attempts, said.chunks, said.status) == (1, 0, 200)
    assert (said.first_token_us, said.duration_us, said.overhead_us) == (250_000, 2_000_000, 1_000)
    assert payload_of(decode(Scribe().record(draft))) == said


def test_a_request_ends_once_and_only_after_it_was_accepted() -> None:
    with pytest.raises(AssertionError, match="after it was accepted"):
        call().finish(START, 102.0, "completed", counted=NONE_KNOWN)
    one = call()
    accepted(one)
    one.finish(START, 102.0, "completed", counted=NONE_KNOWN)
    with pytest.raises(AssertionError, match="ends once"):
        one.finish(START, 102.0, "completed", counted=NONE_KNOWN)
