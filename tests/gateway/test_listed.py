"""What a backend lists while it serves: one without the models that are set for it is down, where
its engine has no others."""

import json

import pytest

from gateway.backends.pool import Backend
from gateway.routing import breaker as rule
from gateway.routing.policy import Wanted, choose
from gateway.wire.requests import Engine
from tests.gateway.test_recovery import clinic
from tests.support.fake_backend import fake_backend


def lists(*names: str, owner: str = "vllm") -> bytes:
    return json.dumps({"data": [{"id": name, "owned_by": owner} for name in names]}).encode()


def backend(*models: str, engine: Engine | None = None, url: str = "http://x") -> Backend:
    return Backend("b", url, key=None, engine=engine, models=models, any_model=False)


def told(one: Backend) -> tuple[bool, str | None]:
    return one.up, one.rung


def chosen(one: Backend, model: str) -> bool:
    choice = choose(Wanted("r", model), [one.view(0.0)])
    return choice is not None and not choice.last_resort


@pytest.mark.parametrize("owner", ["vllm", "sglang"])
def test_one_that_lists_none_of_its_models_is_down_until_it_does(owner: str) -> None:
    one = backend("mine", "other")
    one.learn(200, lists("new", owner=owner))
    one.probed(1.0)
    assert told(one) == (False, "model")
    assert one.fault == "it lists new and not mine, other"
    assert one.condition(1.0) == "down: it lists new and not mine, other"
    assert one.known == {"mine", "other"} and not chosen(one, "mine")
    one.learn(200, lists("mine", "other", owner=owner))
    one.probed(2.0)
    assert told(one) == (True, None) and one.breaker.state == "half_open", "at the next probe"


def test_it_is_known_by_what_was_set_as_well_as_by_its_list() -> None:
    one = backend("mine", engine="vllm")
    one.learn(200, lists(owner="who knows"))
    assert told(one) == (False, "model") and one.fault == "it lists no model and not mine"


@pytest.mark.parametrize("owner", ["llamacpp", "system"])
def test_one_that_takes_any_name_may_list_what_it_wants(owner: str) -> None:
    one = backend("mine")
    one.learn(200, lists("file.gguf", owner=owner))
    assert told(one) == (True, None) and one.known == {"mine"} and chosen(one, "mine")


def test_a_name_that_is_not_listed_gets_no_requests_while_the_others_do() -> None:
    one = backend("base", "lora")
    one.learn(200, lists("base", "more"))
    assert told(one) == (True, None) and one.known == {"base"}
    assert chosen(one, "base") and not chosen(one, "lora") and not chosen(one, "more")
    one.learn(200, lists("base", "lora"))
    assert chosen(one, "lora") and one.known == {"base", "lora"}


def test_neither_a_list_that_is_refused_nor_a_model_of_its_own_changes_that() -> None:
    one = backend("base", "lora")
    one.learn(200, lists("base"))
    one.learn(404, b"")
    assert set(one.models or ()) == {"base"}
    own = backend()
    own.learn(200, lists("a"))
    own.learn(200, lists("b"))
    assert told(own) == (True, None) and set(own.models or ()) == {"b"}
    wild = Backend("b", "http://x", key=None, engine="vllm", models=("*",), any_model=True)
    wild.learn(200, lists("a"))
    assert told(wild) == (True, None) and wild.models is None


def test_long_lists_are_told_in_part() -> None:
    one = backend("mine")
    one.learn(200, lists(*(f"m{number}" for number in range(8))))
    assert one.fault == "it lists m0, m1, m2, m3, m4 and 3 more and not mine"


async def test_a_server_that_was_restarted_with_another_model_gets_nothing_until_it_is_back() -> (
    None
):
    async with (
        fake_backend(engine="vllm", name="one") as one,
        fake_backend(engine="vllm", name="two") as two,
        clinic(one.url, two.url) as made,
    ):
        moved = made["b-2"]
        moved.become(
            moved.url, key="sk-backend-secret", engine=None, models=("fake",), any_model=False
        )
        await made.until("it is up", lambda: moved.up)
        two.models = ("another",)
        await made.until("it is down", lambda: told(moved) == (False, "model"))
        assert moved.breaker.state == "open"
        served = len(two.calls)
        assert {await made.ask() for _ in range(20)} == {("b-1", 200)}
        assert len(two.calls) == served, "and it is asked for no token, either"
        two.models, lists_before = ("fake",), two.lists
        await made.until("it is on trial", lambda: moved.breaker.state == "half_open")
        assert two.lists - lists_before <= 2
        assert {(await made.ask())[0] for _ in range(rule.ANSWERED_MIN)} == {"b-2"}
