"""uvicorn around the app: measured faster than granian here."""

import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

BACKLOG = 2048
"""Connections that may wait while the event loop is busy."""


STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Server(uvicorn.Server):
    """Tells the gateway at the first signal to stop, before uvicorn closes its door."""

    def __init__(self, config: uvicorn.Config, on_stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_stop = on_stop

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, but without raising the signal again at the end: that would end the process
        before it has said that its spool is complete."""
        handlers = {number: signal.signal(number, self.handle_exit) for number in STOP_SIGNALS}
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGTERM or Ctrl-C; the second Ctrl-C does not wait for what runs."""
        self._on_stop()
        super().handle_exit(sig, frame)

    def stop(self) -> None:
        """Stop as SIGTERM does, for whoever has no signal to send."""
        self.handle_exit(signal.SIGTERM, None)


def make_server(app: ASGIApp, *, grace_seconds: float, on_stop: Callable[[], None]) -> Server:
    """A server for `app`; `grace_seconds` is how long running requests may go on after a stop."""
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    config = uvicorn.Config(
        app,
        interface="asgi3",
        loop="none",
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=max(1, round(grace_seconds)),
    )
    return Server(config, on_stop)


async def serve(server: Server, door: socket.socket) -> None:
    """Serve connections to the bound socket `door` until the server is told to stop."""
    await server.serve(sockets=[door])
