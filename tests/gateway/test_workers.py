"""Several serving processes behind one door, and how a gateway ends: in order or in pieces."""

import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ledger.events import RequestAccepted, RequestFinished, SourceClosed
from tests.gateway.doors import (
    CHAT,
    SOON_SECONDS,
    Key,
    RawClient,
    ask,
    backend,
    checked_error,
    door,
    ended,
    facts,
    new_key,
)
from tests.support import processes
from tests.support.processes import (
    Backend,
    Gateway,
    Process,
    call,
    in_threads,
    lives,
    tollbook,
    wait_until,
)

MODELS = ["*"]


def pids(gateway: Process, what: str) -> set[int]:
    """The living processes below `gateway` whose command line names `what`."""
    return {pid for pid, line in gateway.descendants().items() if what in line}


def workers(gateway: Process) -> set[int]:
    return pids(gateway, "gateway.worker")


def runners(gateway: Process) -> set[int]:
    return pids(gateway, " runner ")


def served_by(data: Path) -> Counter[str]:
    """How many requests each source has accepted."""
    return Counter(event.source for event, said in facts(data) if type(said) is RequestAccepted)


def stream(gateway: Gateway, key: Key, model: str) -> RawClient:
    client = RawClient(gateway.port)
    client.send(CHAT, key, {"model": model, "messages": [], "stream": True})
    return client


@pytest.fixture
def server(tmp_path: Path) -> Any:
    with processes.backend(tmp_path) as running:
        yield running


def wide(server: Backend, **more: Any) -> list[dict[str, Any]]:
    return [backend(server.url, "b", **more)]


def test_two_workers_share_a_door_and_a_killed_one_comes_back(
    tmp_path: Path, server: Backend
) -> None:
    data = tmp_path / "data"
    key = new_key(data, "k")
    with door(
        tmp_path, wide(server), "--workers", "2", gateway={"models": MODELS}, ready=False
    ) as gateway:
        wait_until("two workers", lambda: len(workers(gateway)) == 2)
        gateway.wait_ready()
        assert len(runners(gateway)) == 1

        def load() -> None:
            for _ in range(15):
                assert ask(gateway, key, "fake-n2-i2000", stream=True).status == 200

        in_threads([load] * 8)
        wait_until("both workers have served", lambda: len(served_by(data)) == 2, SOON_SECONDS)
        assert sum(served_by(data).values()) == 120

        victim = min(workers(gateway))
        clients = [stream(gateway, key, "fake-n400-i5000") for _ in range(6)]
        for client in clients:
            client.read_until(b'" t9"')
        os.kill(victim, signal.SIGKILL)
        wait_until("a new worker", lambda: len(workers(gateway) - {victim}) == 2, SOON_SECONDS)
        # The other one goes on serving, whoever dies beside it.
        assert ask(gateway, key, "fake-n2").status == 200
        for client in clients:
            client.break_off()
        assert "it is started again" in gateway.output()

        runner = runners(gateway).pop()
        os.kill(runner, signal.SIGKILL)
        wait_until("a new runner", lambda: runners(gateway) - {runner}, SOON_SECONDS)
        wait_until("three spools", lambda: len(list((data / "spool").iterdir())) >= 3)
        assert gateway.terminate() == 0
        everyone = {victim, runner}
    assert not any(lives(pid) for pid in everyone)
    check_books(data)


def test_children_end_when_their_parent_is_killed(tmp_path: Path, server: Backend) -> None:
    data = tmp_path / "data"
    key = new_key(data, "k")
    tables: Any = {"gateway": {"models": MODELS, "shutdown_seconds_max": 1.0}}
    with door(tmp_path, wide(server), "--workers", "2", ready=False, **tables) as gateway:
        wait_until("two workers", lambda: len(workers(gateway)) == 2)
        gateway.wait_ready()
        client = stream(gateway, key, "fake-n900-i5000")
        client.read_until(b'" t9"')
        children = set(gateway.descendants())
        gateway.kill()
        # Nobody is left to stop them: they see the end of their standard input.
        wait_until(
            "all children are gone", lambda: not any(lives(pid) for pid in children), SOON_SECONDS
        )
        assert b"the gateway stopped" in client.read_until(b"never comes")
        client.break_off()
    check_books(data)


def test_one_process_killed_leaves_no_runner(tmp_path: Path, server: Backend) -> None:
    data = tmp_path / "data"
    key = new_key(data, "k")
    with door(tmp_path, wide(server), gateway={"models": MODELS}) as gateway:
        assert ask(gateway, key, "fake-n3").status == 200
        client = stream(gateway, key, "fake-n900-i5000")
        client.read_until(b'" t99"')
        (runner,) = runners(gateway)
        gateway.kill()
        wait_until("the runner is gone", lambda: not lives(runner), SOON_SECONDS)
        client.break_off()
    rows = processes.tollbook_json(data, "bill", "--by", "key")["rows"]
    # The runner closed what the killed process had left open, before it went.
    assert {row["basis"] for row in rows} == {"reported", "counted"}
    check_books(data)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_sigterm_finishes_what_runs(tmp_path: Path, server: Backend, workers: str) -> None:
    data = tmp_path / "data"
    key = new_key(data, "k")
    with door(tmp_path, wide(server), "--workers", workers, gateway={"models": MODELS}) as gateway:
        clients = [stream(gateway, key, "fake-n200-i5000") for _ in range(3)]
        for client in clients:
            client.read_until(b'" t9"')
        gateway.signal(signal.SIGTERM)
        for client in clients:
            assert b'" t199"' in client.read_until(b"[DONE]")
            client.break_off()
        assert gateway.popen.wait(SOON_SECONDS) == 0
    ends = [said for _, said in facts(data) if isinstance(said, RequestFinished)]
    assert [(end.outcome, end.basis) for end in ends] == [("completed", "reported")] * 3
    closed = {said.closed_source for _, said in facts(data) if isinstance(said, SourceClosed)}
    assert closed >= set(served_by(data))
    check_books(data)


