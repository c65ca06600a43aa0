"""Real gateways for tests over sockets: a data directory with keys, a configuration, raw clients.

`RawServer` is a backend that answers with whatever bytes a test gives it: what no HTTP server would
send, and what the fake backend has no script for.
"""

import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ledger.events import Event, Payload, payload_of
from streams.local.layout import Layout
from streams.log.reader import SpoolReader
from tests.support.fake_backend import KEY
from tests.support.processes import (
    Answer,
    Gateway,
    call,
    free_port,
    tollbook,
    tollbook_json,
    wait_until,
)

SOON_SECONDS = 10.0
"""How long a test waits for what must happen; a shared machine may be slow."""

PAUSE, PAUSE_SECONDS = b"<pause>", 0.05
"""Where the answer of a `RawServer` waits, so that what comes behind is read on its own."""

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"

BY_THEMSELVES = ("backends", "counters")
"""Topics of what a gateway tells of its backends, whether or not anybody calls it."""

Table = Mapping[str, Any]


class Key(msgspec.Struct, frozen=True):
    """One user key as it was shown when it was made."""

    id: str
    secret: str


def new_key(data: Path, name: str, *args: str) -> Key:
    made = tollbook_json(data, "keys", "create", "--name", name, *args)
    return Key(made["id"], made["key"])


def toml(tables: Mapping[str, Table | Sequence[Table]]) -> str:
    """`tables` as TOML: a list is a table for each of its members."""
    lines = []
    for name, table in tables.items():
        for one in [table] if isinstance(table, Mapping) else table:
            lines.append(f"[{name}]" if table is one else f"[[{name}]]")
            lines += [f"{field} = {json.dumps(value)}" for field, value in one.items()]
    return "\n".join(lines) + "\n"


def backend(url: str, name: str, **more: Any) -> dict[str, Any]:
    """One [[backends]] table; the fake's key is read from a file beside the configuration."""
    return {"url": url, "name": name, "key": "file:server-key"} | more


@contextlib.contextmanager
def door(
    directory: Path,
    backends: Sequence[Table],
    *args: str,
    ready: bool = True,
    **tables: Table | Sequence[Table],
) -> Iterator[Gateway]:
    """`tollbook serve` with a configuration file; its data is `directory`/data, shared by all."""
    port = free_port()
    (directory / "server-key").write_text(KEY + "\n")
    config = directory / f"{port}.toml"
    config.write_text(toml({**tables, "backends": backends}))
    process = Gateway(
        directory / "data", port, directory / f"serve-{port}.log", "--config", str(config), *args
    )
    try:
        if ready:
            process.wait_ready()
        yield process
    finally:
        process.stop()


def facts(data: Path) -> list[tuple[Event, Payload]]:
    """Every event in the spools of `data`, oldest spool first, but for those that come by
    themselves."""
    found = []
    for directory in Layout(data).spool_directories():
        reader, offset = SpoolReader(directory), 0
        while (chunk := reader.read(offset)).events:
            events = [event for event in chunk.events if event.topic not in BY_THEMSELVES]
            found += [(event, payload_of(event)) for event in events]
            offset = chunk.next_offset
        reader.close()
    return found


def told(data: Path, request_id: str) -> list[Any]:
    """What the spools tell of one request, in order."""
    return [said for _, said in facts(data) if getattr(said, "request_id", None) == request_id]


def ended(data: Path, request_id: str) -> Any:
    """The end of one request, waited for."""

    def end() -> Any:
        return next((s for s in told(data, request_id) if "Finished" in type(s).__name__), None)

    return wait_until(f"{request_id} has an end", end, SOON_SECONDS)


def spool_bytes(data: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(data.rglob("*.seg")))


def ask(
    gateway: Gateway,
    key: Key | None,
    model: str,
    path: str = CHAT,
    headers: dict[str, str] | None = None,
    **fields: Any,
) -> Answer:
    """One call of a model by the standard library."""
    said: Table = {"messages": []} if path == CHAT else {"prompt": "x"}
    body = {"model": model, **said, **fields}
    return call(gateway.url + path, body, key.secret if key else None, headers)


def checked_error(answer: Answer, status: int, code: str | None) -> str:
    """The message of an error of our own, whose whole shape is checked."""
    assert answer.status == status, answer.body
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"].startswith("req_")
    said = answer.json()
    assert set(said) == {"error"}
    assert set(said["error"]) == {"message", "type", "param", "code"}
    assert said["error"]["code"] == code
    kind = "server_error" if status >= 500 else "invalid_request_error"
    assert said["error"]["type"] == kind
    message: str = said["error"]["message"]
    assert message.endswith(".")
    return message


opened: list["RawClient"] = []
"""Clients of the test at work: one that fails may leave some of them open."""


class RawClient:
    """One connection to a gateway, to be broken off at any moment."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=SOON_SECONDS)
        self.seen = b""
        opened.append(self)

    def send(self, path: str, key: Key, body: Any, extra: str = "") -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key.secret}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n{extra}\r\n"
        )
        self.socket.sendall(head.encode() + data)

    def read_until(self, mark: bytes) -> bytes:
        """Everything up to `mark` and what came with it; at the end of the stream whatever came."""
        while mark not in self.seen:
            part = self.socket.recv(65_536)
            if not part:
                break
            self.seen += part
        return self.seen

    def header(self, name: str) -> str:
        """A header of the answer, whose head is waited for."""
        head = self.read_until(b"\r\n\r\n").partition(b"\r\n\r\n")[0].decode("latin-1")
        found = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:])
        return found[name]

    def break_off(self, *, reset: bool = False) -> None:
        """Hang up: in order, or by a reset as a process that is killed does."""
        if reset:
            now = struct.pack("ii", 1, 0)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, now)
        self.socket.close()


class RawServer:
    """A backend whose answer to a POST are the bytes that `answer` makes of the request's bytes."""

    def __init__(self, answer: Callable[[str, bytes], bytes]) -> None:
        self._answer = answer
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._stopped = False
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.requests: list[bytes] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped = True
        with socket.create_connection(self._socket.getsockname()):
            pass
        self._thread.join(SOON_SECONDS)
        self._socket.close()

    def _serve(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            with connection, contextlib.suppress(OSError):
                if self._stopped:
                    return
                connection.settimeout(SOON_SECONDS)
                self._one(connection)

    def _one(self, connection: socket.socket) -> None:
        request = b""
        while b"\r\n\r\n" not in request:
            part = connection.recv(65_536)
            if not part:
                return
            request += part
        if request.startswith(b"GET"):
            body = b'{"object":"list","data":[]}'
            head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
            connection.sendall(head % len(body) + body)
            return
        head_end = request.index(b"\r\n\r\n") + 4
        lines = request[:head_end].lower().split(b"\r\n")
        length = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
        while len(request) < head_end + length:
            request += connection.recv(65_536)
        self.requests.append(request)
        model = json.loads(request[head_end:])["model"]
        for part in self._answer(model, request).split(PAUSE):
            connection.sendall(part)
            time.sleep(PAUSE_SECONDS)


@contextlib.contextmanager
def raw_server(answer: Callable[[str, bytes], bytes]) -> Iterator[RawServer]:
    server = RawServer(answer)
    try:
        yield server
    finally:
        server.stop()


def revoke(data: Path, key: Key) -> None:
    tollbook(data, "keys", "revoke", key.id)
