"""The way into `tollbook`, which is silent where Ctrl-C comes before or behind the command.

What takes time to load is loaded within it, and here only what an interpreter has loaded by itself:
until it is there, Python answers Ctrl-C, with a traceback.
"""

import os
import signal

INTERRUPTED = 130
"""As `gateway.cli.failure.EXIT_INTERRUPTED`, which is not loaded yet when it is needed here."""


def main() -> None:
    """Run the command line of this process, and exit.

    While the program is loaded, and again while the interpreter ends, nothing waits to be put in
    order, so that SIGINT ends the process at once. A process whose parent had it ignored goes on.
    """
    heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heard:
        signal.signal(signal.SIGINT, _leave)
    from gateway.cli.main import main as command

    try:
        if heard:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            command()
        finally:
            if heard:
                signal.signal(signal.SIGINT, _leave)
    except KeyboardInterrupt:
        # It came between the command's own care for it and the line before or behind that.
        os._exit(INTERRUPTED)


def _leave(*_: object) -> None:
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
