"""A real llama.cpp server for tests and benchmarks: the demo's engine, in a process of its own."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator

import msgspec

from gateway.demo.engine import MODEL, Order, model_file
from tests.support.fake_backend import KEY
from tests.support.processes import REPO, STOP_SECONDS_MAX, call, environment, free_port, wait_until

__all__ = ["MODEL", "llama_server"]

LOAD_SECONDS_MAX = 120.0
"""It is up in 2 s; the first time on a machine the model's file is put together as well."""


@contextlib.contextmanager
def llama_server(
    key: str = KEY, threads: int | None = None, port: int | None = None
) -> Iterator[str]:
    """The address of a server of `MODEL`, locked with `key`, that ends with the block.

    It ends with this process too, whatever happens: it lives as long as its standard input.
    """
    port = port or free_port()
    order = Order(model=str(model_file()), host="127.0.0.1", port=port, key=key, threads=threads)
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway.demo.engine"],
        cwd=REPO,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdin is not None
    url = f"http://127.0.0.1:{port}"

    def up() -> bool:
        assert process.poll() is None, f"llama.cpp ended with {process.returncode}"
        try:
            return call(f"{url}/health", timeout=2).status == 200
        except OSError:
            return False  # not listening yet

    try:
        process.stdin.write(msgspec.json.encode(order) + b"\n")
        process.stdin.flush()
        wait_until(f"llama.cpp serves on {url}", up, LOAD_SECONDS_MAX)
        yield url
    finally:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
