"""Entry of one of several serving processes: `python -m gateway.worker FD DATA NUMBER`, with the
settings on standard input.

It is started by `gateway.wiring` and is no command of its own.
"""

import asyncio
import logging
import socket
import sys
from pathlib import Path

import msgspec
import uvloop

from gateway.settings import Settings
from gateway.supervisor.line import read_line
from gateway.wiring import serve_as_worker


def main() -> None:
    """Serve on the inherited socket until SIGTERM or the end of standard input."""
    logging.basicConfig(level=logging.INFO, format="tollbook: %(message)s", stream=sys.stderr)
    descriptor, data, number = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    settings = msgspec.json.decode(read_line(sys.stdin.fileno()), type=Settings)
    with (
        socket.socket(fileno=descriptor) as door,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(serve_as_worker(settings, data, door, number))


if __name__ == "__main__":
    main()
