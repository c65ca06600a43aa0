"""The one home of the HTTP client. aiohttp: measured ten times cheaper than httpx upstream."""

import asyncio
import errno
import io
from collections.abc import Iterator, Mapping
from functools import lru_cache

import aiohttp

from gateway.backends.port import BackendFailed, Target
from gateway.wire.codings import CodingError, Inflater, is_plain

KEEPALIVE_SECONDS = 4.0
"""Below the 5 s after which vLLM closes an idle connection, so that none is reused too late."""

INLINE_BODY_BYTES_MAX = 1024 * 1024
"""aiohttp sends a larger body in pieces, so that the event loop is not held by one write."""

INFLATED_BYTES_MAX = 256 * 1024 * 1024
"""A compressed answer that must be held whole may become this large: twice the largest batch of
embeddings that anybody sends, and less than what would hurt."""

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
    """An aiohttp response as the `Answer` port."""

    __slots__ = ("_response", "content_type", "headers", "status")

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.content_type = response.headers.get("content-type", "").lower()
        self.headers = [
            (passed, value)
            for name, value in response.raw_headers
            if (passed := _passed_name(name)) is not None
        ]

    async def read(self) -> bytes:
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, OSError) as broken:
            raise _lost(broken) from broken

    async def read_all(self) -> bytes:
        try:
            return await self._response.read()
        except (aiohttp.ClientError, OSError) as broken:
            raise _lost(broken) from broken

    def close(self) -> None:
        if self._response.content.at_eof():
            self._response.release()
        else:
            self._response.close()


class PackedAnswer(HttpAnswer):
    """An answer that came compressed though nobody asked for that; it goes on inflated."""

    __slots__ = ("_inflater", "_pieces")

    def __init__(self, response: aiohttp.ClientResponse, coding: bytes) -> None:
        super().__init__(response)
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


def _answer(response: aiohttp.ClientResponse) -> HttpAnswer:
    """The answer to `response`. Raises `BackendFailed` for a coding that is not read here."""
    said = response.headers.get("content-encoding")
    if said is None or is_plain(coding := said.encode("utf-8", "surrogateescape")):
        return HttpAnswer(response)
    try:
        return PackedAnswer(response, coding)
    except CodingError as unknown:
        response.close()
        raise _unreadable(unknown) from None


class HttpClient:
    """One session for all backends. Create and close it inside the running event loop."""

    def __init__(self, *, connect_seconds: float) -> None:
        self._connect_seconds = connect_seconds
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_SECONDS),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_seconds),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            # Usage is read from the body, so it had better not come compressed; where it does all
            # the same, PackedAnswer inflates it in bounded pieces.
            headers={"accept-encoding": "identity"},
        )

    async def open(
        self, target: Target, path: str, body: bytes, headers: Mapping[str, str]
    ) -> HttpAnswer:
        sent = {**headers}
        if target.authorization is not None:
            sent["authorization"] = target.authorization
        if target.engine == _CLOSES_AFTER_STREAMS:
            sent["connection"] = "close"
        data = body if len(body) <= INLINE_BODY_BYTES_MAX else io.BytesIO(body)
        try:
            response = await self._session.post(
                target.url + path, data=data, headers=sent, allow_redirects=False
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as refused:
            reason = "own_limit" if refused.errno in _OWN_LIMITS else "unreachable"
            raise BackendFailed(reason, _why(refused, self._connect_seconds)) from refused
        except (aiohttp.ClientError, OSError) as broken:
            raise _lost(broken) from broken
        if not 200 <= response.status < 600:
            # A switch of protocols that nobody asked for has no answer behind it to meter, and a
            # status that does not exist cannot be passed on.
            response.close()
            raise BackendFailed("lost", f"it answered with status {response.status}")
        return _answer(response)

    async def fetch(
        self, target: Target, path: str, *, seconds: float, body: bytes | None = None
    ) -> tuple[int, bytes]:
        headers = {} if target.authorization is None else {"authorization": target.authorization}
        if body is not None:
            headers["content-type"] = "application/json"
        try:
            async with (
                asyncio.timeout(seconds),
                self._session.request(
                    "GET" if body is None else "POST",
                    target.url + path,
                    data=body,
                    headers=headers,
                    allow_redirects=False,
                ) as response,
            ):
                return response.status, await _fetched(_answer(response))
        except TimeoutError as slow:
            raise BackendFailed("slow", f"no answer within {seconds:g} s") from slow
        except (aiohttp.ClientError, OSError) as broken:
            own = isinstance(broken, OSError) and broken.errno in _OWN_LIMITS
            reason = "own_limit" if own else "unreachable"
            raise BackendFailed(reason, _why(broken, self._connect_seconds)) from broken

    async def close(self) -> None:
        await self._session.close()


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


def _why(broken: Exception, connect_seconds: float) -> str:
    """What went wrong in words, without the address: answers to users must not show it."""
    if isinstance(broken, aiohttp.ConnectionTimeoutError):
        return f"no connection within {connect_seconds:g} s"
    if isinstance(broken, OSError) and broken.errno in _OWN_LIMITS:
        return "this gateway has no file descriptor left for a connection"
    if isinstance(broken, aiohttp.ClientConnectorDNSError):
        return "its name does not resolve"
    if isinstance(broken, aiohttp.ClientConnectorError):
        return "the connection was refused or the network is down"
    return f"the connection failed ({type(broken).__name__})"
