"""What the parts of the request path cost in instructions: `python -m tests.bench.instructions`.

Counted by valgrind's cachegrind, which others at work on the same machine do not disturb; a second
of ordinary work takes it a minute. Each part runs in a process of its own, few times and many
times, and the difference is divided: what a start costs is in neither. `--whole` does that for the
process of a whole gateway and that of the passthrough; at the pace of valgrind the heartbeat is
some hundredths of it. User space alone is counted, and a hash without the instructions that a
processor may have for it.
"""

import argparse
import asyncio
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import aiohttp
import uvloop
from rich.console import Console
from rich.table import Table

from gateway.backends.http import HttpClient
from gateway.backends.pool import Backend
from ledger.clock import SystemClock
from streams.log.spool import SpoolWriter
from tests.bench.machinery import build, fake_backend, load, passthrough, tollbook
from tests.bench.measures import CALLERS
from tests.bench.micro import ANSWER, BODY, parts

FEW, MANY = 200, 1_200
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(
    ANSWER
)
KEY = "sk-bench-backend"
PATH = "/v1/chat/completions"
SENT = {"content-type": "application/json", "x-request-id": "req_" + "a" * 32}
UPSTREAM = ("a server's answer, by the gateway's client", "a server's answer, by aiohttp's session")
"""One request to a server in the same process, whose own part is small and the same in both."""

WHOLE = ("a whole request, the passthrough", "a whole request, Tollbook without its runner")
VALGRIND = ("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null")

Ask = Callable[[], Awaitable[None]]


def main() -> None:
    """Count and print, or run one part where it is counted."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.instructions", description=__doc__)
    parser.add_argument(
        "--whole", action="store_true", help="whole processes, with the benchmark's load"
    )
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--times", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part is not None:
        run(options.part, options.times)
        return
    if shutil.which("valgrind") is None:
        raise SystemExit("instructions are counted by valgrind; install it and run this again")
    table = Table(title="parts of the request path, thousands of instructions")
    table.add_column("part")
    table.add_column("thousands", justify="right")
    if options.whole:
        build()
    count = counted_whole if options.whole else counted
    for name in WHOLE if options.whole else (*UPSTREAM, *_plain_parts()):
        each = (count(name, MANY) - count(name, FEW)) / (MANY - FEW)
        table.add_row(name, f"{each / 1000:.1f}")
    Console().print(table)


def counted_whole(name: str, times: int) -> int:
    """The instructions of a serving process that answers so many plain requests."""
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        said = Path(place) / "valgrind"
        beneath = [*VALGRIND, f"--log-file={said}.%p"]
        direct = stack.enter_context(fake_backend("fake"))
        with (
            passthrough(direct, beneath)
            if name == WHOLE[0]
            else tollbook(direct, Path(place) / "data", beneath)
        ) as served:
            load(
                *("-mode", "load", "-url", served.url, "-key", served.key, "-n", times),
                *("-t", "300s", "-model", "fake-n16", "-c", CALLERS, "-warm", 0),
            )
        return _instructions(Path(f"{said}.{served.pid}").read_text())


def counted(part: str, times: int) -> int:
    """The instructions of a process that runs `part` so many times."""
    run = [sys.executable, "-m", "tests.bench.instructions", "--part", part, "--times", str(times)]
    said = subprocess.run([*VALGRIND, *run], capture_output=True, text=True, timeout=600)
    if said.returncode:
        raise SystemExit(f"valgrind failed: {said.stderr[-2000:]}")
    return _instructions(said.stderr)


def _instructions(said: str) -> int:
    found = re.search(r"I\s+refs:\s+([\d,]+)", said)
    if found is None:
        raise SystemExit(f"valgrind said no number: {said[-2000:]}")
    return int(found.group(1).replace(",", ""))


def run(part: str, times: int) -> None:
    """Run `part` so many times."""
    if part in UPSTREAM:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_upstream(part, times))
        return
    with tempfile.TemporaryDirectory() as place:
        call = _parts(Path(place))[part]
        for _ in range(times):
            call()


def _plain_parts() -> list[str]:
    with tempfile.TemporaryDirectory() as place:
        return list(_parts(Path(place)))


def _parts(place: Path) -> dict[str, Callable[[], object]]:
    spool = SpoolWriter.create(place / "a1", "/gateway/bench/a1", clock=SystemClock())
    return parts(spool)


class _Server(asyncio.Protocol):
    """Answers every read with one whole answer."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(HEAD + ANSWER)


async def _upstream(part: str, times: int) -> None:
    server = await asyncio.get_running_loop().create_server(_Server, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    ask, close = _by_client(url) if part == UPSTREAM[0] else _by_session(url)
    for _ in range(times):
        await ask()
    await close()
    server.close()


def _by_client(url: str) -> tuple[Ask, Ask]:
    client = HttpClient(connect_seconds=5.0)
    backend = Backend("b", url, key=KEY, engine=None, models=None, any_model=True)

    async def ask() -> None:
        answer = await client.open(backend, PATH, BODY, SENT)
        await answer.read_all()
        answer.close()

    return ask, client.close


def _by_session(url: str) -> tuple[Ask, Ask]:
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        headers={"accept-encoding": "identity"},
    )
    headers = {**SENT, "authorization": f"Bearer {KEY}"}

    async def ask() -> None:
        answer = await session.post(url + PATH, data=BODY, headers=headers, allow_redirects=False)
        await answer.read()
        answer.release()

    return ask, session.close


if __name__ == "__main__":
    main()
