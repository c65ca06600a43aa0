"""What a review of the gateway found: a client that reads nothing held its answer in memory."""

import contextlib
import errno
import socket
import sys
from collections.abc import Iterator

import pytest

from gateway import wiring


@contextlib.contextmanager
def accepted() -> Iterator[socket.socket]:
    """The gateway's side of a connection whose client never reads."""
    with wiring.bind("127.0.0.1", 0) as door, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(door.getsockname())
        served, _ = door.accept()
        with served:
            yield served


def test_a_client_that_vanished_without_a_word_is_noticed() -> None:
    with accepted() as served:
        assert served.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


if sys.platform == "linux":

    def test_a_connection_whose_client_reads_nothing_is_ended(
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(wiring, "UNREAD_SECONDS_MAX", 1)
        with accepted() as served:
            served.settimeout(20)
            with pytest.raises(OSError) as ended:
                while True:
                    served.send(bytes(65536))
        assert ended.value.errno in (errno.ETIMEDOUT, errno.EPIPE, errno.ECONNRESET)
