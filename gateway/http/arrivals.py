"""Request bodies on their way in: bounded in size and in time, and inflated where they come
compressed.

The heartbeat keeps the time limit for all of them, because a timer for each request would cost more
than the reading of most bodies.
"""

import asyncio
from typing import Any

from starlette.types import Receive

from gateway.errors import BadRequest, Overloaded, TooLarge, TooLate, WrongCoding
from gateway.wire.codings import CodingError, Inflater, UnknownCodingError, is_plain
from ledger.clock import Clock


class ClientGoneError(Exception):
    """The client left before its request was whole: nobody to answer, nothing to bill."""


class Arrivals:
    """All requests whose body has not arrived yet."""

    def __init__(self, clock: Clock, body_bytes_max: int) -> None:
        self._clock = clock
        self._body_bytes_max = body_bytes_max
        self._arriving: dict[asyncio.Task[Any], float] = {}
        self._late: set[asyncio.Task[Any]] = set()

    def refuse_late(self, seconds: float) -> None:
        """Refuse every request that has been on its way for more than `seconds`."""
        now = self._clock.monotonic()
        for task, began in self._arriving.items():
            if now - began > seconds and task not in self._late:
                self._late.add(task)
                task.cancel()

    async def body(
        self,
        task: asyncio.Task[Any],
        receive: Receive,
        announced: bytes | None,
        began: float,
        coding: bytes | None = None,
    ) -> bytes:
        """The whole body, read by `task`, the caller's own; `began` is when its head had arrived,
        by the monotonic clock, `coding` its `Content-Encoding`, from which it is freed.

        Raises `TooLarge`, before it is read where its length is announced, and in either form;
        `WrongCoding`, `BadRequest` for a body that is not in the coding it names, `TooLate`,
        `Overloaded` if the server stops first, and `ClientGoneError`.
        """
        self._arriving[task] = began
        try:
            limit = self._body_bytes_max
            if coding is None or is_plain(coding):
                return await _read(receive, announced, limit)
            try:
                inflater = Inflater(coding)
                return await _inflated(inflater, await _read(receive, announced, limit), limit)
            except UnknownCodingError as unknown:
                raise WrongCoding(f"The request body {unknown}. Send it uncompressed.") from None
            except CodingError as broken:
                raise BadRequest(
                    f"The request body {broken}. Send it again, or uncompressed.",
                    code="invalid_content_encoding",
                ) from None
        except asyncio.CancelledError:
            task.uncancel()
            if task in self._late:
                raise TooLate(
                    "The request did not arrive whole within the time limit. Send it again; who "
                    "runs this gateway can raise timeouts.body_seconds."
                ) from None
            raise Overloaded(
                "This gateway has stopped before the whole request had arrived. Try again.",
                code="shutting_down",
            ) from None
        finally:
            del self._arriving[task]
            self._late.discard(task)


async def _read(receive: Receive, announced: bytes | None, limit: int) -> bytes:
    if announced is not None and announced.isdigit() and int(announced) > limit:
        raise TooLarge(_too_large(int(announced), limit))
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise TooLarge(_too_large(size, limit))
        parts.append(part)
        if not message.get("more_body"):
            return parts[0] if len(parts) == 1 else b"".join(parts)


async def _inflated(inflater: Inflater, packed: bytes, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    for part in inflater.pieces(packed):
        size += len(part)
        if size > limit:
            raise TooLarge(_too_large(size, limit))
        parts.append(part)
        # A large body takes its time, and others wait for the same loop.
        await asyncio.sleep(0)
    inflater.end()
    return b"".join(parts)


def _too_large(size: int, limit: int) -> str:
    return (
        f"The request body has {size} bytes or more and the limit is {limit}. Send less, or ask "
        "whoever runs this gateway to raise gateway.body_bytes_max."
    )
