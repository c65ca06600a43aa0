"""A client that hangs up stops the backend, and is billed for what was produced, by what is known.

The backends' own books say when they were stopped and what they had produced by then.
"""

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.cuts import DRAINED
from ledger.events import Usage
from tests.gateway.doors import (
    CHAT,
    COMPLETIONS,
    SOON_SECONDS,
    Key,
    RawClient,
    backend,
    door,
    ended,
    new_key,
    told,
)
from tests.support import processes
from tests.support.processes import Backend, Gateway, call, in_threads, tollbook, wait_until
from tests.support.shapes import Engine

SLOW, LATE, SHORT, ONCE, BRIEF = "n600-i5000-c4", "d8000", "n4", "n1600-i5000", "n120-i5000"
"""Scripts: three seconds of tokens; long silence first; at once; eight seconds for a plain
call; less than one."""

ENGINES: tuple[Engine, ...] = ("vllm", "llamacpp", "fake")
PROMPT, CACHED = 12, 4
TALK = [{"role": "user", "content": "what is the toll for a cart"}]
WORDS = 9  # seven, and a mark before the message and one for the answer


class Lines(msgspec.Struct):
    """A gateway in front of one backend of each engine; a model's name says which is meant."""

    data: Path
    gateway: Gateway
    servers: dict[Engine, Backend]
    key: Key

    def served(self, engine: Engine, tag: str) -> dict[str, Any]:
        """What the backend's own books say of the call `tag`, once it is over."""

        def over() -> dict[str, Any] | None:
            calls = [one for one in self.servers[engine].calls() if one["tag"] == tag]
            return calls[0] if calls and calls[0]["end"] != "open" else None

        found: dict[str, Any] = wait_until(f"{engine} is done with {tag}", over, SOON_SECONDS)
        return found


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lines]:
    directory = tmp_path_factory.mktemp("lines")
    key = new_key(directory / "data", "k")
    with ExitStack() as stack:
        names = {
            engine: [f"{engine}-{s}" for s in (SLOW, LATE, SHORT, ONCE, BRIEF)]
            for engine in ENGINES
        }
        servers = {
            engine: stack.enter_context(
                processes.backend(directory, engine, models=",".join(names[engine]))
            )
            for engine in ENGINES
        }
        tables = [
            backend(server.url, engine, models=names[engine]) for engine, server in servers.items()
        ]
        gateway = stack.enter_context(door(directory, tables))
        yield Lines(directory / "data", gateway, servers, key)


def begun(lines: Lines, engine: Engine, script: str, tag: str, path: str = CHAT) -> RawClient:
    """A client that has sent its call of a stream."""
    client = RawClient(lines.gateway.port)
    said: dict[str, Any] = {"messages": TALK} if path == CHAT else {"prompt": "x"}
    body = {"model": f"{engine}-{script}", "stream": True, "user": tag} | said
    client.send(path, lines.key, body)
    return client


def the_end(lines: Lines, engine: Engine, tag: str) -> Any:
    """How the gateway's own events say that the call `tag` ended."""
    seen = next(s for s in lines.servers[engine].stats()["last"] if s["body"].get("user") == tag)
    return ended(lines.data, seen["headers"]["x-request-id"])


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_in_the_middle_of_a_stream(lines: Lines, engine: Engine, reset: bool, path: str) -> None:
    tag = f"mid-{engine}-{reset}-{path}"
    client = begun(lines, engine, SLOW, tag, path)
    client.read_until(b'" t19"')
    seen = client.seen.count(b'" t')
    client.break_off(reset=reset)
    left = time.monotonic()
    served = lines.served(engine, tag)
    assert time.monotonic() - left < 2.0
    assert served["end"] == "aborted"
    end = the_end(lines, engine, tag)
    assert (end.outcome, end.reason) == ("client_gone", "the client hung up")
    assert end.status is None
    assert seen <= end.chunks <= served["completion"] < 600
    if engine == "fake":
        # This engine counts nothing on the way; its tokenizer finds a token in every word.
        assert (end.basis, end.usage.other_out) == ("tokenized", end.chunks)
        assert end.usage.uncached_in is not None
        return
    assert end.basis == "running"
    # vLLM says nothing of its cache before the end; llama.cpp's timings do.
    cached = CACHED if engine == "llamacpp" else 0
    assert (end.usage.uncached_in, end.usage.cached_in) == (PROMPT - cached, cached)
    assert seen <= end.usage.other_out <= served["completion"]


