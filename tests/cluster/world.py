"""Several gateways with data directories of their own, writers and workers, over one Kafka and one
Postgres; and whoever is killed is started again, as a service manager does.

Only processes that were started here, and their children, are ever signalled.
"""

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ledger.clock import SystemClock
from ledger.identity import mint_id
from streams.kafka.access import KafkaAccess
from tests.kill import disk
from tests.kill.world import PRICES, Fleet, Life
from tests.support.fake_backend import KEY
from tests.support.processes import (
    CLI,
    Gateway,
    Process,
    call,
    descendants,
    free_port,
    lives,
    tollbook,
    tollbook_json,
    wait_until,
)

HASH_KEY = bytes(range(32))
"""One key for hashing clients' ids in all directories, so that a check finds each request."""

DOOR_SECONDS_MAX = 90.0


class House:
    """One machine with a gateway: its directory, its port, and the runs of its gateway."""

    def __init__(self, root: Path, name: str, config: str) -> None:
        self.name, self.data = name, root / name
        (self.data / "secrets").mkdir(parents=True, mode=0o700)
        (self.data / "secrets" / "hash-key").write_bytes(HASH_KEY)
        self.config = root / f"{name}.toml"
        self.config.write_text(f'[gateway]\nname = "{name}"\n{config}')
        self.log = root / f"{name}.log"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.gateway: Gateway | None = None
        self.lives: list[Life] = []

    @property
    def now(self) -> Gateway:
        assert self.gateway is not None, f"{self.name} was not started"
        return self.gateway