def test_sigterm_cuts_what_takes_too_long(tmp_path: Path, server: Backend) -> None:
    data = tmp_path / "data"
    key = new_key(data, "k")
    tables: Any = {"gateway": {"models": MODELS, "shutdown_seconds_max": 1.0}}
    with door(tmp_path, wide(server), **tables) as gateway:
        clients = [stream(gateway, key, "fake-n4000-i5000") for _ in range(2)]
        for client in clients:
            client.read_until(b'" t9"')
        plain = RawClient(gateway.port)
        plain.send(CHAT, key, {"model": "fake-n4000-i5000", "messages": []})
        idle = RawClient(gateway.port)
        idle.send(CHAT, key, {"model": "fake-n1", "messages": []})
        idle.read_until(b'"prompt_tokens_details"')
        request_ids = [client.header("x-request-id") for client in clients]
        told = time.monotonic()
        gateway.signal(signal.SIGTERM)
        for client in clients:
            answer = client.read_until(b"never comes")
            assert b"the gateway stopped" in answer
            assert b"[DONE]" not in answer
            client.break_off()
        assert plain.read_until(b"never comes").startswith(b"HTTP/1.1 503 ")
        plain.break_off()
        idle.break_off()
        assert gateway.popen.wait(SOON_SECONDS) == 0
        assert time.monotonic() - told < 6.0
        with pytest.raises(OSError):
            call(gateway.url + "/health/live", timeout=2)
    for request_id in request_ids:
        end = ended(data, request_id)
        assert (end.outcome, end.basis) == ("shutdown", "counted")
        assert end.usage.other_out >= 10
    calls = [served["end"] for served in server.calls()]
    assert sorted(calls) == ["aborted", "aborted", "aborted", "done"]
    check_books(data)


def test_while_it_ends_new_requests_are_refused_in_words(tmp_path: Path, server: Backend) -> None:
    data = tmp_path / "data"
    key = new_key(data, "k")
    with door(tmp_path, wide(server), gateway={"models": MODELS}) as gateway:
        # A connection that is in the middle of a request when the signal comes is kept.
        late = RawClient(gateway.port)
        body = b'{"model":"fake-n1","messages":[]}'
        late.socket.sendall(
            f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key.secret}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
        )
        client = stream(gateway, key, "fake-n100-i5000")
        client.read_until(b'" t9"')
        gateway.signal(signal.SIGTERM)
        time.sleep(0.2)
        late.socket.sendall(body)
        refused = late.read_until(b"}}")
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert b'"code":"shutting_down"' in refused
        assert b"retry-after: 1" in refused.lower()
        late.break_off()
        assert b'" t99"' in client.read_until(b"[DONE]")
        client.break_off()
        assert gateway.popen.wait(SOON_SECONDS) == 0
    check_books(data)


def test_a_taken_port_is_said_and_leaves_nothing(tmp_path: Path, server: Backend) -> None:
    data = tmp_path / "data"
    with door(tmp_path, wide(server), gateway={"models": MODELS}) as gateway:
        spools = sorted((data / "spool").iterdir())
        second = tollbook(
            data, "serve", "--backend", server.url, "--port", str(gateway.port), check=False
        )
        assert second.returncode == 1
        assert f"cannot listen on 127.0.0.1:{gateway.port}" in second.stderr
        assert "Traceback" not in second.stderr
        assert len(runners(gateway)) == 1
        assert sorted((data / "spool").iterdir()) == spools


def test_a_backend_that_comes_back_is_found_within_one_probe(tmp_path: Path) -> None:
    data = tmp_path / "data"
    key = new_key(data, "k")
    port = processes.free_port()
    tables = [backend(f"http://127.0.0.1:{port}", "b")]
    with door(tmp_path, tables) as gateway:
        checked_error(ask(gateway, key, "fake"), 404, "model_not_found")
        with processes.backend(tmp_path, port=port):
            began = time.monotonic()
            wait_until("it serves", lambda: ask(gateway, key, "fake").status == 200)
            assert time.monotonic() - began < 4.0
        # Gone again: its models are remembered, and the refusal says what is the matter.
        checked_error(ask(gateway, key, "fake"), 502, "backend_unreachable")


def check_books(data: Path) -> None:
    """What the ledger says after everything has ended is what the spools say, and no more."""
    audit = tollbook(data, "audit", check=False)
    assert audit.returncode == 0, audit.stdout + audit.stderr
