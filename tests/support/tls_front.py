"""TLS in front of a Postgres whose build has none: the real handshake of libpq, then plain bytes.

A client that does not ask for TLS is turned away, as `hostssl` does.
"""

import contextlib
import selectors
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

SSL_REQUEST = b"\x00\x00\x00\x08\x04\xd2\x16\x2f"
GSS_REQUEST = b"\x00\x00\x00\x08\x04\xd2\x16\x30"
PIECE_BYTES = 1 << 16


class TlsFront:
    """Listens on a port of loopback and passes what it decrypts on to `port`."""

    def __init__(self, port: int, certificate: Path, key: Path) -> None:
        self._behind = port
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self._open: list[socket.socket] = []
        self._start(self._listen)
        self.port: int = self._listener.getsockname()[1]

    def close(self) -> None:
        """Cut every connection and wait for its threads."""
        for connection in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        for thread in self._threads:
            thread.join()

    def _start(self, work: Callable[..., None], *args: socket.socket) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _listen(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(client)
            self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            stack.callback(client.close)
            asked = client.recv(8, socket.MSG_WAITALL)
            if asked == GSS_REQUEST:
                client.sendall(b"N")
                asked = client.recv(8, socket.MSG_WAITALL)
            if asked != SSL_REQUEST:
                return
            client.sendall(b"S")
            secure = stack.enter_context(self._context.wrap_socket(client, server_side=True))
            server = stack.enter_context(socket.create_connection(("127.0.0.1", self._behind)))
            self._open += [secure, server]
            _both_ways(secure, server)


def _both_ways(secure: ssl.SSLSocket, server: socket.socket) -> None:
    """Pass bytes on until either side ends. One thread, since a TLS socket takes no two."""
    with selectors.DefaultSelector() as selector:
        selector.register(secure, selectors.EVENT_READ, server)
        selector.register(server, selectors.EVENT_READ, secure)
        while True:
            for ready, _ in selector.select():
                source: socket.socket = ready.fileobj  # type: ignore[assignment]
                while True:
                    piece = source.recv(PIECE_BYTES)
                    if not piece:
                        return
                    ready.data.sendall(piece)
                    if not (isinstance(source, ssl.SSLSocket) and source.pending()):
                        break


@contextlib.contextmanager
def tls_front(port: int, certificate: Path, key: Path) -> Iterator[TlsFront]:
    front = TlsFront(port, certificate, key)
    try:
        yield front
    finally:
        front.close()
