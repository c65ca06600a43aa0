"""Commands as a shell runs them: exit codes, data and words apart, light starts."""

import json
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cli.books import dead_spool
from tests.support import events
from tests.support.processes import (
    CLI,
    backend,
    call,
    environment,
    gateway,
    tollbook,
    tollbook_json,
    wait_until,
)

HEAVY = ("sqlalchemy", "duckdb", "pyarrow", "aiohttp", "starlette", "uvicorn", "rich", "alembic")


def test_a_first_day(tmp_path: Path) -> None:
    data = tmp_path / "data"
    key = tollbook_json(data, "keys", "create", "--name", "alice")
    since = ("--from", "2026-11-01", "--rerate", "first price")
    tollbook(data, "prices", "set", "m", "--in", "1", "--out", "2", *since)
    dead_spool(data, *events.life("r1", key_id=key["id"]))
    rows = tollbook_json(data, "bill", "--month", "2026-11")["rows"]
    assert [(row["name"], row["requests"], row["cost"]) for row in rows] == [
        ("alice", 1, "0.00002")
    ]
    assert tollbook(data, "audit").stdout.endswith("clean: no difference\n")


def test_words_go_to_stderr_and_data_to_stdout(tmp_path: Path) -> None:
    refused = tollbook(tmp_path / "none", "bill", "--json", check=False)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith("tollbook: there is no data directory")
    wrong = tollbook(tmp_path / "none", "bill", "--month", "x", check=False)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "Traceback" not in refused.stderr + wrong.stderr


def test_a_reader_that_goes_away_is_no_failure_with_a_traceback(tmp_path: Path) -> None:
    data = tmp_path / "data"
    directory = dead_spool(data, *(draft for n in range(300) for draft in events.life(f"r{n}")))
    command = (*CLI, "spool", "show", directory.name, "--limit", "0", "--data", str(data))
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()


@pytest.mark.parametrize(
    ("line", "allowed"),
    [
        ("--version", set()),
        ("--help", set()),
        ("prices list --json", set()),
        ("keys list --json", {"sqlalchemy"}),
        ("spool list --json", set()),
    ],
)
def test_a_command_loads_only_what_it_needs(tmp_path: Path, line: str, allowed: set[str]) -> None:
    data = tmp_path / "data"
    tollbook(data, "keys", "create", "--name", "alice")
    code = (
        "import sys, json\n"
        "from gateway.cli.main import main\n"
        "try: main(sys.argv[1:])\n"
        f"finally: print(json.dumps([n for n in {HEAVY!r} if n in sys.modules]), file=sys.stderr)"
    )
    done = subprocess.run(
        (sys.executable, "-c", code, *line.split()),
        env=environment(TOLLBOOK_DATA=str(data)),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert set(json.loads(done.stderr.splitlines()[-1])) <= allowed


def test_keys_made_at_once_are_all_there(tmp_path: Path) -> None:
    """Commands race for the registry; none is lost and none is written over."""
    data = tmp_path / "data"
    command = (*CLI, "keys", "create", "--data", str(data), "--name")
    with ExitStack() as stack:
        waiting = [
            stack.enter_context(
                subprocess.Popen(
                    (*command, f"k{n}"),
                    env=environment(),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
            for n in range(5)
        ]
        said = [process.communicate(timeout=60)[0] for process in waiting]
    assert [process.returncode for process in waiting] == [0] * 5, said
    names = {key["name"] for key in tollbook_json(data, "keys", "list")["keys"]}
    assert names == {f"k{n}" for n in range(5)}


@pytest.mark.e2e
def test_commands_on_a_gateway_that_serves(tmp_path: Path) -> None:
    data = tmp_path / "data"
    body = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}
    with backend(tmp_path) as server, gateway(data, [server.url]) as door:

        def asked(key: str) -> int:
            return call(f"{door.url}/v1/chat/completions", body, key=key).status

        key = tollbook_json(data, "keys", "create", "--name", "alice")["key"]
        wait_until("the new key opens", lambda: asked(key) == 200, seconds=1)
        stop = threading.Event()

        def work() -> None:
            while not stop.is_set():
                asked(key)

        worker = threading.Thread(target=work)
        worker.start()
        try:
            for verb in ("audit", "rebuild", "bill", "audit"):
                done = tollbook(data, verb, check=False)
                assert done.returncode == 0, done.stdout + done.stderr
        finally:
            stop.set()
            worker.join()
        tollbook(data, "keys", "revoke", "alice")
        wait_until("the revoked key is refused", lambda: asked(key) == 401, seconds=1)
        door.kill()
        finished = server.stats()["requests"]
    (row,) = tollbook_json(data, "bill")["rows"]
    assert (row["name"], row["requests"]) == ("alice", finished)
