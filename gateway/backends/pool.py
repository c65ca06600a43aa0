"""The backends of this gateway: what is configured, and what they last said of themselves."""

import asyncio
from collections.abc import Sequence

from gateway.backends.port import BackendFailed, Client
from gateway.routing.policy import BackendView
from gateway.wire.models import listed
from gateway.wire.requests import Engine

PROBE_SECONDS = 2.0
"""How often each backend is asked for its models, and so the longest that a recovered one waits."""

PROBE_SECONDS_MAX = 5.0
"""A server that needs longer for its list of models is busy beyond use or hangs."""


SECRET_CHARACTERS_MIN = 12
"""A shorter key is a placeholder such as EMPTY; to hide it would only mangle texts that say it."""


FIRST_TOKENS = 8
"""The moving average of times to the first token forgets the older half in about five answers."""


class Backend:
    """One model server. `models` null means that any name is passed on to it.

    `known` are names that it serves for sure: those that were set, or that it listed itself.
    `secret` is what no answer may show. `requests` and `failures` count this gateway's attempts.
    `first_token_us` is a moving average of answers here, null before the first.
    """

    __slots__ = (
        "_fixed_engine",
        "_fixed_models",
        "authorization",
        "backend_id",
        "engine",
        "failures",
        "fault",
        "first_token_us",
        "in_flight",
        "known",
        "models",
        "requests",
        "secret",
        "up",
        "url",
    )

    def __init__(
        self,
        backend_id: str,
        url: str,
        *,
        key: str | None,
        engine: Engine | None,
        models: Sequence[str] | None,
        any_model: bool,
    ) -> None:
        self.backend_id = backend_id
        self.url = url
        self.authorization = None if key is None else f"Bearer {key}"
        self.secret = key.encode() if key and len(key) >= SECRET_CHARACTERS_MIN else None
        self.engine: Engine = engine or "openai"
        self.models: frozenset[str] | None = None if any_model else frozenset(models or ())
        self.known = self.models or frozenset()
        self.in_flight = self.requests = self.failures = 0
        self.first_token_us: int | None = None
        self.up = False
        self.fault: str | None = "it was not asked yet"
        self._fixed_engine = engine is not None
        self._fixed_models = any_model or bool(models)

    def learn(self, status: int, body: bytes) -> None:
        """Take what `/v1/models` answered. A list that cannot be read leaves the last one."""
        said = listed(body) if status == 200 else None
        if said is None:
            self.fault = (
                "it refuses the server key (401); see 'key' of this backend"
                if status == 401
                else f"/v1/models answered {status}"
            )
            # With fixed models a server without a model list is as good as any other.
            self.up = self._fixed_models and status in (404, 405)
            return
        self.up, self.fault = True, None
        if not self._fixed_engine:
            self.engine = said.engine
        if self.models is None:
            self.known = frozenset(said.models)
        elif not self._fixed_models:
            self.known = self.models = frozenset(said.models)

    def failed(self, reason: str) -> None:
        """It did not answer: others go first until it is heard of again."""
        self.up, self.fault = False, reason

    def first_token(self, seconds: float) -> None:
        """Note how long an answer took to its first chunk with text."""
        came, known = int(seconds * 1_000_000), self.first_token_us
        self.first_token_us = came if known is None else known + (came - known) // FIRST_TOKENS

    def view(self) -> BackendView:
        """What routing may know of it at this moment."""
        return BackendView(self.backend_id, self.models, self.up, self.in_flight)


class Pool:
    """All backends, kept up to date by one task for each.

    `any_model` is true if some backend takes any model name.
    """

    def __init__(self, backends: Sequence[Backend], client: Client) -> None:
        self.backends = {backend.backend_id: backend for backend in backends}
        self._client = client
        self._served: frozenset[str] = frozenset()
        self.any_model = any(backend.models is None for backend in backends)
        self._tasks: list[asyncio.Task[None]] = []

    def served(self) -> frozenset[str]:
        """Every model name that some backend is known to serve."""
        return self._served

    def views(self) -> list[BackendView]:
        """One view of each backend, for `choose`."""
        return [backend.view() for backend in self.backends.values()]

    async def start(self) -> None:
        """Ask every backend once, at most `PROBE_SECONDS_MAX`, then go on in the background."""
        await asyncio.gather(*(self._ask(backend) for backend in self.backends.values()))
        self._tasks = [
            asyncio.create_task(self._watch(backend)) for backend in self.backends.values()
        ]

    async def stop(self) -> None:
        """End the background tasks."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _watch(self, backend: Backend) -> None:
        while True:
            await asyncio.sleep(PROBE_SECONDS)
            await self._ask(backend)

    async def _ask(self, backend: Backend) -> None:
        try:
            status, body = await self._client.fetch(
                backend, "/v1/models", seconds=PROBE_SECONDS_MAX
            )
        except BackendFailed as failed:
            backend.failed(str(failed))
        else:
            backend.learn(status, body)
        self._served = frozenset(name for each in self.backends.values() for name in each.known)
