"""What a parent says to a child before anything else: one line on the child's standard input."""

import os


def read_line(descriptor: int) -> bytes:
    """One line, read unbuffered, so that the end of the pipe is still seen later."""
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(descriptor, 65536)
        if not part:
            raise SystemExit("the parent was gone before it had said what to do")
        line += part
    return line
