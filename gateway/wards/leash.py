"""Runs one server that ends when its starter does: `python -m gateway.dev.leash`.

The first line of standard input is an `Order`, the first line of standard output the server's PID.
When standard input ends, because it was closed or because the process at its other end died, the
server gets its stop signal, and SIGKILL if it does not go. The exit code is the server's; 128 and
the signal's number if a signal ended it.
"""

import subprocess
import sys
import threading

import msgspec


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What to run. `user` is the numeric user to run it as; null is this one."""

    argv: tuple[str, ...]
    log: str
    stop_signal: int
    stop_seconds_max: float
    user: int | None = None


def main() -> int:
    """Run the ordered server to its end, or to that of standard input."""
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=Order)
    with open(order.log, "ab") as log:
        child = subprocess.Popen(
            order.argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # Ctrl-C in a terminal is for whoever started this, who then ends it in order.
            start_new_session=True,
            user=order.user,
            group=order.user,
            extra_groups=None if order.user is None else (),
        )
    print(child.pid, flush=True)
    threading.Thread(target=_watch, args=(child, order), daemon=True).start()
    code = child.wait()
    return code if code >= 0 else 128 - code


def _watch(child: subprocess.Popen[bytes], order: Order) -> None:
    sys.stdin.buffer.read()
    child.send_signal(order.stop_signal)
    try:
        child.wait(order.stop_seconds_max)
    except subprocess.TimeoutExpired:
        child.kill()


if __name__ == "__main__":
    sys.exit(main())
