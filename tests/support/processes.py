"""Real processes for tests: the gateway, its command line, a fake backend; start, wait, kill.

Every process is one that this module started, and is signalled by its own PID; nothing is ever
looked up by name. A process that is still there at the end of its `with` block is killed.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.support.fake_backend import KEY
from tests.support.shapes import Engine

REPO = Path(__file__).resolve().parents[2]
CLI = (sys.executable, "-m", "gateway.cli")
START_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 40.0
CLI_SECONDS_MAX = 60.0
POLL_SECONDS = 0.02


def environment(**more: str) -> dict[str, str]:
    """This process's environment without what would configure Tollbook, with this checkout."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TOLLBOOK_")}
    return kept | {"PYTHONPATH": str(REPO), "PYTHONUNBUFFERED": "1"} | more


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Process:
    """One process that this test started. Its output goes to `log`."""

    def __init__(self, command: Sequence[str], log: Path, cwd: Path | None = None) -> None:
        self.command, self.log = list(command), log
        with log.open("ab") as out:
            self.popen = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=cwd,
                env=environment(),
            )

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def alive(self) -> bool:
        return self.popen.poll() is None

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def kill(self) -> None:
        """`kill -9`, and wait until it is gone."""
        self.popen.kill()
        self.popen.wait(STOP_SECONDS_MAX)

    def terminate(self) -> int:
        """SIGTERM, and its exit code; a process that does not stop in time fails the test."""
        self.signal(signal.SIGTERM)
        return self.popen.wait(STOP_SECONDS_MAX)

    def signal(self, number: int) -> None:
        self.popen.send_signal(number)

    def descendants(self) -> dict[int, str]:
        """PID to command line of every process below this one: its workers, its runner."""
        return descendants(self.pid)

    def stop(self) -> None:
        """End it if it is still there: SIGTERM first, so that its children get a chance."""
        if self.alive:
            self.signal(signal.SIGTERM)
            try:
                self.popen.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                self.kill()


def _processes() -> Iterator[tuple[int, str, int]]:
    """PID, state and parent of every process, where there is a /proc; nothing elsewhere."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        # A process may end between the listing and the reading.
        with contextlib.suppress(OSError):
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            yield int(stat.parent.name), state, int(parent)


def lives(pid: int) -> bool:
    """True unless `pid` is gone or a zombie, which an orphan stays until pytest itself ends."""
    return any(found == pid and state != "Z" for found, state, _ in _processes())


def descendants(pid: int) -> dict[int, str]:
    """PID to command line of every living process below `pid`, zombies left out."""
    parents: dict[int, list[int]] = {}
    for child, state, parent in _processes():
        if state != "Z":
            parents.setdefault(parent, []).append(child)
    found: dict[int, str] = {}
    waiting = list(parents.get(pid, []))
    while waiting:
        child = waiting.pop()
        with contextlib.suppress(OSError):
            line = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            found[child] = line.strip()
        waiting += parents.get(child, [])
    return found


def wait_until(what: str, holds: Any, seconds: float = START_SECONDS_MAX) -> Any:
    """Call `holds` until it gives something true, and return that; fails naming `what`."""
    end = time.monotonic() + seconds
    while True:
        value = holds()
        if value:
            return value
        assert time.monotonic() < end, f"after {seconds} s still not: {what}"
        time.sleep(POLL_SECONDS)


class Answer:
    """What an HTTP call gave: status, headers (lower case), body."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    def json(self) -> Any:
        return json.loads(self.body)


