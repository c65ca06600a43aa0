"""Raw bytes of streams whose engine has not said a usage yet, kept in memory within two bounds.

They are what a tokenizer is asked about if such a stream is cut. They never touch a disk, and are
gone when the request ends.
"""

from typing import Final

STREAM_BYTES_MAX: Final = 4 << 20
"""Of one stream; a longer one is counted by its chunks."""

ALL_BYTES_MAX: Final = 64 << 20
"""Of all streams of one process."""


class Allowance:
    """What all streams of a process may keep together."""

    __slots__ = ("left",)

    def __init__(self, size: int = ALL_BYTES_MAX) -> None:
        self.left = size


class Kept:
    """What one stream has sent so far. `whole` is false once a bound was hit: nothing is kept then.

    `let_go` gives the bytes back; it is safe twice.
    """

    __slots__ = ("_allowance", "_parts", "_size", "whole")

    def __init__(self, allowance: Allowance) -> None:
        self._allowance = allowance
        self._parts: list[bytes] = []
        self._size = 0
        self.whole = True

    def add(self, data: bytes) -> None:
        """Keep `data` behind what is kept, or nothing at all if that would be too much."""
        size = len(data)
        if self._size + size > STREAM_BYTES_MAX or size > self._allowance.left:
            self.let_go()
            return
        self._parts.append(data)
        self._size += size
        self._allowance.left -= size

    def let_go(self) -> None:
        """Keep nothing any more."""
        self._allowance.left += self._size
        self._parts = []
        self._size = 0
        self.whole = False

    def bytes(self) -> bytes | None:
        """All that the stream sent; null if it was too much."""
        return b"".join(self._parts) if self.whole else None
