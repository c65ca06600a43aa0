"""Lists of models: what a backend's own list says, and what a caller is shown."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.backends.pool import Backend
from gateway.wire.models import Listed, listed, model_list
from gateway.wire.requests import Engine


def body(*owners: tuple[str, str | None]) -> bytes:
    return json.dumps(
        {"data": [{"id": name, "owned_by": owner} for name, owner in owners]}
    ).encode()


@pytest.mark.parametrize(
    ("owners", "engine"),
    [
        (["vllm"], "vllm"),
        (["VLLM", "vllm"], "vllm"),
        (["sglang"], "sglang"),
        (["llamacpp"], "llamacpp"),
        (["system"], "openai"),
        ([None], "openai"),
        (["vllm", "sglang"], "openai"),
        ([], "openai"),
    ],
)
def test_the_engine_is_known_by_who_owns_its_models(
    owners: list[str | None], engine: Engine
) -> None:
    models = [(f"m{number}", owner) for number, owner in enumerate(owners)]
    assert listed(body(*models)) == Listed(tuple(name for name, _ in models), engine)


@given(bytes_=st.binary(max_size=60))
def test_any_bytes_are_a_list_or_none(bytes_: bytes) -> None:
    found = listed(bytes_)
    assert found is None or isinstance(found, Listed)


@pytest.mark.parametrize(
    "bytes_",
    [b"", b"[]", b'{"data":null}', b'{"data":[{"id":7}]}', b"<html>", b'{"data":' + b"[" * 100_000],
)
def test_what_is_no_list_is_none(bytes_: bytes) -> None:
    assert listed(bytes_) is None


def test_the_list_for_callers_shows_names_and_nothing_of_backends() -> None:
    shown = json.loads(model_list(["b", "a"]))
    assert shown["object"] == "list"
    assert [model["id"] for model in shown["data"]] == ["b", "a"]
    assert {model["owned_by"] for model in shown["data"]} == {"tollbook"}
    assert all(set(model) == {"id", "object", "created", "owned_by"} for model in shown["data"])


def backend(
    models: tuple[str, ...] = (), *, any_model: bool = False, engine: Engine | None = None
) -> Backend:
    return Backend("b", "http://x", key=None, engine=engine, models=models, any_model=any_model)


def test_a_backend_learns_its_models_and_its_engine() -> None:
    learner = backend()
    assert not learner.up
    learner.learn(200, body(("a", "vllm")))
    assert (learner.up, learner.fault, learner.engine) == (True, None, "vllm")
    assert learner.view(0.0).models == {"a"}
    learner.learn(200, body(("b", "llamacpp")))
    assert (learner.engine, learner.view(0.0).models) == ("llamacpp", {"b"})


def test_what_was_set_is_not_learned_over() -> None:
    fixed = backend(("mine",), engine="sglang")
    fixed.learn(200, body(("a", "vllm")))
    assert (fixed.engine, fixed.view(0.0).models) == ("sglang", {"mine"})
    anything = backend(any_model=True)
    anything.learn(200, body(("a", "vllm")))
    assert (anything.engine, anything.view(0.0).models) == ("vllm", None)


@pytest.mark.parametrize(("status", "word"), [(401, "server key"), (403, "403"), (500, "500")])
def test_a_list_that_is_refused_leaves_the_models_and_says_why(status: int, word: str) -> None:
    learner = backend()
    learner.learn(200, body(("a", "vllm")))
    learner.learn(status, b"no")
    assert not learner.up
    assert learner.fault is not None
    assert word in learner.fault
    assert learner.view(0.0).models == {"a"}


def test_a_server_without_a_list_is_good_if_its_models_are_known() -> None:
    for status in (404, 405):
        fixed, learner = backend(("mine",)), backend()
        fixed.learn(status, b"")
        learner.learn(status, b"")
        assert (fixed.up, learner.up) == (True, False)


def test_a_server_that_takes_any_name_is_still_asked_what_it_has() -> None:
    anything = backend(any_model=True)
    anything.learn(200, body(("a", "vllm")))
    assert anything.known == {"a"}
