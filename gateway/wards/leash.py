"""Runs a command that ends when its starter does: `python -m gateway.wards.leash`.

A leash is for a command that does not watch its own standard input. The first line of the leash's
own is an `Order`, the first line of its output names the command's process. When standard input
ends, because it was closed or because the process at its other end died, the command gets its stop
signal, and SIGKILL if it does not go. The exit code is the command's; 128 and the signal's number
if a signal ended it.
"""

import os
import signal
import subprocess
import sys
import threading
from typing import Final

import msgspec

COMMAND: Final = (sys.executable, "-m", "gateway.wards.leash")

STOP_SECONDS_MAX: Final = 30.0
"""A gateway needs up to its runner's 20 s to take the rest of a spool into the ledger, a broker
some seconds to put its files in order."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What to run. `log` gets what it says; null: the leash's own output. `user` is the numeric
    user to run it as; null is this one."""

    argv: tuple[str, ...]
    log: str | None = None
    stop_signal: int = signal.SIGTERM
    user: int | None = None

    def line(self) -> bytes:
        """As the leash reads it."""
        return msgspec.json.encode(self) + b"\n"


def told_pid(line: bytes) -> int:
    """The process that the leash's first line names."""
    return int(line.split()[-1])


def main() -> int:
    """Run the ordered command to its end, or to that of standard input."""
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=Order)
    if order.log is None:
        child = _start(order, None)
    else:
        with open(order.log, "ab") as log:
            child = _start(order, log.fileno())
    print(f"process {child.pid}", flush=True)
    threading.Thread(target=_watch, args=(child, order), daemon=True).start()
    code = child.wait()
    return code if code >= 0 else 128 - code


def _start(order: Order, out: int | None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        order.argv,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=out,
        user=order.user,
        group=order.user,
        extra_groups=None if order.user is None else (),
    )


def _watch(child: subprocess.Popen[bytes], order: Order) -> None:
    # Not by `sys.stdin`: Python aborts at its end while a thread waits there for a buffer.
    while os.read(0, 4096):
        pass
    child.send_signal(order.stop_signal)
    try:
        child.wait(STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        child.kill()


if __name__ == "__main__":
    sys.exit(main())