def call(
    url: str,
    body: Any = None,
    key: str | None = None,
    headers: dict[str, str] | None = None,
    timeout: float = 30.0,
) -> Answer:
    """One HTTP call by the standard library: GET, or POST where there is a body."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    sent = {"content-type": "application/json"} | (headers or {})
    if key is not None:
        sent["authorization"] = f"Bearer {key}"
    request = urllib.request.Request(url, data, sent)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            found = {name.lower(): value for name, value in answer.headers.items()}
            return Answer(answer.status, found, answer.read())
    except urllib.error.HTTPError as refused:
        with refused:
            found = {name.lower(): value for name, value in refused.headers.items()}
            return Answer(refused.code, found, refused.read())


def chat(url: str, key: str, model: str = "fake") -> Answer:
    """One plain chat completion of the server at `url`."""
    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}]}
    return call(f"{url}/v1/chat/completions", body, key)


class Gateway(Process):
    """A `tollbook serve` that this test started."""

    def __init__(self, data: Path, port: int, log: Path, *args: str) -> None:
        self.data, self.port = data, port
        self.url = f"http://127.0.0.1:{port}"
        command = (*CLI, "serve", "--data", str(data), "--port", str(port), *args)
        super().__init__(command, log)

    def wait_ready(self) -> None:
        """Until `/health/ready` says 200; fails with its output if it dies first."""

        def ready() -> bool:
            assert self.alive, f"serve ended with {self.popen.returncode}:\n{self.output()}"
            try:
                return call(f"{self.url}/health/ready", timeout=2).status == 200
            except OSError:
                return False  # not listening yet

        wait_until(f"the gateway on {self.url} is ready:\n{self.output()}", ready)


@contextlib.contextmanager
def gateway(
    data: Path,
    backends: Sequence[str],
    *args: str,
    port: int | None = None,
    backend_key: str = KEY,
    ready: bool = True,
) -> Iterator[Gateway]:
    """`tollbook serve` in front of `backends` (addresses), stopped at the end of the block.

    Its log is `serve.log` beside the data directory. `port` null takes a free one.
    """
    options = [part for url in backends for part in ("--backend", url)]
    options += ["--backend-key", backend_key] if backend_key else []
    log = data.parent / "serve.log"
    process = Gateway(data, port or free_port(), log, *options, "--models", "*", *args)
    try:
        if ready:
            process.wait_ready()
        yield process
    finally:
        process.stop()


@contextlib.contextmanager
def role(verb: str, folder: Path, *args: str) -> Iterator[Process]:
    """`tollbook VERB`, which runs until it is told to stop, for the length of the block; its data
    and its log are in `folder` under its name."""
    command = (*CLI, verb, "--data", str(folder / verb), *args)
    process = Process(command, folder / f"{verb}.log")
    try:
        yield process
    finally:
        process.stop()


def tollbook(data: Path, *args: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run one command to its end; with `check` a non-zero exit fails, showing what it said."""
    verb, rest = args[0], args[1:]
    done = subprocess.run(
        (*CLI, verb, *rest, "--data", str(data)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=CLI_SECONDS_MAX,
        env=environment(),
        check=False,
    )
    if check:
        assert done.returncode == 0, f"tollbook {' '.join(args)}: {done.stdout}\n{done.stderr}"
    return done


def tollbook_json(data: Path, *args: str) -> Any:
    """What a command prints under `--json`."""
    return json.loads(tollbook(data, *args, "--json").stdout)


class Backend(Process):
    """A fake backend in a process of its own; its books are read over HTTP."""

    url: str

    def stats(self) -> Any:
        return call(f"{self.url}/_stats").json()

    def calls(self) -> list[dict[str, Any]]:
        """Every call since its start: tag, model, tokens, how it ended."""
        found: list[dict[str, Any]] = call(f"{self.url}/_calls").json()["calls"]
        return found


@contextlib.contextmanager
def backend(
    directory: Path,
    engine: Engine = "fake",
    port: int | None = None,
    key: str = KEY,
    models: str = "fake",
) -> Iterator[Backend]:
    """A fake backend as its own process on `port` (null: a free one), killed at the end."""
    port = port or free_port()
    command = (sys.executable, "-m", "tests.support.fake_backend", "--port", str(port))
    options = ("--engine", engine, "--key", key, "--models", models)
    process = Backend((*command, *options), directory / f"backend-{port}.log", REPO)
    process.url = f"http://127.0.0.1:{port}"

    def up() -> bool:
        assert process.alive, f"the fake backend ended:\n{process.output()}"
        try:
            return call(f"{process.url}/health", timeout=2).status == 200
        except OSError:
            return False  # not listening yet

    try:
        wait_until("the fake backend is up", up)
        yield process
    finally:
        if process.alive:
            process.kill()


def in_threads(jobs: Sequence[Any], seconds: float = 60.0) -> None:
    """Run all `jobs` at once, each in a thread, and wait; fails if one is still at work."""
    threads = [threading.Thread(target=job, daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    end = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    assert not any(thread.is_alive() for thread in threads), "a job did not end in time"
