"""A client that behaves as its plan says, over a raw socket."""

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import Awaitable, Callable

import msgspec

from tests.proof.plans import SPOKEN, Plan

BOUNDARY = "a-boundary-of-the-form"
SECONDS_MAX = 30.0
"""How long one script may take; a shared machine may be slow."""


class Got(msgspec.Struct, kw_only=True):
    """What the client got: all of it if `whole`. `late`: it waited for more in vain."""

    status: int = 0
    headers: dict[str, str] = {}
    body: bytes = b""
    whole: bool = False
    left: bool = False
    late: bool = False


class Reader:
    """Takes an answer apart as it comes."""

    def __init__(self) -> None:
        self.got = Got()
        self._raw = bytearray()
        self._length: int | None = None

    def take(self, data: bytes) -> None:
        self._raw += data
        if not self.got.status and not self._head():
            return
        if self._length is None:
            self._chunks()
            return
        self.got.body += bytes(self._raw)
        self._raw.clear()
        self.got.whole = len(self.got.body) >= self._length

    def _head(self) -> bool:
        end = self._raw.find(b"\r\n\r\n")
        if end < 0:
            return False
        first, *lines = bytes(self._raw[:end]).decode("latin-1").split("\r\n")
        del self._raw[: end + 4]
        self.got.status = int(first.split()[1])
        pairs = (line.split(": ", 1) for line in lines)
        self.got.headers = {name.lower(): value for name, value in pairs}
        length = self.got.headers.get("content-length")
        self._length = None if length is None else int(length)
        return True

    def _chunks(self) -> None:
        while not self.got.whole:
            line = self._raw.find(b"\r\n")
            if line < 0:
                return
            size = int(bytes(self._raw[:line]), 16)
            if len(self._raw) < line + 2 + size + 2:
                return
            self.got.body += bytes(self._raw[line + 2 : line + 2 + size])
            del self._raw[: line + 2 + size + 2]
            self.got.whole = size == 0


def request_of(plan: Plan, port: int, key: str, tag: str) -> bytes:
    """The request of `plan` as bytes."""
    fields = plan.body(tag)
    if plan.path in SPOKEN:
        kind = f"multipart/form-data; boundary={BOUNDARY}"
        parts = [
            f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
            for name, value in fields.items()
        ]
        file = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="a.wav"'
        parts.append(f"{file}\r\nContent-Type: audio/wav\r\n\r\nRIFF\r\n--{BOUNDARY}--\r\n")
        body = "".join(parts).encode()
    else:
        kind, body = "application/json", json.dumps(fields).encode()
    head = (
        f"POST {plan.path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def play(
    plan: Plan,
    port: int,
    key: str,
    tag: str,
    *,
    arrived: Callable[[], Awaitable[None]],
    enough: Callable[[Got], bool],
) -> Got:
    """Send the request of `plan`, and hang up as it says: once `arrived`, where the client leaves
    before the first byte, else once `enough` of the answer is there."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    parser = Reader()
    try:
        async with asyncio.timeout(SECONDS_MAX):
            writer.write(request_of(plan, port, key, tag))
            if plan.client == "leaves_early":
                await arrived()
                parser.got.left = True
                return parser.got
            while not parser.got.whole and (data := await reader.read(65_536)):
                parser.take(data)
                if plan.client != "stays" and parser.got.status and enough(parser.got):
                    parser.got.left = True
                    break
    except TimeoutError:
        parser.got.late = True
    except ConnectionError:
        pass  # what came before it stands
    finally:
        await _hang_up(writer, reset=plan.reset and parser.got.left)
    return parser.got


async def _hang_up(writer: asyncio.StreamWriter, *, reset: bool) -> None:
    if reset:
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
