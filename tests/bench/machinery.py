"""What the benchmark starts and reads: two Go programs, the passthrough, a real `tollbook serve`.

Loopback only, bounded in count and time; it ends only what it has started, by PID.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tests.support.processes import free_port

HERE = Path(__file__).parent
BIN = HERE / "bin"
BACKEND_KEY = "sk-bench-backend"
START_SECONDS_MAX = 120.0
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class Served(msgspec.Struct):
    """A running server: where it is, with which key, and the process that serves."""

    name: str
    url: str
    key: str
    pid: int


class Cpu(msgspec.Struct, frozen=True):
    """CPU seconds of one process so far, and its resident memory in MB."""

    seconds: float
    rss_mb: float


def cpu(pid: int) -> Cpu:
    """What `/proc` says of the process `pid`, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    return Cpu(ticks / TICKS_PER_SECOND, int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / 1e6)


def child_of(pid: int, word: str) -> int:
    """The PID of the child of `pid` that has `word` in its command line."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if parent == pid and word.encode() in words:
            return int(entry.name)
    raise LookupError(f"process {pid} has no child {word}")


def build() -> None:
    """Compile the backend and the load generator. They need Go; nothing else of Tollbook does."""
    if shutil.which("go") is None:
        raise SystemExit(
            "the benchmark's backend and load generator are written in Go, so that they are never "
            "what is measured; install Go (https://go.dev) and run this again"
        )
    for name in ("fakebackend", "loadgen"):
        subprocess.run(["go", "build", "-o", str(BIN / name), "."], cwd=HERE / name, check=True)


def load(*arguments: object) -> dict[str, object]:
    """One run of the load generator; its JSON."""
    run = subprocess.run(
        [str(BIN / "loadgen"), *map(str, arguments)], capture_output=True, text=True, timeout=300
    )
    if run.returncode:
        raise SystemExit(f"loadgen failed: {run.stderr[-2000:]}")
    found: dict[str, object] = json.loads(run.stdout)
    if found.get("errors"):
        raise SystemExit(f"loadgen met errors, so its figures mean nothing: {found['errors']}")
    return found


@contextmanager
def process(
    argv: list[str], *, env: dict[str, str] | None = None, log: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is ended at the end, whatever happens."""
    with (log or Path(os.devnull)).open("ab") as out:
        started = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env={**os.environ, **(env or {})},
        )
    try:
        yield started
    finally:
        started.send_signal(signal.SIGTERM)
        try:
            started.wait(30)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()


def wait_until(what: str, ready: Callable[[], bool], seconds: float = START_SECONDS_MAX) -> None:
    """Wait until `ready()`, or end the benchmark with words."""
    until = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > until:
            raise SystemExit(f"{what} was not there within {seconds:.0f} s")
        time.sleep(0.05)


def answers(url: str) -> bool:
    """True if something at `url` speaks HTTP."""
    try:
        urllib.request.urlopen(url, timeout=2).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


@contextmanager
def fake_backend(owner: str) -> Iterator[Served]:
    """The fast fake backend; as `vllm` it sends running usage when asked for it."""
    port = free_port()
    argv = [str(BIN / "fakebackend"), "-addr", f"127.0.0.1:{port}", "-key", BACKEND_KEY]
    with process([*argv, "-owner", owner]) as started:
        url = f"http://127.0.0.1:{port}"
        wait_until("the fake backend", lambda: answers(url + "/health"))
        yield Served("direct", url, BACKEND_KEY, started.pid)


@contextmanager
def passthrough(backend: Served, beneath: Sequence[str] = ()) -> Iterator[Served]:
    """The floor in front of `backend`, run by the command `beneath` if there is one."""
    port = free_port()
    argv = [
        *beneath,
        sys.executable,
        "-m",
        "uvicorn",
        "tests.bench.passthrough:app",
        "--port",
        str(port),
    ]
    argv += ["--loop", "uvloop", "--http", "httptools", "--no-access-log", "--log-level", "warning"]
    with process(argv, env={"BACKEND": backend.url, "BACKEND_KEY": backend.key}) as started:
        url = f"http://127.0.0.1:{port}"
        wait_until("the passthrough", lambda: answers(url + "/"))
        yield Served("passthrough", url, "unused", started.pid)


@contextmanager
def tollbook(backend: Served, data: Path, beneath: Sequence[str] = ()) -> Iterator[Served]:
    """A real `tollbook serve` with its runner and ledger, in front of `backend`, run by the command
    `beneath` if there is one."""
    port = free_port()
    command = [sys.executable, "-m", "gateway.cli"]
    argv = [
        *beneath,
        *command,
        "serve",
        "--backend",
        backend.url,
        "--backend-key",
        "env:BENCH_BACKEND_KEY",
    ]
    argv += ["--models", "*", "--port", str(port), "--data", str(data)]
    with process(
        argv, env={"BENCH_BACKEND_KEY": backend.key}, log=data.with_suffix(".log")
    ) as started:
        url = f"http://127.0.0.1:{port}"
        wait_until("tollbook serve", lambda: answers(url + "/health/ready"))
        made = subprocess.run(
            [*command, "keys", "create", "--name", "bench", "--json", "--data", str(data)],
            capture_output=True,
            check=True,
        )
        key = json.loads(made.stdout)["key"]
        time.sleep(1)
        yield Served("tollbook", url, key, started.pid)


def metric(served: Served, name: str) -> float:
    """One metric without labels of a running gateway."""
    with urllib.request.urlopen(served.url + "/metrics", timeout=10) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(name + " "):
                return float(line.split()[1])
    raise LookupError(name)
