"""What every meter of a streamed answer can do, whatever the stream is written in. Pure."""

from typing import Protocol

from ledger.events import Basis, Usage


class Meter(Protocol):
    """Meters one streamed answer. Feed it what the backend sends, in order; pass on what it gives.

    `chunks` counts the pieces of text (or sound) that were seen; it never exceeds the tokens that
    were produced. `raw` is the usage as it was last said, unparsed, null before the first: a change
    of it is news to tell.
    """

    chunks: int
    raw: bytes | None

    @property
    def fault(self) -> str | None:
        """What the backend said of an error inside its stream, null if it said nothing of one."""
        ...

    @property
    def complete(self) -> bool:
        """True once the end of the stream was seen: what `feed` just gave holds its last bytes."""
        ...

    @property
    def covered(self) -> bool:
        """True if the usage said so far takes in all that was seen: then no text need be kept."""
        ...

    def feed(self, data: bytes) -> bytes:
        """The bytes to pass on to the client now, after one more read from the backend."""
        ...

    def rest(self) -> bytes:
        """What is left to pass on when the backend has closed the stream."""
        ...

    def counted(self) -> tuple[Basis, Usage]:
        """The best count so far and how it was obtained."""
        ...
