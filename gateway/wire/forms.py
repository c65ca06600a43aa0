"""Form bodies (`multipart/form-data`), in which sound comes: what they say, and fields added.

Read with the parser that vLLM and SGLang read them with, so that both see the same fields. Pure.
"""

from typing import Final

import msgspec
from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header

from gateway.errors import BadRequest

PARTS_MAX: Final = 1_000
"""As many as FastAPI takes: each costs time to read."""

VALUE_BYTES_MAX: Final = 4_096
"""Of a field's value so much is kept; those that are looked at are far shorter."""


class Form(msgspec.Struct, frozen=True):
    """The fields that are no files, in their order and with what repeats."""

    fields: tuple[tuple[str, str], ...]

    def value(self, name: str) -> str | None:
        """The value of a field; null if it is not there. Raises `BadRequest` if it is there twice,
        because servers disagree about which of the two they read."""
        values = [value for found, value in self.fields if found == name]
        if len(values) > 1:
            raise BadRequest(f"The form has the field '{name}' more than once.", param=name)
        return values[0] if values else None


def form_of(body: bytes, content_type: bytes) -> Form:
    """The form in `body`. Raises `BadRequest` if it is none."""
    reader = _Reader()
    parser = MultipartParser(
        _boundary(content_type),
        {
            "on_part_begin": reader.part_begin,
            "on_part_data": reader.part_data,
            "on_part_end": reader.part_end,
            "on_header_field": reader.header_name,
            "on_header_value": reader.header_value,
            "on_header_end": reader.header_end,
            "on_end": reader.end,
        },
    )
    try:
        parser.write(body)
    except FormParserError as wrong:
        raise _malformed(str(wrong)) from wrong
    if not reader.ended:
        raise _malformed("it breaks off before its closing boundary")
    return Form(tuple(reader.fields))


def with_fields(body: bytes, content_type: bytes, added: dict[str, str]) -> bytes:
    """A readable form with more fields behind all others, so that they win over an equal name."""
    delimiter = b"--" + _boundary(content_type)
    # Within a part these bytes cannot stand, and what comes behind the closing boundary is ignored.
    place = body.find(b"\r\n" + delimiter + b"--") + len(b"\r\n")
    parts = b"".join(
        b'%s\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n'
        % (delimiter, name.encode(), value.encode())
        for name, value in added.items()
    )
    return b"".join((body[:place], parts, body[place:]))


def _boundary(content_type: bytes) -> bytes:
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise BadRequest(
            "This path takes a form: send 'content-type: multipart/form-data' with its boundary.",
            code="invalid_form",
        )
    return boundary


def _malformed(fault: str) -> BadRequest:
    return BadRequest(
        f"The request body is not a readable form: {fault}. Send multipart/form-data.",
        code="invalid_form",
    )


class _Reader:
    """Gathers the fields from what the parser calls."""

    def __init__(self) -> None:
        self.fields: list[tuple[str, str]] = []
        self.ended = False
        self._parts = 0
        self._name: str | None = None
        self._value = b""
        self._header = b""
        self._said = b""

    def part_begin(self) -> None:
        self._parts += 1
        if self._parts > PARTS_MAX:
            raise _malformed(f"it has more than {PARTS_MAX:,} parts")
        self._name, self._value = None, b""

    def header_name(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def header_value(self, data: bytes, start: int, end: int) -> None:
        self._said += data[start:end]

    def header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            _, options = parse_options_header(self._said)
            name = options.get(b"name")
            if name is not None and b"filename" not in options:
                self._name = name.decode(errors="replace")
        self._header = self._said = b""

    def part_data(self, data: bytes, start: int, end: int) -> None:
        if self._name is not None and len(self._value) < VALUE_BYTES_MAX:
            self._value += data[start : min(end, start + VALUE_BYTES_MAX)]

    def part_end(self) -> None:
        if self._name is not None:
            self.fields.append((self._name, self._value.decode(errors="replace")))

    def end(self) -> None:
        self.ended = True