@pytest.mark.parametrize("wait", [0.0, 0.2])
@pytest.mark.parametrize("engine", ENGINES)
def test_before_the_first_token(lines: Lines, engine: Engine, wait: float) -> None:
    tag = f"before-{engine}-{wait}"
    client = begun(lines, engine, LATE, tag)
    if wait:
        time.sleep(wait)
    else:
        wait_until("the call is there", lambda: lines.servers[engine].calls()[-1]["tag"] == tag)
    client.break_off()
    served = lines.served(engine, tag)
    assert (served["end"], served["completion"]) == ("aborted", 0)
    end = the_end(lines, engine, tag)
    # Who leaves pays for the prompt that was begun for them.
    assert (end.outcome, end.basis) == ("client_gone", "tokenized")
    assert end.usage == Usage(uncached_in=WORDS, reasoning_out=0, other_out=0)
    assert (end.first_token_us, end.attempts) == (None, 1)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("engine", ENGINES)
def test_after_the_last_token(lines: Lines, engine: Engine, path: str) -> None:
    tag = f"after-{engine}-{path}"
    client = begun(lines, engine, SHORT, tag, path)
    client.read_until(b"[DONE]")
    client.break_off(reset=True)
    assert lines.served(engine, tag)["end"] == "done"
    end = the_end(lines, engine, tag)
    assert (end.outcome, end.basis, end.status) == ("completed", "reported", 200)
    assert (end.usage.uncached_in, end.usage.other_out) == (PROMPT, 4)


@pytest.mark.parametrize("engine", ["vllm", "fake"])
def test_a_plain_call(lines: Lines, engine: Engine) -> None:
    tag = f"plain-{engine}"
    client = RawClient(lines.gateway.port)
    body = {"model": f"{engine}-{ONCE}", "messages": TALK, "user": tag}
    client.send(CHAT, lines.key, body)
    time.sleep(0.3)
    client.break_off()
    served = lines.served(engine, tag)
    assert served["end"] == "aborted"
    assert 0 < served["completion"] < 1600
    end = the_end(lines, engine, tag)
    # An engine tells nothing of a plain answer before its end.
    assert (end.outcome, end.basis) == ("client_gone", "tokenized")
    assert end.usage == Usage(uncached_in=WORDS)


def test_a_plain_call_that_llamacpp_would_not_stop_is_read_to_its_end(lines: Lines) -> None:
    client = RawClient(lines.gateway.port)
    body = {"model": f"llamacpp-{BRIEF}", "messages": TALK, "user": "read-on"}
    client.send(CHAT, lines.key, body)
    time.sleep(0.3)
    client.break_off()
    assert lines.served("llamacpp", "read-on")["end"] == "done"
    end = the_end(lines, "llamacpp", "read-on")
    assert (end.outcome, end.basis, end.reason) == ("client_gone", "reported", DRAINED)
    assert (end.usage.uncached_in, end.usage.other_out) == (PROMPT, 120)


def test_running_totals_are_told_while_it_runs(lines: Lines) -> None:
    client = begun(lines, "vllm", SLOW, "told")
    client.read_until(b'" t199"')
    client.break_off()
    request_id = the_end(lines, "vllm", "told").request_id
    events = told(lines.data, request_id)
    running = [said for said in events if type(said).__name__ == "TokensDelivered"]
    assert len(running) >= 3
    totals = [said.usage.other_out for said in running]
    assert totals == sorted(set(totals))
    assert totals[-1] <= events[-1].usage.other_out


def test_many_at_once_leave_nothing_behind(lines: Lines, seed: int) -> None:
    dice = random.Random(seed)
    plans = [(f"crowd-{n}", dice.choice(ENGINES), dice.uniform(0, 0.4)) for n in range(40)]

    def one(tag: str, engine: Engine, seconds: float) -> None:
        client = begun(lines, engine, SLOW, tag)
        time.sleep(seconds)
        client.break_off(reset=True)

    in_threads([lambda plan=plan: one(*plan) for plan in plans])

    def open_ones() -> float:
        text = call(lines.gateway.url + "/metrics").body.decode()
        samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
        names = ("tollbook_requests_open", "tollbook_backend_requests_open")
        return sum(s.value for s in samples if s.name in names)

    wait_until("nothing is open", lambda: open_ones() == 0, SOON_SECONDS)
    for tag, engine, _ in plans:
        calls = [served for served in lines.servers[engine].calls() if served["tag"] == tag]
        # Who hung up before the request was read was never passed on.
        if calls:
            assert lines.served(engine, tag)["end"] == "aborted"
    audit = tollbook(lines.data, "audit", check=False)
    assert audit.returncode == 0, audit.stdout
    assert "Traceback" not in lines.gateway.output()
