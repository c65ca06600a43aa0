"""Runs a command that ends when its starter does: `python -m gateway.demo.leash COMMAND…`.

A leash is for a command that does not watch its own standard input: when the standard input of the
leash ends, because it was closed or because the process at its other end died, the command gets
SIGTERM, and SIGKILL if it does not go. The exit code is the command's.
"""

import subprocess
import sys
import threading

STOP_SECONDS_MAX = 25.0
"""The gateway needs up to its runner's 20 s to take the rest of a spool into the ledger."""


def main() -> int:
    """Run the command of this process's arguments to its end, or to that of standard input."""
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
    threading.Thread(target=_watch, args=(child,), daemon=True).start()
    return child.wait()


def _watch(child: subprocess.Popen[bytes]) -> None:
    sys.stdin.buffer.read()
    child.terminate()
    try:
        child.wait(STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        child.kill()


if __name__ == "__main__":
    sys.exit(main())
