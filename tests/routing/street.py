"""A street of model servers in one thread, that die, come back, freeze and slow down on demand.

They are the fakes of `tests.support`, in the process of the test: so a test can look into their
books at any moment, and no time goes into starting processes. An address stays a server's own while
it is dead: what connects there is refused, and nobody else gets the port meanwhile.
"""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeVar

from tests.gateway.doors import SOON_SECONDS, backend
from tests.support.fake_backend import KEY, Connection, FakeBackend
from tests.support.processes import wait_until
from tests.support.shapes import Engine

T = TypeVar("T")

TAG = "load"
"""The `user` of the calls that a test makes; probes of the gateway have none."""


class Server:
    """One model server at an address of its own. It is dead until it is started."""

    def __init__(self, street: "Street", name: str, fake: FakeBackend) -> None:
        self.name, self.fake = name, fake
        self._street = street
        self._bound = _bound(0)
        self._serving: asyncio.Server | None = None
        fake.port = self._bound.getsockname()[1]

    @property
    def table(self) -> dict[str, Any]:
        """Its [[backends]] table."""
        return backend(self.fake.url, self.name)

    def start(self) -> None:
        """Listen at its address, with the connections of a new process: none."""
        self._street.run(self._start)

    def kill(self) -> None:
        """Refuse connections from now on, and break off those that are open."""
        self._street.run(self._kill)

    def freeze(self) -> None:
        self._street.run(_as_awaitable(self.fake.freeze))

    def thaw(self) -> None:
        self._street.run(_as_awaitable(self.fake.thaw))

    def become(self, script: str | None) -> None:
        """Treat every call by `script` from now on, null: as the call says."""
        self.fake.always = script

    @contextlib.contextmanager
    def being(self, script: str) -> Iterator[None]:
        """Treat every call by `script` within the block."""
        self.become(script)
        try:
            yield
        finally:
            self.become(None)

    def calls(self) -> list[Any]:
        """The calls of tests that it has seen, in order; not the gateways' own."""

        def read() -> list[Any]:
            return [call for call in self.fake.calls if call.tag == TAG]

        return self._street.run(_as_awaitable(read))

    def running(self) -> int:
        """Calls that it is at work on now."""
        return sum(call.end == "open" for call in self.calls())

    def has_calls_by_the_first_list(self, seen: int, lists: int) -> None:
        """It has calls again before it was asked for its models a second time.

        `seen` and `lists` are the calls and the lists that it knew when it came back. A count of
        lists, unlike a clock, does not run on while the machine is busy with something else.
        """
        first = wait_until(
            f"{self.name} has calls again", lambda: self.calls()[seen:], SOON_SECONDS
        )[0]
        asked = first.lists - lists
        assert asked <= 1, f"{self.name} was asked for its models {asked} times and had no request"

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        self._serving = await loop.create_server(lambda: Connection(self.fake), sock=self._bound)

    async def _kill(self) -> None:
        if self._serving is not None:
            self._serving.close()
            self._serving = None
            self._bound = _bound(self.fake.port)
        self.fake.thaw()
        self.fake.break_connections()
        await asyncio.gather(*self.fake.tasks)

    async def _leave(self) -> None:
        await self._kill()
        self._bound.close()


class Street:
    """Servers by name, and the loop in which they live."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.servers: dict[str, Server] = {}

    def run(self, job: Callable[[], Awaitable[T]]) -> T:
        """Do `job` in the servers' loop and wait for it."""

        async def doing() -> T:
            return await job()

        return asyncio.run_coroutine_threadsafe(doing(), self._loop).result(SOON_SECONDS)

    def add(
        self, name: str, models: Sequence[str] = ("fake",), engine: Engine = "vllm", **started: bool
    ) -> Server:
        """A further server, which serves unless `started` is false."""

        async def make() -> FakeBackend:
            return FakeBackend(engine, KEY, tuple(models), name)

        server = self.servers[name] = Server(self, name, self.run(make))
        if started.get("started", True):
            server.start()
        return server

    def close(self) -> None:
        for server in self.servers.values():
            self.run(server._leave)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(SOON_SECONDS)
        self._loop.close()


@contextlib.contextmanager
def street(*names: str) -> Iterator[Street]:
    """A street with servers of these names, all of them up."""
    opened = Street()
    try:
        for name in names:
            opened.add(name)
        yield opened
    finally:
        opened.close()


def _bound(port: int) -> socket.socket:
    """A port that is taken and refuses connections."""
    taken = socket.socket()
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    taken.bind(("127.0.0.1", port))
    return taken


def _as_awaitable(job: Callable[[], T]) -> Callable[[], Awaitable[T]]:
    async def doing() -> T:
        return job()

    return doing
