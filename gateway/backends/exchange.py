"""One request and the head of its answer, on one of aiohttp's pooled connections.

aiohttp keeps the connections and parses what comes. Its session, request and response objects are
left out: they took a third of all that the gateway did for a request
(docs/decisions/0011-requests-on-aiohttp-connections.md).
"""

import asyncio
import re
from collections.abc import Mapping
from typing import Final

import aiohttp
from aiohttp.connector import Connection
from aiohttp.http import RawResponseMessage
from yarl import URL

ONE_WRITE_BYTES_MAX: Final = 64 * 1024
"""Head and body up to this are joined for one write; to copy a larger one would cost more."""

_OF_THE_BODY: Final = frozenset(("content-length", "transfer-encoding"))
_ends_a_header = re.compile("[\r\n\0]").search


Came = tuple[Connection, RawResponseMessage, aiohttp.StreamReader]
"""A connection, the head of the answer that came on it, and what reads the body behind that."""


class HeaderError(ValueError):
    """A header that would not end where it should."""


class Route:
    """All that is alike in the requests to one path of one server: where its connections go, and
    the front of every head. Create it inside the running event loop."""

    __slots__ = ("closes", "front", "request")

    def __init__(
        self, method: str, url: str, headers: Mapping[str, str], *, closes: bool = False
    ) -> None:
        """`closes`: no connection is used twice. Raises `HeaderError` and `aiohttp.InvalidURL`."""
        own = {**headers, "connection": "close"} if closes else headers
        try:
            place = URL(url)
        except ValueError as wrong:
            raise aiohttp.InvalidURL(url) from wrong
        # It is never sent: it tells the connector where to connect, and makes aiohttp's headers.
        self.request = aiohttp.ClientRequest(
            method, place, headers=own, loop=asyncio.get_running_loop()
        )
        self.closes = closes
        alike = {
            name: value
            for name, value in self.request.headers.items()
            if name.lower() not in _OF_THE_BODY
        }
        line = f"{method} {self.request.url.raw_path_qs} HTTP/1.1\r\n"
        self.front = line.encode() + _lines(alike).encode()

    def head(self, headers: Mapping[str, str], body: bytes | None) -> bytes:
        """The head of one request. The values of `headers` are Latin-1, as they came. Raises
        `HeaderError`."""
        more = _lines(headers).encode("latin-1")
        if body is None:
            return b"%b%b\r\n" % (self.front, more)
        return b"%b%bcontent-length: %d\r\n\r\n" % (self.front, more, len(body))


async def exchange(
    connector: aiohttp.BaseConnector,
    route: Route,
    headers: Mapping[str, str],
    body: bytes | None,
    limits: aiohttp.ClientTimeout,
) -> Came:
    """Send `body` and wait for the head of the answer: the connection, which the caller must `end`,
    that head, and what reads the body behind it. `limits` hold for making a connection alone.

    Raises `aiohttp.ClientError` and `OSError`, of it `TimeoutError` if no connection could be made
    in time, `aiohttp.http.HttpProcessingError` for an answer that is not HTTP, and `HeaderError`.
    """
    head = route.head(headers, body)
    try:
        connection = await connector.connect(route.request, [], limits)
    except UnicodeError as wrong:  # a part of the name is empty, or longer than names may be
        raise aiohttp.InvalidURL(route.request.url) from wrong
    try:
        protocol = connection.protocol
        assert protocol is not None, "a connection that was given out just now is not given back"
        if route.closes:
            protocol.force_close()
        protocol.set_response_params(read_until_eof=True, auto_decompress=False)
        transport = protocol.transport
        if transport is None or transport.is_closing():
            raise aiohttp.ClientConnectionResetError("Cannot write to closing transport")
        if body is None:
            transport.write(head)
        elif len(body) <= ONE_WRITE_BYTES_MAX:
            transport.write(head + body)
        else:
            transport.writelines((head, body))
        while True:
            message, content = await protocol.read()
            # Interim answers (100 Continue, 103 Early Hints) are followed by the real one.
            if not 100 <= message.code < 200 or message.code == 101:
                break
        large = body is not None and len(body) > ONE_WRITE_BYTES_MAX
        if large and message.code >= 300 and _hides_what_is_unsent(transport):
            # It may have been refused before all of it was there.
            protocol.force_close()
        return connection, message, content
    except BaseException:
        end(connection, whole=False)
        raise


def end(connection: Connection, *, whole: bool) -> None:
    """Give `connection` back if the answer on it came `whole`, else close it. Safe twice.

    A server that has not read all of a request must not get the rest of it, nor another one: that
    connection ends at once.
    """
    transport, protocol = connection.transport, connection.protocol
    unread = transport is not None and transport.get_write_buffer_size() > 0
    if transport is not None and protocol is not None and _hides_what_is_unsent(transport):
        unread = not whole or protocol.should_close
    if whole and not unread:
        connection.release()
        return
    if transport is not None and unread:
        transport.abort()
    connection.close()


def _hides_what_is_unsent(transport: asyncio.BaseTransport) -> bool:
    """True for TLS: what it has passed to the transport beneath it counts as sent."""
    return transport.get_extra_info("sslcontext") is not None


def _lines(headers: Mapping[str, str]) -> str:
    text = ""
    for name, value in headers.items():
        if _ends_a_header(value):
            raise HeaderError(f"the header {name} has a line end in it")
        text += f"{name}: {value}\r\n"
    return text
