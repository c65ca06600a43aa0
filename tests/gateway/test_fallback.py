"""Another model answers where no backend of the one asked for is fit: which, for whom, and how the
events tell it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.access import fallbacks_of
from gateway.call import Call
from gateway.wire.endpoints import BY_NAME, CHAT
from gateway.wire.requests import asked, renamed
from ledger.folds.book import Key
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
