"""The real llama.cpp server with its small model, for tests: a process of its own, then gone."""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from gateway.demo.checks import Counters, read_counters
from gateway.demo.engine import MODEL, Order, model_file
from gateway.wards.ward import ward
from ledger.clock import SystemClock
from tests.support.processes import call, free_port, wait_until

__all__ = ["KEY", "MODEL", "counters", "llama_server"]

KEY = "the-key-of-the-llama-server"


@contextmanager
def llama_server(
    key: str = KEY, threads: int = 1, port: int | None = None, *, pooled: bool = False
) -> Iterator[str]:
    """The address of a llama.cpp server that serves `MODEL` and wants `key`.

    `port` null takes a free one. It is up in about three seconds. More threads than free cores
    make it several times slower, so there is one if nothing else is said. `pooled` is needed for
    embeddings and ranks.
    """
    order = Order(
        model=str(model_file()),
        host="127.0.0.1",
        port=port or free_port(),
        key=key,
        threads=threads,
        pooled=pooled,
    )
    url = f"http://127.0.0.1:{order.port}"

    def up() -> bool:
        try:
            return call(f"{url}/health", timeout=2).status == 200
        except OSError:
            return False  # not listening yet

    argv = [sys.executable, "-m", "gateway.demo.engine"]
    line = msgspec.json.encode(order) + b"\n"
    with (
        tempfile.TemporaryDirectory(prefix="tollbook-llama-") as logs,
        ward("llama.cpp", argv, Path(logs) / "engine.log", line) as engine,
    ):
        engine.wait_until(up, SystemClock())
        yield url


def counters(url: str, key: str = KEY) -> Counters:
    """The server's own counters, once it works on no request any more."""

    def idle() -> Counters | None:
        found, idle = read_counters(call(f"{url}/metrics", key=key).body.decode())
        return found if idle else None

    found = wait_until("llama.cpp is idle", idle)
    assert isinstance(found, Counters)
    return found
