"""The ladder of probes: what has to hold for a backend to answer, one rung after the other, and in
words what does not. Dead is told apart from "not at this address, but over there".
"""

import asyncio
import errno
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Final
from urllib.parse import urlsplit

import msgspec

from gateway.backends.backend import Backend, Generated, Rung
from gateway.backends.port import BackendFailed, Client
from gateway.wire.models import listed
from gateway.wire.requests import Engine
from ledger.clock import Clock
from ledger.words import counted

USUAL_PORTS: Final = {8000: "vLLM", 30000: "SGLang", 8080: "llama.cpp"}
"""Where engines listen if nobody says otherwise."""

LOOK_SECONDS: Final = 1.0
"""For a model server to answer that is looked for on this machine or on the same host."""

_LOOPBACK: Final = ("127.0.0.1", "::1")


class Step(msgspec.Struct, frozen=True):
    """One rung: does it hold (null: it was not tried), why, and how long it took to know."""

    rung: Rung
    holds: bool | None
    words: str
    seconds: float = 0.0


class Elsewhere(msgspec.Struct, frozen=True):
    """Where a model server listens. `place` may be shown to everybody, `url` to the operator."""

    place: str
    url: str


class _Address(msgspec.Struct):
    """A `Target` without a key: what is somewhere else may not be ours."""

    url: str
    backend_id: str = ""
    engine: Engine = "openai"
    authorization: str | None = None


LIST_SECONDS_MAX: Final = 5.0
"""For the list of models."""

Say = Callable[[Step], None]
Token = Callable[[str], Awaitable[Generated | None]]
"""Asks for one token of a model; null if that cannot be done now."""

ORDER: Final[tuple[Rung, ...]] = ("name", "port", "tls", "key", "list", "model", "generation")


