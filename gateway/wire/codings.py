"""Compressed bodies, in pieces: a small body cannot become a large one at once. Pure."""

import zlib
from collections.abc import Iterator
from typing import Final

PIECE_BYTES: Final = 256 * 1024
"""No more is inflated at once: about a millisecond of the event loop, and one piece of memory."""

MEMBERS_MAX: Final = 100
"""A gzip body is one member, or a few that somebody put together. A million empty ones would be
work without a body."""

_SLICE_BYTES: Final = 16 * 1024
"""Compressed bytes go in by slices, because what follows a member is copied at its end."""

_WINDOWS: Final = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": 0}


class CodingError(Exception):
    """A body that cannot be inflated. The text goes on from a name for the body."""


class UnknownCodingError(CodingError):
    """A coding that is not read here."""


def is_plain(coding: bytes | None) -> bool:
    """True if a `Content-Encoding` leaves the body as it is."""
    return coding is None or coding.strip().lower() in (b"", b"identity")


class Inflater:
    """Inflates one body of `coding`: gzip, x-gzip or deflate, which servers send with the header of
    zlib or without it.

    Raises `UnknownCodingError` for any other, a list of several among them.
    """

    def __init__(self, coding: bytes) -> None:
        self._name = coding.strip().lower().decode("latin-1")
        if self._name not in _WINDOWS:
            raise UnknownCodingError(
                f"comes in the coding {self._name[:40]!r}; only gzip and deflate are read"
            )
        self._member: zlib._Decompress | None = None
        self._members = 0

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """What `data`, the next bytes as they came, inflates to, each at most `PIECE_BYTES` long.

        Go through all of it before the next call. Raises `CodingError`.
        """
        for start in range(0, len(data), _SLICE_BYTES):
            rest = data[start : start + _SLICE_BYTES]
            while rest:
                member = self._member or self._begin(rest[0])
                piece = b"\0" * PIECE_BYTES
                # A full piece may have left more behind, also where all input was taken.
                while len(piece) == PIECE_BYTES and not member.eof:
                    try:
                        piece = member.decompress(rest, PIECE_BYTES)
                    except zlib.error:
                        raise CodingError(f"is not the {self._name} that it says it is") from None
                    rest = member.unconsumed_tail
                    if piece:
                        yield piece
                if member.eof:
                    rest, self._member = member.unused_data, None

    def end(self) -> None:
        """The body is over. Raises `CodingError` if it broke off; an empty one is whole."""
        if self._member is not None:
            raise CodingError(f"breaks off in the middle of its {self._name}")

    def _begin(self, first: int) -> "zlib._Decompress":
        """The next member, whose first byte is `first`."""
        self._members += 1
        if self._members > (1 if self._name == "deflate" else MEMBERS_MAX):
            raise CodingError(f"goes on behind the end of its {self._name}")
        window = _WINDOWS[self._name]
        if not window:
            window = zlib.MAX_WBITS if first & 0x0F == 8 else -zlib.MAX_WBITS
        self._member = zlib.decompressobj(window)
        return self._member
