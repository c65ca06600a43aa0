"""ASGI's `send` as the relay's `Reply`, with the headers that every answer carries."""

from collections.abc import Awaitable, MutableMapping
from typing import Any

from starlette.types import Send

Headers = list[tuple[bytes, bytes]]
Message = MutableMapping[str, Any]


class AsgiReply:
    """One answer. `x-request-id` is ours; the client's own id is given back beside it.

    `start` and `body` hand on the server's own awaitable: a coroutine around it would only cost.
    """

    __slots__ = ("_own", "_send", "started")

    def __init__(self, send: Send, request_id: str, client_id: bytes | None) -> None:
        self._send = send
        self.started = False
        self._own: Headers = [(b"x-request-id", request_id.encode())]
        if client_id is not None:
            self._own.append((b"x-client-request-id", client_id))

    def start(self, status: int, headers: Headers) -> Awaitable[None]:
        """Send the head of the answer."""
        self.started = True
        return self._send(
            {"type": "http.response.start", "status": status, "headers": self._own + headers}
        )

    def body(self, data: bytes, *, more: bool) -> Awaitable[None]:
        """Send bytes of the body; `more=False` ends the answer."""
        return self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def whole(self, status: int, body: bytes, headers: Headers | None = None) -> None:
        """Send an answer of our own in JSON."""
        length = (b"content-length", b"%d" % len(body))
        await self.start(status, [(b"content-type", b"application/json"), length, *(headers or ())])
        await self.body(body, more=False)
