"""Another model answers where no backend of the one asked for is fit: which, for whom, and how the
events tell it."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.access import fallbacks_of
from gateway.backends.port import BackendFailed
from gateway.call import Call
from gateway.errors import Upstream
from gateway.wire.endpoints import BY_NAME, CHAT
from gateway.wire.requests import asked, renamed
from ledger.events import Payload, RequestAttempted, RequestFinished
from ledger.folds.book import Key
from tests.gateway.desk import Desk, ScriptedAnswer, ScriptedClient
from tests.support.events import START, after

TABLE = {"big": ("small", "tiny")}


def key(**more: object) -> Key:
    values = {"key_id": "k", "version": 1, "hash": "", "issued_at": START} | more
    return Key(**values)  # type: ignore[arg-type]


def test_a_key_falls_back_only_to_what_it_may_call_and_if_it_may_at_all() -> None:
    assert fallbacks_of(key(), "big", TABLE) == ("small", "tiny")
    assert fallbacks_of(key(models=("big", "tiny")), "big", TABLE) == ("tiny",)
    assert fallbacks_of(key(fallback=False), "big", TABLE) == ()
    assert fallbacks_of(key(), "small", TABLE) == ()


def test_vectors_counts_and_forms_are_never_of_another_model() -> None:
    may = {name for name, endpoint in BY_NAME.items() if endpoint.may_fall_back}
    assert may == {"chat/completions", "completions", "responses", "messages", "audio/speech"}


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), _VALUES, max_size=5))
def test_only_the_model_is_another_in_the_body(fields: dict[str, object]) -> None:
    body = json.dumps(fields | {"model": "big"}).encode()
    assert json.loads(renamed(body, "klein-ü")) == fields | {"model": "klein-ü"}


def test_what_a_member_says_stays_byte_for_byte() -> None:
    body = b'{"n": 1.0e2, "model":"big","seed":12345678901234567890, "model":"big"}'
    assert renamed(body, "small") == b'{"n":1.0e2,"model":"small","seed":12345678901234567890}'


def test_the_call_tells_what_was_asked_and_who_is_to_answer() -> None:
    body = b'{"model":"big","max_tokens":9}'
    call = Call("r", "k", CHAT, asked(body), 0.0, body=body, fallbacks=("small", "tiny"))
    call.fall_back("small")
    assert (call.wish.model, call.asked_model, call.fallbacks) == ("small", "big", ("tiny",))
    assert call.wish.held_out == 9 and asked(call.body).model == "small"
    accepted = call.accepted(START, 60.0, None, None).payload
    assert accepted.model == "big"  # type: ignore[attr-defined]
    call.fall_back("tiny")
    assert (call.wish.model, call.asked_model, call.fallbacks) == ("tiny", "big", ())
    finished = call.finish(after(1), 1.0, "completed", counted=call.counted()).payload
    assert (finished.model, finished.asked_model) == ("tiny", "big")  # type: ignore[attr-defined]


@pytest.mark.parametrize("model", ["big", "other"])
def test_without_a_fallback_events_say_nothing_of_one(model: str) -> None:
    body = json.dumps({"model": model}).encode()
    call = Call("r", "k", CHAT, asked(body), 0.0, body=body)
    call.accepted(START, 60.0, None, None)
    finished = call.finish(after(1), 1.0, "completed", counted=call.counted()).payload
    assert (finished.model, finished.asked_model) == (model, None)  # type: ignore[attr-defined]


def desk(*script: ScriptedAnswer | BackendFailed) -> Desk:
    """A relay before one server of the model big and one of small, which are both up."""
    made = Desk(ScriptedClient(*script), backends=2)
    for backend, model in zip(made.pool.backends.values(), ("big", "small"), strict=True):
        backend.become("http://x", key=None, engine=None, models=(model,), any_model=False)
        backend.learn(200, b'{"data":[{"id":"%s"}]}' % model.encode())
    return made


async def served(made: Desk, **more: Any) -> list[Payload]:
    """The facts of one call of big, for which small may answer."""
    body = b'{"model":"big"}'
    fallbacks = more.pop("fallbacks", ("small",))
    made.call = Call("req_1", "k", CHAT, asked(body), 0.0, body=body, fallbacks=fallbacks, **more)
    made.call.task = asyncio.create_task(made.relay.serve(made.call, {}, made.reply))
    await made.call.task
    return made.facts()


def answer(status: int = 200) -> ScriptedAnswer:
    usage = b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}'
    return ScriptedAnswer(usage, status=status, content_type="application/json")


@pytest.mark.parametrize(
    "fault", [BackendFailed("unreachable", "refused"), answer(503)], ids=["refused", "503"]
)
async def test_a_model_whose_last_backend_fails_the_request_is_answered_by_the_next_model(
    fault: ScriptedAnswer | BackendFailed,
) -> None:
    made = desk(fault, answer())
    facts = await served(made)
    accepted, *tries, finished = facts
    assert accepted.model == "big"  # type: ignore[attr-defined]
    said = [(one.backend_id, one.model) for one in tries if isinstance(one, RequestAttempted)]
    assert said == [("b-1", None), ("b-2", "small")]
    assert isinstance(finished, RequestFinished) and finished.attempts == 2
    assert (finished.model, finished.asked_model) == ("small", "big")
    assert (b"x-tollbook-fallback", b"small") in made.reply.headers
    assert made.stats.fallbacks == {("big", "small"): 1}


async def test_a_busy_backend_is_fit_and_nothing_falls_back() -> None:
    made = desk(answer())
    for _ in range(500):
        made.pool.backends["b-1"].take()
    *_, finished = await served(made)
    assert isinstance(finished, RequestFinished)
    assert (finished.backend_id, finished.asked_model) == ("b-1", None)
    assert not made.stats.fallbacks


@pytest.mark.parametrize("why", ["draining", "held", "down"])
async def test_a_model_that_is_drained_held_or_down_is_answered_by_the_next(why: str) -> None:
    made = desk(answer())
    big = made.pool.backends["b-1"]
    if why == "draining":
        big.draining = True
    elif why == "held":
        big.held = "its key is not there"
    else:
        big.failed("gone")
    *_, finished = await served(made)
    assert isinstance(finished, RequestFinished)
    assert (finished.backend_id, finished.model) == ("b-2", "small")


async def test_where_the_other_model_is_not_fit_either_the_first_one_is_tried() -> None:
    made = desk(BackendFailed("unreachable", "refused"), BackendFailed("unreachable", "refused"))
    for backend in made.pool.backends.values():
        backend.failed("gone")
    with pytest.raises(Upstream):
        await served(made)
    attempted = [one for one in made.facts() if isinstance(one, RequestAttempted)]
    assert attempted[0].backend_id == "b-1" and attempted[0].model is None
    assert not made.stats.fallbacks


async def test_a_probe_of_one_backend_never_falls_back() -> None:
    made = desk(BackendFailed("unreachable", "refused"))
    with pytest.raises(Upstream):
        await served(made, fallbacks=(), only="b-1")
    assert not made.stats.fallbacks
