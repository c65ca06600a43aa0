"""What every use of DuckDB needs: SQL's quoting, and an end by Ctrl-C like that of other work."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import duckdb

Answer = TypeVar("Answer")


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C be a `KeyboardInterrupt` in here too: DuckDB ends its work at one with an error
    of another kind, which would look like a fault of the program."""
    try:
        yield
    except RuntimeError as wrong:
        if str(wrong) != "Query interrupted":
            raise
        raise KeyboardInterrupt from None


def in_thread(connection: duckdb.DuckDBPyConnection, ask: Callable[[], Answer]) -> Answer:
    """What `ask` gives, which works on `connection`, and which Ctrl-C ends at once.

    Of more than one thread DuckDB lets the one that asked wait, deaf to signals, until all is done.
    Here another one asks, so that this one hears them.
    """
    with ThreadPoolExecutor(1) as other:
        asked = other.submit(ask)
        try:
            return asked.result()
        except KeyboardInterrupt:
            connection.interrupt()
            raise


def quoted(text: str) -> str:
    """`text` as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


def named(name: str) -> str:
    """`name` as that of a column or a table."""
    return '"' + name.replace('"', '""') + '"'
