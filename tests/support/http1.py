"""As much of HTTP/1.1 as a fake server needs: requests out of bytes, heads of answers. Pure."""

import email.message
import email.parser
import email.policy
import json
import zlib
from typing import Any

import msgspec

REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found"}
CODINGS = {1: "gzip", 2: "deflate"}
"""Content codings by the number that a script gives them."""

_WINDOW_BITS = {1: 31, 2: 15}


def head(status: int, kind: str, length: int | None, coding: str | None = None) -> bytes:
    """The head of an answer of `length` bytes; null is chunks."""
    reason = REASONS.get(status, "Scripted")
    size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    coded = f"Content-Encoding: {coding}\r\n" if coding else ""
    return (
        f"HTTP/1.1 {status} {reason}\r\nServer: fake\r\nContent-Type: {kind}\r\n"
        f"{coded}{size}\r\n\r\n"
    ).encode()


class Packer:
    """Writes an answer in the coding of number `coding`; 0 leaves it as it is."""

    def __init__(self, coding: int) -> None:
        self.name = CODINGS.get(coding)
        self._packer = zlib.compressobj(wbits=_WINDOW_BITS[coding]) if self.name else None

    def packed(self, data: bytes, *, last: bool) -> bytes:
        """`data` so that its reader can unpack all of it at once."""
        if self._packer is None:
            return data
        mode = zlib.Z_FINISH if last else zlib.Z_SYNC_FLUSH
        return self._packer.compress(data) + self._packer.flush(mode)


class Request(msgspec.Struct, frozen=True):
    """One HTTP request; header names in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


def fields_of(request: Request) -> Any:
    """The body as JSON, or the fields of a form; a file is its number of bytes.

    Raises ValueError if it is neither.
    """
    kind = request.headers.get("content-type", "")
    if not kind.startswith("multipart/form-data"):
        return json.loads(request.body)
    whole = f"Content-Type: {kind}\r\n\r\n".encode() + request.body
    form = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(whole)
    fields: dict[str, Any] = {}
    for part in form.iter_parts():
        assert isinstance(part, email.message.EmailMessage)
        name = part.get_param("name", header="content-disposition")
        content = part.get_payload(decode=True)
        assert isinstance(content, bytes)
        fields[str(name)] = len(content) if part.get_filename() else content.decode()
    if not fields:
        raise ValueError("no field is in the form")
    return fields


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