class Ladder:
    """Climbs for the backends of one gateway, by its client. `connect_seconds` is for each of the
    rungs below HTTP."""

    def __init__(self, client: Client, clock: Clock, connect_seconds: float) -> None:
        self._client = client
        self._clock = clock
        self._connect_seconds = connect_seconds

    async def climb(
        self, backend: Backend, token: Token | None, say: Say = lambda _: None
    ) -> list[Step]:
        """Every rung for `backend`; those behind the first that does not hold are not tried.

        `say` hears of each at once. `token` is the very path of a request; without it the last
        rung is not tried.
        """
        steps: list[Step] = []

        def tell(*more: Step) -> bool:
            for step in more:
                steps.append(step)
                say(step)
            return all(step.holds is not False for step in steps)

        low = await self.reach(backend.url)
        if low[-1].rung == "port" and (found := await self.elsewhere(backend.url)):
            low[-1] = msgspec.structs.replace(low[-1], words=_but(low[-1].words, found.url))
        if tell(*low) and tell(*await self._lists(backend)):
            tell(*await self._generates(backend, token))
        tried = {step.rung for step in steps}
        tell(*(Step(rung, None, _BEFORE) for rung in ORDER if rung not in tried))
        # Some servers give their list to anybody, and ask for the key only before they generate.
        last = {step.rung: step for step in steps}
        return [last[rung] for rung in ORDER]

    async def diagnose(self, backend: Backend) -> tuple[Rung, str] | None:
        """Why `backend` cannot be reached, in words without any address; null if it can be."""
        url = backend.url
        for step in await self.reach(url):
            if step.holds is False:
                found = await self.elsewhere(url) if step.rung == "port" else None
                return step.rung, step.words if found is None else _but(step.words, found.place)
        return None

    async def reach(self, url: str) -> list[Step]:
        """The rungs below HTTP: the name resolves, the port accepts, TLS is agreed on. The last is
        the first that does not hold. A name with several addresses needs one that accepts."""
        seconds, monotonic = self._connect_seconds, self._clock.monotonic
        parts = urlsplit(url)
        host, secure = parts.hostname or "", parts.scheme == "https"
        port = parts.port or (443 if secure else 80)
        began = monotonic()
        try:
            async with asyncio.timeout(seconds):
                addresses = await _addresses(host, port)
        except TimeoutError:
            return [Step("name", False, f"its name does not resolve within {seconds:g} s", seconds)]
        except (OSError, UnicodeError):
            return [Step("name", False, "its name does not resolve", monotonic() - began)]
        steps = [
            Step("name", True, counted(len(addresses), "address", "addresses"), monotonic() - began)
        ]
        began = monotonic()
        tried = await asyncio.gather(*(_accepts(one, port, seconds) for one in addresses))
        why = next((words for words in tried if words is None), tried[0])
        steps.append(Step("port", why is None, why or "it accepts", monotonic() - began))
        if why is None:
            good = next(one for one, words in zip(addresses, tried, strict=True) if words is None)
            steps.append(await self._tls(good, port, host) if secure else _NO_TLS)
        return steps

    async def elsewhere(self, url: str) -> Elsewhere | None:
        """A model server that listens near `url`, whose port refuses: on another address of this
        machine, as one does that was started for 127.0.0.1 alone, or on the same host at the port
        that an engine takes by itself. It is asked for its models without a key, since it may be
        anybody's."""
        parts = urlsplit(url)
        host, scheme = parts.hostname or "", parts.scheme
        port = parts.port or (443 if scheme == "https" else 80)
        try:
            addresses = await _addresses(host, port)
        except (OSError, UnicodeError):
            return None
        places: list[Elsewhere] = []
        if any(_is_here(address) for address in addresses):
            others = [one for one in (*_LOOPBACK, *await _own()) if one not in addresses]
            for one in dict.fromkeys(others):
                place = "the loopback" if one in _LOOPBACK else "another address"
                places.append(Elsewhere(f"{place} of this machine", _url(scheme, one, port)))
        for usual, engine in USUAL_PORTS.items():
            if usual != port:
                place = f"port {usual} of the same host, where {engine} listens by itself"
                places.append(Elsewhere(place, _url("http", host, usual)))
        found = await asyncio.gather(
            *(_is_model_server(place.url, self._client) for place in places)
        )
        return next((place for place, yes in zip(places, found, strict=True) if yes), None)

    async def _tls(self, address: str, port: int, host: str) -> Step:
        seconds, monotonic = self._connect_seconds, self._clock.monotonic
        began = monotonic()
        words = None
        try:
            async with asyncio.timeout(seconds):
                _, writer = await asyncio.open_connection(
                    address, port, ssl=ssl.create_default_context(), server_hostname=host
                )
            writer.close()
        except TimeoutError:
            words = f"no TLS within {seconds:g} s"
        except ssl.SSLCertVerificationError as wrong:
            words = f"its certificate is not good: {wrong.verify_message}"
        except ssl.SSLError as wrong:
            plain = wrong.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
            words = "it speaks no TLS; write http://" if plain else f"TLS fails: {wrong.reason}"
        except OSError:
            words = "it breaks off TLS"
        return Step("tls", words is None, words or "agreed on", monotonic() - began)

    async def _lists(self, backend: Backend) -> list[Step]:
        """The rungs of `/v1/models`: the key is taken, the list can be read, and the models that
        are set for this backend are in it."""
        monotonic = self._clock.monotonic
        began = monotonic()
        try:
            status, body = await self._client.fetch(backend, "/v1/models", seconds=LIST_SECONDS_MAX)
        except BackendFailed as failed:
            return [Step("list", False, str(failed), monotonic() - began)]
        took = monotonic() - began
        backend.learn(status, body)
        if status in (401, 403):
            return [Step("key", False, f"it refuses the server key ({status})", took)]
        key = Step(
            "key", True, "not refused; not every server asks for it before it generates", took
        )
        said = listed(body) if status == 200 else None
        if said is None:
            # A server of models that are set needs no list.
            enough = status in (404, 405) and bool(backend.known)
            return [
                key,
                Step("list", None if enough else False, f"/v1/models answers {status}", took),
            ]
        wanted = backend.set_models or set(said.models)
        missing = sorted(wanted - set(said.models))
        has = ", ".join(said.models) or "nothing"
        lacks = f"it has {has}, and not {', '.join(missing)}" if missing else has
        return [
            key,
            Step("list", True, f"{counted(len(said.models), 'model')}, {said.engine}", took),
            Step("model", not missing and bool(said.models), lacks, took),
        ]

    async def _generates(self, backend: Backend, token: Token | None) -> list[Step]:
        model = min(backend.known, default=None)
        if token is None or model is None:
            return [Step("generation", None, "not tried: there is no model to ask for")]
        made = await token(model)
        if made is None:
            return [Step("generation", None, "not tried: this gateway cannot do it now")]
        if made.rung == "key":
            return [Step("key", False, made.words, made.seconds)]
        holds = {"made": True, "failed": False}.get(made.verdict)
        return [Step("generation", holds, f"{model}: {made.words}", made.seconds)]


def _but(words: str, place: str) -> str:
    return f"{words}; but a model server listens at {place}: mend the address of one of them"


_BEFORE: Final = "not tried: what is before it does not hold"
_NO_TLS: Final = Step("tls", None, "not asked for: the address begins with http://")


async def _addresses(host: str, port: int) -> list[str]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


async def _accepts(address: str, port: int, seconds: float) -> str | None:
    """Null if `address` takes a connection, else why not."""
    try:
        async with asyncio.timeout(seconds):
            _, writer = await asyncio.open_connection(address, port)
    except TimeoutError:
        return f"the port does not answer within {seconds:g} s: a firewall, or the machine is away"
    except OSError as refused:
        if refused.errno == errno.ECONNREFUSED:
            return "the port refuses: nothing listens there"
        return f"the port cannot be reached ({refused.strerror or type(refused).__name__})"
    writer.close()
    return None


async def _is_model_server(url: str, client: Client) -> bool:
    try:
        status, body = await client.fetch(_Address(url), "/v1/models", seconds=LOOK_SECONDS)
    except BackendFailed:
        return False
    if status == 200:
        return listed(body) is not None
    # Every engine answers so without its key. So does a gateway of ours, by this code.
    return status == 401 and b'"error"' in body and b"invalid_api_key" not in body


def _is_here(address: str) -> bool:
    """True if `address` is one of this machine: only such a one can be bound."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address.partition("%")[0], 0))
    except OSError:
        return False
    return True


async def _own() -> Sequence[str]:
    try:
        return await _addresses(socket.gethostname(), 0)
    except (OSError, UnicodeError):
        return ()


def _url(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
