"""A server that is made once and then started, stopped and killed on the same data and ports."""

from abc import ABC, abstractmethod
from pathlib import Path

from gateway.dev.errors import DevFailed
from gateway.dev.server import Server
from gateway.wards.ports import free_ports


class Lasting(ABC):
    """A server with its data in `folder`, where what it keeps outlives it.

    `name` stands in messages, `log` is the file in the folder that gets what it says, and `ready`
    is what it says there once it serves. Its `ports` are chosen once and stay the same.
    """

    def __init__(self, folder: Path, name: str, *, log: str, ready: bytes, ports: int) -> None:
        self.folder = folder
        self.log = folder / log
        self._name, self._says_ready = name, ready
        self._server: Server | None = None
        self._log_start = 0
        kept = folder / ("port" if ports == 1 else "ports")
        if not kept.exists():
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            kept.write_text(" ".join(map(str, free_ports(ports))))
        self._ports = tuple(map(int, kept.read_text().split()))

    @property
    def pid(self) -> int:
        """PID of the server. Raises `DevFailed` if it is not started."""
        return self._made().pid

    def start(self) -> None:
        """Start it and wait until it serves. Raises `WardFailed` with words."""
        if self._server is None:
            self._server = self._make()
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        self._server.start(self._is_ready)

    def stop(self) -> None:
        """End it in order, by force if it does not go; returns when it is gone."""
        if self._server is not None:
            self._server.stop()

    def kill(self) -> None:
        """`kill -9`, and wait until it is gone."""
        self._made().kill()

    def restart(self) -> None:
        """Stop it in order if it runs, and start it again on the same address and data."""
        self.stop()
        self.start()

    @abstractmethod
    def _make(self) -> Server:
        """Put into the folder what the server needs. Raises `DevFailed` with words."""

    def _made(self) -> Server:
        if self._server is None:
            raise DevFailed(f"{self._name} is not started")
        return self._server

    def _is_ready(self) -> bool:
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return self._says_ready in log.read()
