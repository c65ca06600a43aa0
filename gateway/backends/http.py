"""The one home of the HTTP client. aiohttp: measured ten times cheaper than httpx upstream."""

import asyncio
import errno
from collections.abc import Iterator, Mapping
from functools import lru_cache

import aiohttp
from aiohttp.connector import Connection
from aiohttp.http import HttpProcessingError, RawResponseMessage

from gateway.backends.exchange import Came, Route, end, exchange
from gateway.backends.port import BackendFailed, Target
from gateway.wire.codings import CodingError, Inflater, is_plain

KEEPALIVE_SECONDS = 4.0
"""Below the 5 s after which vLLM closes an idle connection, so that none is reused too late."""

INFLATED_BYTES_MAX = 256 * 1024 * 1024
"""A compressed answer that must be held whole may become this large: twice the largest batch of
embeddings that anybody sends, and less than what would hurt."""

ROUTES_MAX = 1_000
"""Beyond so many, all are made anew: the keys of servers come and go."""

FETCHED_BYTES_MAX = 16 * 1024 * 1024
"""A list of models or a page of metrics is a thousandth of this."""

_DROPPED = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"transfer-encoding",
        b"content-length",
        b"content-encoding",  # usage is read from the body, so it is inflated here
        b"date",
        b"server",
        b"set-cookie",
        b"www-authenticate",
        b"x-request-id",
        b"x-client-request-id",
        b"x-tollbook-backend",
        b"x-tollbook-overhead-ms",
        b"x-tollbook-route",
        b"x-tollbook-fallback",
        b"upgrade",
        b"trailer",
        b"proxy-authenticate",
        b"alt-svc",
        b"location",
        b"content-location",
    )
)
"""A backend's headers that end here: hop by hop, ours to set, or about the server's own door and
where it is."""


_CLOSES_AFTER_STREAMS = "llamacpp"
"""The engine that says `Keep-Alive` and yet closes the connection behind a streamed answer, so that
whoever comes next on it may lose its request (one of twenty on a busy machine). It gets a
connection for each request, which also leaves its few threads to those that are at work."""

_OWN_LIMITS = (errno.EMFILE, errno.ENFILE)


@lru_cache(maxsize=512)
def _passed_name(name: bytes) -> bytes | None:
    """The name under which a header goes on, null if it ends here; servers send few different."""
    lower = name.lower()
    return None if lower in _DROPPED else lower


class HttpAnswer:
    """What came on a connection as the `Answer` port."""

    __slots__ = ("_connection", "_content", "content_type", "headers", "status")

    def __init__(
        self, connection: Connection, message: RawResponseMessage, content: aiohttp.StreamReader
    ) -> None:
        self._connection = connection
        self._content = content
        self.status = message.code
        self.content_type = message.headers.get("content-type", "").lower()
        self.headers = [
            (passed, value)
            for name, value in message.raw_headers
            if (passed := _passed_name(name)) is not None
        ]

    async def read(self) -> bytes:
        try:
            data = await self._content.readany()
        except (aiohttp.ClientError, OSError) as broken:
            raise _lost(broken) from broken
        if not data:
            self.close()
        return data

    async def read_all(self) -> bytes:
        parts = []
        try:
            while part := await self._content.readany():
                parts.append(part)
                if self._content.at_eof():
                    break
        except (aiohttp.ClientError, OSError) as broken:
            raise _lost(broken) from broken
        self.close()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        end(self._connection, whole=self._content.is_eof())


class PackedAnswer(HttpAnswer):
    """An answer that came compressed though nobody asked for that; it goes on inflated."""

    __slots__ = ("_inflater", "_pieces")

    def __init__(
        self,
        connection: Connection,
        message: RawResponseMessage,
        content: aiohttp.StreamReader,
        coding: bytes,
    ) -> None:
        super().__init__(connection, message, content)
        self._inflater = Inflater(coding)
        self._pieces: Iterator[bytes] = iter(())

    async def read(self) -> bytes:
        try:
            while not (piece := next(self._pieces, b"")):
                data = await super().read()
                if not data:
                    self._inflater.end()
                    return b""
                self._pieces = self._inflater.pieces(data)
        except CodingError as broken:
            raise _unreadable(broken) from None
        return piece

    async def read_all(self) -> bytes:
        parts = []
        size = 0
        while part := await self.read():
            size += len(part)
            if size > INFLATED_BYTES_MAX:
                raise BackendFailed(
                    "lost", f"its answer inflates to over {INFLATED_BYTES_MAX} bytes"
                )
            parts.append(part)
            await asyncio.sleep(0)
        return b"".join(parts)


