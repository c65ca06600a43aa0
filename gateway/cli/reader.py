"""`tollbook reader`: the process that answers the usage APIs from the ledger. A gateway starts it.

It reads and never writes. Nothing of the ledger is loaded before the first question, so that where
nobody asks it costs no CPU and less than half of the memory.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from gateway.cli.options import data_option

if TYPE_CHECKING:
    from gateway.wire.organization import Ask
    from ledger.folds.book import Book
    from ledger.sql.session import ReadSession
    from streams.local.layout import Layout
    from streams.log.lock import FileLock

ANSWERING_MAX: Final = 2
"""Questions answered at a time: one that takes long must not keep all others waiting."""

LINE_BYTES_MAX: Final = 1 << 20

LOCK_SECONDS: Final = 0.5
"""Between two looks whether the reader of another gateway in this directory has ended."""

Answer = tuple[int, str, bytes]
"""Status, words, body."""


@click.command("reader", hidden=True)
@data_option
@click.option("--ledger", metavar="URL")
@click.option("--stop-on-stdin-eof", is_flag=True)
def command(data: Path, ledger: str | None, stop_on_stdin_eof: bool) -> int:
    """Answer questions about usage and costs until SIGTERM. One per data directory works; a second
    one waits for it to end."""
    from gateway.cli.data import for_writing
    from gateway.settings import LedgerSettings, ledger_url_of
    from streams.local.layout import Layout
    from streams.local.process import NICENESS

    os.nice(NICENESS)
    layout = Layout(for_writing(data))
    target = ledger_url_of(LedgerSettings(url=ledger)) or layout.ledger
    return asyncio.run(_serve(layout, Answers(target).answer, stop_on_stdin_eof))


async def _serve(
    layout: "Layout", answer: Callable[["Ask"], Answer], stop_on_stdin_eof: bool
) -> int:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    if stop_on_stdin_eof:
        loop.add_reader(sys.stdin.fileno(), _look_at_stdin, loop, stopped)
    lock = await _lock(layout, stopped)
    if lock is None:
        return 0
    pool = ThreadPoolExecutor(ANSWERING_MAX)
    try:
        await _answer_all(layout.reader_socket, Talk(answer, pool).talk, stopped)
    finally:
        _clear(layout.reader_socket)
        lock.release()
        pool.shutdown(wait=False, cancel_futures=True)
    return 0


def _clear(socket: Path) -> None:
    # Whoever left it is gone: this process holds the lock.
    socket.unlink(missing_ok=True)


async def _answer_all(
    socket: Path,
    talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    stopped: asyncio.Event,
) -> None:
    from gateway.books import reachable

    _clear(socket)
    with reachable(socket) as path:
        before = os.umask(0o177)
        try:
            server = await asyncio.start_unix_server(talk, path, limit=LINE_BYTES_MAX)
        finally:
            os.umask(before)
    async with server:
        await stopped.wait()


def _look_at_stdin(loop: asyncio.AbstractEventLoop, stopped: asyncio.Event) -> None:
    with contextlib.suppress(BlockingIOError):
        if not os.read(sys.stdin.fileno(), 4096):
            loop.remove_reader(sys.stdin.fileno())
            stopped.set()


async def _lock(layout: "Layout", stopped: asyncio.Event) -> "FileLock | None":
    from streams.log.lock import FileLock

    while not stopped.is_set():
        lock = FileLock.take(layout.reader_lock)
        if lock is not None:
            return lock
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOCK_SECONDS):
                await stopped.wait()
    return None


class Talk:
    """One question on each connection, and its answer."""

    def __init__(self, answer: Callable[["Ask"], Answer], pool: ThreadPoolExecutor) -> None:
        self._answer = answer
        self._pool = pool

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read a question, answer it, and hang up. Whoever has gone meanwhile gets nothing."""
        import msgspec

        from gateway.books import Head
        from gateway.wire.organization import Ask

        try:
            ask = msgspec.json.decode(await reader.readline(), type=Ask)
            loop = asyncio.get_running_loop()
            status, words, body = await loop.run_in_executor(
                self._pool, self._unless_gone, reader, ask
            )
            writer.write(msgspec.json.encode(Head(status, words)) + b"\n" + body)
            await writer.drain()
        except (ConnectionError, msgspec.DecodeError, ValueError):
            return
        finally:
            writer.close()

    def _unless_gone(self, reader: asyncio.StreamReader, ask: "Ask") -> Answer:
        # It may have waited for long behind others, and its client no longer does.
        return (503, "nobody waits for it", b"") if reader.at_eof() else self._answer(ask)


class Answers:
    """Answers of one ledger. The registry is folded anew only when it has grown."""

    def __init__(self, target: Path | str) -> None:
        self._target = target
        self._kept: tuple[int, Book] | None = None

    def answer(self, ask: "Ask") -> Answer:
        """The answer to `ask`: a page, or why there is none. Blocks; safe in several threads."""
        from ledger.errors import BadQuery, LedgerError
        from ledger.sql.session import open_ledger

        try:
            with open_ledger(self._target, readonly=True) as ledger, ledger.read() as read:
                return 200, "", self._page(read, ask)
        except BadQuery as wrong:
            return 400, str(wrong), b""
        except LedgerError as wrong:
            return 503, str(wrong), b""

    def _page(self, read: "ReadSession", ask: "Ask") -> bytes:
        from gateway.cli.reading import costs, usage

        return (costs if ask.kind == "costs" else usage)(read, self._book(read), ask)

    def _book(self, read: "ReadSession") -> "Book":
        from ledger.sql.intake import last_place
        from ledger.sql.replay import load_book

        end, kept = last_place(read), self._kept
        if kept is None or kept[0] != end:
            kept = self._kept = end, load_book(read)
        return kept[1]
