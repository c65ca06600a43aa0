"""A gateway that is told to stop while somebody keeps it waiting."""

import signal
import socket
import time
from pathlib import Path
from typing import Any

from ledger.events import RequestFinished, SourceClosed
from tests.gateway.doors import CHAT, RawClient, backend, door, facts, new_key, raw_server, told

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
CHUNK = b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % (b"x" * 60_000)
STOP_SECONDS_MAX = 6.0


def test_a_client_that_does_not_read_keeps_no_end_from_being_written(tmp_path: Path) -> None:
    """Nor does a tokenizer that hangs: this backend serves one connection at a time."""
    key = new_key(tmp_path / "data", "k")
    tables: Any = {"gateway": {"models": ["*"], "shutdown_seconds_max": 1.0, "scrape_seconds": 0}}
    with (
        raw_server(lambda model, request: HEAD + CHUNK * 100) as raw,
        door(tmp_path, [backend(raw.url, "raw")], **tables) as gateway,
    ):
        client = RawClient(gateway.port)
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.send(CHAT, key, {"model": "m", "stream": True, "messages": []})
        request_id = client.header("x-request-id")
        began = time.monotonic()
        gateway.popen.send_signal(signal.SIGTERM)
        gateway.popen.wait(STOP_SECONDS_MAX)
        assert time.monotonic() - began < STOP_SECONDS_MAX
        client.break_off()
    last = told(tmp_path / "data", request_id)[-1]
    assert isinstance(last, RequestFinished)
    assert (last.outcome, last.basis) == ("shutdown", "counted")
    assert any(isinstance(said, SourceClosed) for _, said in facts(tmp_path / "data"))