def _answer(
    connection: Connection, message: RawResponseMessage, content: aiohttp.StreamReader
) -> HttpAnswer:
    """What came as an answer. Raises `BackendFailed` if it cannot be read here."""
    try:
        if not 200 <= message.code < 600:
            # A switch of protocols that nobody asked for has no answer behind it to meter, and a
            # status that does not exist cannot be passed on.
            raise BackendFailed("lost", f"it answered with status {message.code}")
        said = message.headers.get("content-encoding")
        if said is None or is_plain(coding := said.encode("utf-8", "surrogateescape")):
            return HttpAnswer(connection, message, content)
        return PackedAnswer(connection, message, content, coding)
    except CodingError as unknown:
        end(connection, whole=False)
        raise _unreadable(unknown) from None
    except BackendFailed:
        end(connection, whole=False)
        raise


class HttpClient:
    """The connections to all backends. Create and close it inside the running event loop."""

    def __init__(self, *, connect_seconds: float) -> None:
        self._connect_seconds = connect_seconds
        self._connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_SECONDS)
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_seconds)
        self._routes: dict[tuple[str, str, str, str | None, bool], Route] = {}

    async def open(
        self, target: Target, path: str, body: bytes, headers: Mapping[str, str]
    ) -> HttpAnswer:
        closes = target.engine == _CLOSES_AFTER_STREAMS
        try:
            route = self._route("POST", target, path, closes=closes)
            came = await exchange(self._connector, route, headers, body, self._timeout)
        except TimeoutError as slow:
            words = f"no connection within {self._connect_seconds:g} s"
            raise BackendFailed("unreachable", words) from slow
        except aiohttp.ClientConnectorError as refused:
            reason = "own_limit" if refused.errno in _OWN_LIMITS else "unreachable"
            raise BackendFailed(reason, _why(refused)) from refused
        except (aiohttp.ClientError, OSError, HttpProcessingError) as broken:
            raise _lost(broken) from broken
        return _answer(*came)

    async def fetch(
        self, target: Target, path: str, *, seconds: float, body: bytes | None = None
    ) -> tuple[int, bytes]:
        headers = {} if body is None else {"content-type": "application/json"}
        answer: HttpAnswer | None = None
        try:
            route = self._route("GET" if body is None else "POST", target, path)
            async with asyncio.timeout(seconds):
                answer = _answer(*await self._fetching(route, headers, body))
                return answer.status, await _fetched(answer)
        except TimeoutError as slow:
            raise BackendFailed("slow", f"no answer within {seconds:g} s") from slow
        except (aiohttp.ClientError, OSError, HttpProcessingError) as broken:
            own = isinstance(broken, OSError) and broken.errno in _OWN_LIMITS
            raise BackendFailed("own_limit" if own else "unreachable", _why(broken)) from broken
        finally:
            if answer is not None:
                answer.close()

    async def close(self) -> None:
        await self._connector.close()

    async def _fetching(self, route: Route, headers: Mapping[str, str], body: bytes | None) -> Came:
        try:
            return await exchange(self._connector, route, headers, body, self._timeout)
        except aiohttp.ClientConnectorError:
            raise
        except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError):
            # A server may end a connection that it kept just when the next request goes out on it.
            # To ask again for a document changes nothing, and the server is not down for that.
            if body is not None:
                raise
        return await exchange(self._connector, route, headers, body, self._timeout)

    def _route(self, method: str, target: Target, path: str, *, closes: bool = False) -> Route:
        key = (method, target.url, path, target.authorization, closes)
        route = self._routes.get(key)
        if route is None:
            # Usage is read from the body, so it had better not come compressed; where it does all
            # the same, PackedAnswer inflates it in bounded pieces.
            headers = {"accept-encoding": "identity"}
            if target.authorization is not None:
                headers["authorization"] = target.authorization
            if len(self._routes) >= ROUTES_MAX:
                self._routes.clear()
            route = self._routes[key] = Route(method, target.url + path, headers, closes=closes)
        return route


async def _fetched(answer: HttpAnswer) -> bytes:
    parts = []
    size = 0
    while part := await answer.read():
        size += len(part)
        if size > FETCHED_BYTES_MAX:
            raise BackendFailed("unreachable", f"its answer has over {FETCHED_BYTES_MAX} bytes")
        parts.append(part)
    return b"".join(parts)


def _unreadable(broken: CodingError) -> BackendFailed:
    return BackendFailed("lost", f"its answer {broken}")


def _lost(broken: Exception) -> BackendFailed:
    return BackendFailed("lost", f"the connection broke ({type(broken).__name__})")


def _why(broken: Exception) -> str:
    """What went wrong in words, without the address: answers to users must not show it."""
    if isinstance(broken, OSError) and broken.errno in _OWN_LIMITS:
        return "this gateway has no file descriptor left for a connection"
    if isinstance(broken, aiohttp.InvalidURL):
        return "its address is none"
    if isinstance(broken, aiohttp.ClientConnectorDNSError):
        return "its name does not resolve"
    if isinstance(broken, aiohttp.ClientConnectorError):
        return "the connection was refused or the network is down"
    return f"the connection failed ({type(broken).__name__})"
