"""As much of HTTP/1.1 as a fake server needs: requests out of bytes, heads of answers. Pure."""

import msgspec

REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found"}
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nServer: fake\r\nContent-Type: text/event-stream\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)


def head(status: int, kind: str, length: int) -> bytes:
    """The head of an answer of `length` bytes."""
    reason = REASONS.get(status, "Scripted")
    return (
        f"HTTP/1.1 {status} {reason}\r\nServer: fake\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {length}\r\n\r\n"
    ).encode()


class Request(msgspec.Struct, frozen=True):
    """One HTTP request; header names in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


def take_request(buffer: bytearray) -> Request | None:
    """The first whole request in `buffer`, taken out of it; null while it is not all there."""
    end = buffer.find(b"\r\n\r\n")
    if end < 0:
        return None
    first, *lines = bytes(buffer[:end]).decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ", 2)
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    start = end + 4
    if headers.get("transfer-encoding") == "chunked":
        taken = _unchunk(buffer, start)
        if taken is None:
            return None
        body, stop = taken
    else:
        stop = start + int(headers.get("content-length", "0"))
        if len(buffer) < stop:
            return None
        body = bytes(buffer[start:stop])
    del buffer[:stop]
    return Request(method, path, headers, body)


def _unchunk(buffer: bytearray, start: int) -> tuple[bytes, int] | None:
    body = bytearray()
    while True:
        line = buffer.find(b"\r\n", start)
        if line < 0:
            return None
        size = int(bytes(buffer[start:line]), 16)
        start = line + 2
        if len(buffer) < start + size + 2:
            return None
        body += buffer[start : start + size]
        start += size + 2
        if size == 0:
            return bytes(body), start
