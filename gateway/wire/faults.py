"""What a backend says of an error inside a stream that began well. Pure."""

from typing import Final

import msgspec

FAULT_CHARACTERS_MAX: Final = 300
"""A fault stands on the request's row; a server's trace does not."""

_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class ClientFault(str):
    """A fault for which the server blames the request: it gives it a code from 400 to 499."""

    __slots__ = ()


class _Error(msgspec.Struct):
    message: object = None
    type: object = None
    code: object = None


class _Response(msgspec.Struct):
    error: _Error | None = None


class _Event(msgspec.Struct):
    """An error in any shape: under `error` (OpenAI, Anthropic, all engines), the event itself
    (`"object":"error"` of older vLLM, `"type":"error"` of Responses), or in a failed response."""

    error: _Error | str | None = None
    code: object = None  # before `object` is the name of a field
    object: str | None = None
    type: str | None = None
    message: str | None = None
    response: _Response | None = None


_event = msgspec.json.Decoder(_Event)
_error = msgspec.json.Decoder(_Error)


def fault_of(data: bytes) -> str | None:
    """What the JSON of one event says of an error; null if it tells of none."""
    try:
        event = _event.decode(data)
    except _UNREADABLE:
        return None
    if isinstance(event.error, str):
        return _said(event.error)
    error = event.error or (event.response.error if event.response else None)
    if error is not None:
        return _blamed(_said(error.message, error.type, error.code), error.code)
    if "error" in (event.object, event.type):
        return _blamed(_said(event.message), event.code)
    return None


def fault_of_line(line: bytes) -> str | None:
    """As `fault_of`, of a line `data: …`, or `error: …` as llama.cpp once wrote it."""
    name, _, data = line.partition(b":")
    if name == b"data":
        return fault_of(data)
    if name != b"error":
        return None
    try:
        error = _error.decode(data)
    except _UNREADABLE:
        return _said(data.decode(errors="replace").strip())
    return _blamed(_said(error.message, error.type, error.code), error.code)


def _blamed(said: str, code: object) -> str:
    clients = isinstance(code, int) and 400 <= code < 500
    return ClientFault(said) if clients else said


def _said(*words: object) -> str:
    """The first of `words` that says something, short enough for a row."""
    for word in words:
        if word not in (None, ""):
            return str(word)[:FAULT_CHARACTERS_MAX]
    return "no word of what it was"
