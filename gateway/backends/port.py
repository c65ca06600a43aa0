"""What the gateway asks of a model server, whatever HTTP client answers."""

from collections.abc import Mapping
from typing import Protocol

from gateway.wire.requests import Engine


class BackendFailed(Exception):
    """A backend did not answer. `reason` is a stable word, the text is for a person.

    unreachable   no connection could be made
    lost          the connection broke; before the first byte nothing was delivered
    slow          a small document did not come within its time
    own_limit     this gateway cannot open another connection: no fault of the backend
    """

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Target(Protocol):
    """Where a call goes. `authorization` is the whole header value with the server's key."""

    backend_id: str
    url: str
    engine: Engine
    authorization: str | None


class Answer(Protocol):
    """A backend's answer whose head has arrived. Closing it early stops the backend's work.

    `content_type` is in lower case.
    """

    status: int
    content_type: str
    headers: list[tuple[bytes, bytes]]

    async def read(self) -> bytes:
        """The next bytes as they come; empty at a clean end. Raises `BackendFailed` (`lost`)."""
        ...

    async def read_all(self) -> bytes:
        """The whole body. Raises `BackendFailed` (`lost`)."""
        ...

    def close(self) -> None:
        """Give the connection back if the body was read to its end, else break it. Safe twice."""
        ...


class Client(Protocol):
    """The HTTP client. It sets no time limits but the one to connect: the relay keeps the rest."""

    async def open(
        self, target: Target, path: str, body: bytes, headers: Mapping[str, str]
    ) -> Answer:
        """POST `body` and wait for the head of the answer. Raises `BackendFailed`."""
        ...

    async def fetch(
        self, target: Target, path: str, *, seconds: float, body: bytes | None = None
    ) -> tuple[int, bytes]:
        """GET a small document within `seconds`, or POST `body` (JSON) for it. Raises
        `BackendFailed`."""
        ...
