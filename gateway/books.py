"""What the serving process asks of the reader: the child process that may look into the ledger.

A question is one line of JSON over a unix socket in the data directory, an answer one line with a
status and then the body as it goes to the client, so that serving spends nothing on large answers.
"""

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from gateway.errors import ApiError, BadRequest, Overloaded
from gateway.wire.organization import Ask

ANSWER_SECONDS_MAX: Final = 30.0
CONNECT_SECONDS_MAX: Final = 2.0

ANSWER_BYTES_MAX: Final = 64 << 20

ASKING_MAX: Final = 32
"""Questions of one serving process at a time; whoever asks beyond that is told to come back."""

_PATH_BYTES_MAX: Final = 100
"""The address of a unix socket has room for 107 bytes, on some systems for 103."""


class Head(msgspec.Struct, frozen=True):
    """The first line of an answer: 200 with a body behind it, 400 or 503 with words."""

    status: int
    words: str = ""


class Books:
    """The way to the reader of a data directory. `socket` null: this gateway knows no ledger."""

    def __init__(self, socket: Path | None) -> None:
        self._socket = socket
        self._asking = 0

    async def ask(self, ask: Ask) -> bytes:
        """The body that answers `ask`. Raises `BadRequest` for a question that has no answer, and
        `Overloaded` with words while the reader or the ledger is away."""
        if self._socket is None:
            raise Overloaded(
                "This gateway does not know where the ledger is. Whoever runs it can give it by "
                "--ledger, or by url in [ledger] of its configuration.",
                code="ledger_unavailable",
            )
        if self._asking >= ASKING_MAX:
            raise _away(f"{ASKING_MAX} other questions about usage are being answered")
        self._asking += 1
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                return _read(await self._answer(self._socket, msgspec.json.encode(ask) + b"\n"))
        except TimeoutError:
            raise _away(f"the ledger gave no answer within {ANSWER_SECONDS_MAX:.0f} s") from None
        except (OSError, EOFError) as away:
            raise _away("the process that reads the ledger does not answer") from away
        finally:
            self._asking -= 1

    async def _answer(self, socket: Path, line: bytes) -> bytes:
        with reachable(socket) as path:
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                reader, writer = await asyncio.open_unix_connection(path)
        try:
            writer.write(line)
            parts, size = [], 0
            while part := await reader.read(1 << 20):
                parts.append(part)
                size += len(part)
                if size > ANSWER_BYTES_MAX:
                    raise BadRequest(
                        "The answer would be too large. Ask for fewer buckets by limit, or filter.",
                        code="answer_too_large",
                    )
            return b"".join(parts)
        finally:
            writer.close()


def _read(answer: bytes) -> bytes:
    line, newline, body = answer.partition(b"\n")
    if not newline:
        raise EOFError
    head = msgspec.json.decode(line, type=Head)
    if head.status == 200:
        return body
    if head.status == 400:
        raise BadRequest(head.words)
    raise _away(head.words)


def _away(why: str) -> ApiError:
    return Overloaded(
        f"Usage and costs cannot be told at this moment: {why}. Nothing is lost; try again soon.",
        code="ledger_unavailable",
    )


@contextlib.contextmanager
def reachable(socket: Path) -> Iterator[str]:
    """A path to `socket` that is short enough for an address, for as long as the block lasts."""
    path = str(socket.absolute())
    if len(os.fsencode(path)) <= _PATH_BYTES_MAX:
        yield path
        return
    folder = os.open(socket.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{socket.name}"
    finally:
        os.close(folder)