class Cluster:
    """The whole installation. Use as a context; `keys` maps the secret of a key to its id."""

    def __init__(
        self,
        fleet: Fleet,
        root: Path,
        access: KafkaAccess,
        ledger_url: str,
        *,
        gateways: int = 2,
        toml: str = "",
    ) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.root, self.access, self.ledger_url = root, access, ledger_url
        brokers = ", ".join(f'"{address}"' for address in access.bootstrap)
        config = (
            f"[kafka]\nbootstrap = [{brokers}]\n"
            f'prefix = "{access.prefix}"\npartitions = {access.partitions}\nreplication = 1\n'
            f'[ledger]\nurl = "{ledger_url}"\n{toml}'
        )
        self.config = root / "tollbook.toml"
        self.config.write_text(config)
        self.houses = [House(root, f"g{number}", config) for number in range(1, gateways + 1)]
        self.roles: dict[str, Process] = {}
        self.settled: dict[str, dict[str, Any]] = {}
        self._pids: set[int] = set()
        at = self.houses[0].data
        issued = [self._json(at, "keys", "create", "--name", name) for name in ("ann", "bo")]
        for model, (price_in, price_out) in PRICES.items():
            options = ["--in", price_in, "--out", price_out, "--from", "2026-01-01"]
            options += ["--rerate", "first price"]
            tollbook(at, "prices", "set", model, *options, "--config", str(self.config))
        self.fleet = Fleet(
            fleet.root, fleet.backends, fleet.template, {key["key"]: key["id"] for key in issued}
        )

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        running = [house.gateway for house in self.houses if house.gateway is not None]
        for process in (*running, *self.roles.values()):
            self._note(process)
            with contextlib.suppress(ProcessLookupError):
                process.signal(signal.SIGCONT)
            process.stop()
        for pid in self._pids:
            if lives(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if kind is not None:
            for log in sorted(self.root.glob("*.log")):
                print(f"{log}:\n{log.read_text(errors='replace')[-3000:]}")

    @property
    def keys(self) -> list[str]:
        """The secrets of the keys."""
        return list(self.fleet.keys)

    def start(self, house: House) -> None:
        """Start the gateway of `house` and wait until it is ready."""
        options = [part for one in self.fleet.backends for part in ("--backend", one.url)]
        options += ["--backend-key", KEY, "--models", "*", "--config", str(house.config)]
        house.lives.append(Life(mint_id()))
        end = time.monotonic() + DOOR_SECONDS_MAX
        while True:
            house.gateway = Gateway(house.data, house.port, house.log, *options)
            with contextlib.suppress(AssertionError):
                house.gateway.wait_ready()
                return
            # Its door may still be held by what a kill has left.
            assert time.monotonic() < end, house.gateway.output()[-3000:]

    def begin(self, role: str, name: str | None = None) -> Process:
        """Start `tollbook write` or `tollbook worker`."""
        name = name or role
        command = (*CLI, role, "--config", str(self.config), "--data", str(self.root / name))
        self.roles[name] = Process(command, self.root / f"{name}.log")
        return self.roles[name]

    def begin_all(self) -> None:
        """Everything there is, once."""
        for role in ("write", "worker"):
            self.begin(role)
        for house in self.houses:
            self.start(house)
        # Keys come from the worker, which may have begun later than the gateways.
        for house in self.houses:
            wait_until(f"{house.name} knows the keys", lambda url=house.url: self._known(url))

    def _known(self, url: str) -> bool:
        return all(call(f"{url}/v1/models", key=key).status == 200 for key in self.keys)

    def kill_role(self, name: str) -> None:
        """`kill -9` a writer or worker."""
        self.roles[name].kill()

    def kill_gateway(self, house: House) -> None:
        """`kill -9` a gateway; its relay ends by itself."""
        self._note(house.now)
        now = time.monotonic()
        life = house.lives[-1]
        life.killed, life.ended = True, now
        life.wall = SystemClock().now().timestamp() - now
        house.now.kill()

    def kill_relay(self, house: House) -> None:
        """`kill -9` the relay of a gateway, which starts another one."""
        relay = self.relay(house)
        if relay is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(relay, signal.SIGKILL)

    def relay(self, house: House) -> int | None:
        """The PID of the relay of `house`, null between two of them."""
        self._note(house.now)
        for pid, line in descendants(house.now.pid).items():
            if " relay " in line:
                return pid
        return None

    def stop(self, house: House) -> None:
        """SIGTERM, and the end in order: what the spool holds is sent."""
        self._note(house.now)
        house.lives[-1].ended = time.monotonic()
        assert house.now.terminate() == 0, house.now.output()[-3000:]

    def life_of(self, source: str) -> Life | None:
        """The run in which `source` was made, null if it was none of ours."""
        _, _, name, incarnation = source.split("/")
        for house in self.houses:
            if house.name == name:
                begun = [life for life in house.lives if life.first < incarnation]
                return begun[-1] if begun else None
        return None

    def spools(self) -> Iterator[Path]:
        """Every spool in every directory."""
        for house in self.houses:
            yield from disk.spools(house.data)

    def told(self) -> dict[tuple[str, str, int], str]:
        """Every event in every spool that a ledger keeps: its name, and its id."""
        return {
            (record["source"], record["topic"], record["sequence"]): record["id"]
            for spool in self.spools()
            for record in disk.records(spool)
            if record["topic"] in ("requests", "sources", "counters")
        }

    def told_tokens(self) -> dict[str, int]:
        """The last running total in each source's spool, by its number: those are not kept."""
        return {
            record["source"]: record["sequence"]
            for spool in self.spools()
            for record in disk.records(spool)
            if record["topic"] == "tokens"
        }

    def audit(self) -> tuple[int, str]:
        """Exit code and output of `tollbook audit` on the shared ledger."""
        done = tollbook(
            self.houses[0].data, "audit", "--config", str(self.config), "--json", check=False
        )
        return done.returncode, done.stdout + done.stderr

    def wait_gone(self) -> None:
        """Wait until nothing is left of what was killed."""
        living = {house.now.pid for house in self.houses if house.gateway is not None}
        for house in self.houses:
            if house.gateway is not None and house.gateway.alive:
                living |= descendants(house.now.pid).keys()
        wait_until(
            "orphans of killed gateways have ended",
            lambda: not any(lives(pid) for pid in self._pids - living),
            seconds=60.0,
        )

    def _note(self, process: Process) -> None:
        if process.alive:
            self._pids |= descendants(process.pid).keys()

    def _json(self, data: Path, *args: str) -> Any:
        return tollbook_json(data, *args, "--config", str(self.config))


def sometimes(dice: random.Random, low: float, high: float) -> None:
    """Let the load run for a while."""
    time.sleep(dice.uniform(low, high))
