"""One data directory, the gateways that come and go over it, and what was done to them.

`Fleet` is what outlives a world: two fake backends in processes of their own, and a data directory
with keys and prices that every world starts as a copy of. Only processes that were started here
(and the children of these) are ever signalled.
"""

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from ledger.clock import SystemClock
from ledger.identity import mint_id
from tests.kill import disk
from tests.support.fake_backend import KEY
from tests.support.processes import (
    CLI,
    STOP_SECONDS_MAX,
    Backend,
    Gateway,
    Process,
    backend,
    call,
    descendants,
    free_port,
    lives,
    tollbook,
    tollbook_json,
    wait_until,
)

MODELS = (
    "m-n40-i12000-p30",
    "m-n90-i10000-p50-c20",
    "m-n60-i9000-p9-r10",
    "m-n160-i4000-p17-b4",
    "m-n8-i30000-d200-p8",
    "m-n150-i2000-p5",
)
"""Streams of a fourth of a second to a second and a half, so that a kill finds all in mid-air."""

PRICES = {MODELS[0]: ("0.15", "0.60"), MODELS[1]: ("3", "15"), MODELS[2]: ("0.07", "0.333333")}
"""Per million tokens in and out. The other models stay without a price."""

DOOR_SECONDS_MAX = 20.0
"""Until a door that orphans of a killed gateway still hold is free again."""


class Fleet(msgspec.Struct):
    """What several worlds share. `keys` maps the secret of a key to its id."""

    root: Path
    backends: list[Backend]
    template: Path
    keys: dict[str, str]

    def reset(self) -> None:
        """Forget what the backends were called for, so that long runs stay small."""
        for one in self.backends:
            call(f"{one.url}/_reset")

    def calls(self) -> dict[str, dict[str, Any]]:
        """What the backends say of every call that reached them, by tag; each tag came once."""
        found: dict[str, dict[str, Any]] = {}
        for one in self.backends:
            for served in one.calls():
                tag = served["tag"]
                assert tag not in found, f"{tag} reached the backends twice"
                found[tag] = served
        return found

    def tokens(self) -> int:
        """Completion tokens that the backends have produced so far."""
        return sum(one.stats()["completion_tokens"] for one in self.backends)


@contextlib.contextmanager
def fleet(root: Path) -> Iterator[Fleet]:
    """Two backends, one with running usage as vLLM and one without, and a directory to copy."""
    template = root / "template"
    issued = [tollbook_json(template, "keys", "create", "--name", name) for name in ("ann", "bo")]
    for model, (price_in, price_out) in PRICES.items():
        options = ["--in", price_in, "--out", price_out, "--from", "2026-01-01"]
        options += ["--rerate", "first price"]
        tollbook(template, "prices", "set", model, *options)
    with backend(root, "vllm") as one, backend(root, "fake") as other:
        yield Fleet(root, [one, other], template, {key["key"]: key["id"] for key in issued})


class Life(msgspec.Struct):
    """One run of the gateway. Its sources have incarnations above `first`, which sort by time.

    `ended` is the monotonic second at which it was killed or told to stop, null while it runs;
    `wall` is what wall clock minus monotonic clock was then, in seconds. `flushed` is when each of
    its spools last got running totals, by the monotonic clock.
    """

    first: str
    ended: float | None = None
    wall: float = 0.0
    killed: bool = False
    flushed: dict[str, float] = {}


def _instant() -> tuple[float, float]:
    """The monotonic clock, and what the wall clock is ahead of it."""
    now = time.monotonic()
    return now, SystemClock().now().timestamp() - now


def _note_flush(life: Life, spool: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        times = [
            datetime.fromisoformat(record["time"]).timestamp()
            for record in disk.records(spool)
            if record["topic"] == "tokens"
        ]
        if times:
            life.flushed[spool.name] = max(times) - life.wall


class Serve(Gateway):
    """`tollbook serve`, with a program in front of it that may set limits."""

    def __init__(
        self, data: Path, port: int, log: Path, *args: str, prefix: Sequence[str] = ()
    ) -> None:
        self.data, self.port = data, port
        self.url = f"http://127.0.0.1:{port}"
        options = ("--data", str(data), "--port", str(port), *args)
        Process.__init__(self, (*prefix, *CLI, "serve", *options), log)


class World:
    """A data directory of its own in `root`, with `fleet` behind it. Use as a context."""

    def __init__(self, fleet: Fleet, root: Path, toml: str = "") -> None:
        root.mkdir(parents=True)
        self.fleet, self.root = fleet, root
        self.data = root / "data"
        shutil.copytree(fleet.template, self.data)
        self.config = root / "tollbook.toml"
        self.config.write_text(toml)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = root / "serve.log"
        self.gateway: Serve | None = None
        self.lives: list[Life] = []
        self.settled: dict[str, dict[str, Any]] = {}
        self._early: dict[str, Life] = {}
        self._pids: set[int] = set()

    def __enter__(self) -> "World":
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        if self.gateway is not None and self.gateway.alive:
            self._note_pids()
            for pid in self._pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            self.gateway.stop()
        for pid in self._pids:
            if lives(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if kind is not None:
            print(f"{self.log}:\n{self.log.read_text()[-6000:] if self.log.exists() else ''}")

    @property
    def keys(self) -> list[str]:
        """The secrets of the keys."""
        return list(self.fleet.keys)

    @property
    def now(self) -> Serve:
        """The gateway that runs."""
        assert self.gateway is not None, "no gateway was started"
        return self.gateway

    def start(self, *, workers: int = 1, ready: bool = True, prefix: Sequence[str] = ()) -> Serve:
        """Start a gateway on this world's port, and wait until it is ready if so asked.

        While orphans of a killed one still hold the door, it is tried again, as a service manager
        does.
        """
        options = [part for one in self.fleet.backends for part in ("--backend", one.url)]
        options += ["--backend-key", KEY, "--models", "*", "--workers", str(workers)]
        options += ["--config", str(self.config)]
        end = time.monotonic() + DOOR_SECONDS_MAX
        self.lives.append(Life(mint_id()))
        said = len(self.said())
        while True:
            self.gateway = Serve(self.data, self.port, self.log, *options, prefix=prefix)
            if not ready:
                return self.gateway
            wait_until(
                f"serve says that it serves: {self.log}",
                lambda: not self.now.alive or "tollbook: serving" in self.said()[said:],
            )
            if self.now.alive:
                self.now.wait_ready()
                return self.now
            assert "cannot listen on" in self.said()[said:], self.said()[said:]
            assert time.monotonic() < end, f"the door is still taken: {self.said()[said:]}"

    def kill(self, *pids: int) -> Life:
        """`kill -9` the gateway and, right before it, these children of it."""
        self._note_pids()
        assert self._pids >= set(pids), "only children of our own are killed"
        life = self._ends(killed=True)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.now.kill()
        # At once: the runner may take the rest, adopt the spool and delete it.
        for spool in self.spools_of(life):
            _note_flush(life, spool)
        return life

    def kill_child(self, pid: int) -> None:
        """`kill -9` a child of the gateway."""
        self._note_pids()
        assert pid in self._pids, "only children of our own are killed"
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def pause(self, pid: int) -> None:
        """SIGSTOP a child of the gateway."""
        self._note_pids()
        assert pid in self._pids, "only children of our own are stopped"
        os.kill(pid, signal.SIGSTOP)

    def go_on(self, pid: int) -> None:
        """SIGCONT a child of the gateway."""
        assert pid in self._pids, "only children of our own are signalled"
        os.kill(pid, signal.SIGCONT)

    def kill_worker(self, pid: int) -> None:
        """`kill -9` one of several serving processes; the others and the runner live on."""
        held = {
            os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()
        }
        spools = {Path(path).parent.name for path in held if path.endswith(".seg")}
        life = Life(self.lives[-1].first, *_instant(), killed=True)
        self.kill_child(pid)
        for name in spools:
            self._early[name] = life
            _note_flush(life, self.data / "spool" / name)

    def stop(self) -> int:
        """SIGTERM, wait for the end. Returns the exit code."""
        self.ask_to_stop()
        return self.now.popen.wait(STOP_SECONDS_MAX)

    def ask_to_stop(self) -> None:
        """SIGTERM, and no waiting."""
        self._note_pids()
        self._ends(killed=False)
        self.now.signal(signal.SIGTERM)

    def copy(self, target: Path) -> None:
        """The whole directory, put away while nothing runs in it: `cp -a`."""
        # The socket of a reader that was killed cannot be read, and `cp -a` makes another.
        gone = shutil.ignore_patterns("reader.sock")
        shutil.copytree(self.data, target, symlinks=True, ignore=gone)

    def copy_live(self, target: Path, pause: float) -> None:
        """The whole directory while a gateway serves, in the order of docs/operations.md.

        `pause` seconds go by before the ledger is copied, as with a larger directory.
        """
        target.mkdir()
        for name in ("registry", "spool", "secrets"):
            shutil.copytree(self.data / name, target / name, symlinks=True)
        time.sleep(pause)
        with (
            contextlib.closing(sqlite3.connect(self.data / "ledger.db")) as live,
            contextlib.closing(sqlite3.connect(target / "ledger.db")) as kept,
        ):
            live.backup(kept)

    def put_back(self, copy: Path) -> None:
        """What is there now is lost, and `copy` takes its place."""
        shutil.rmtree(self.data)
        shutil.copytree(copy, self.data, symlinks=True)

    def put_back_ledger(self, copy: Path) -> None:
        """Only the ledger is lost, and that of `copy` takes its place."""
        for path in self.data.glob("ledger.db*"):
            path.unlink()
        shutil.copy2(copy / "ledger.db", self.data / "ledger.db")

    def settle(self) -> None:
        """Wait until no process is left that works on this directory: orphans end by themselves."""
        wait_until(
            "every process of the killed gateways has ended",
            lambda: not any(lives(pid) for pid in self._pids),
            seconds=40.0,
        )
        self._pids.clear()

    def runner(self) -> int | None:
        """The PID of the runner that the gateway has started; null between two of them."""
        return self._child(" runner ")

    def the_runner(self) -> int:
        """The PID of the runner, waited for."""
        found: int = wait_until("the gateway has a runner", self.runner)
        return found

    def workers(self) -> list[int]:
        """The PIDs of the serving processes below a gateway with several."""
        return [pid for pid, line in descendants(self.now.pid).items() if "gateway.worker" in line]

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        """A command of Tollbook on this directory, whatever its exit code."""
        return tollbook(self.data, *args, check=False)

    def kill_command(self, seconds: float, *args: str) -> None:
        """Start a command of Tollbook on this directory, and `kill -9` it after so long."""
        verb, rest = args[0], args[1:]
        command = (*CLI, verb, *rest, "--data", str(self.data))
        process = Process(command, self.root / "killed-commands.log")
        time.sleep(seconds)
        process.kill()

    def audit(self) -> tuple[int, list[dict[str, str]], str]:
        """Exit code, findings and error output of `tollbook audit`."""
        done = self.run("audit", "--json")
        findings = json.loads(done.stdout)["findings"] if done.stdout else []
        return done.returncode, findings, done.stderr

    def life_of(self, source: str) -> Life | None:
        """The run in which `source` was made, null if it was none of ours."""
        incarnation = source.rpartition("/")[2]
        if incarnation in self._early:
            return self._early[incarnation]
        begun = [life for life in self.lives if life.first < incarnation]
        return begun[-1] if begun else None

    def spools_of(self, life: Life) -> list[Path]:
        """The spools that serving processes of this run wrote, those that are still there."""
        return [
            spool
            for spool in disk.spools(self.data)
            if disk.is_gateways(spool) and self.life_of(spool.name) is life
        ]

    def _ends(self, *, killed: bool) -> Life:
        life = self.lives[-1]
        life.killed = killed
        life.ended, life.wall = _instant()
        return life

    def _child(self, word: str) -> int | None:
        for pid, line in descendants(self.now.pid).items():
            if word in line:
                return pid
        return None

    def _note_pids(self) -> None:
        if self.gateway is not None and self.gateway.alive:
            self._pids |= descendants(self.gateway.pid).keys()

    def said(self) -> str:
        """All that gateways and runners of this world have said so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""
