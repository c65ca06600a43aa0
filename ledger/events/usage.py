"""Token counts of one request: five disjoint buckets, and how they were obtained."""

from typing import Literal

import msgspec

from ledger.errors import EventError

Basis = Literal["reported", "running", "tokenized", "counted", "none"]
"""How a count was obtained, from best to worst.

reported   the engine's final usage
running    the engine's running usage, up to the last chunk seen
tokenized  the engine's own tokenizer, after a cut
counted    chunks with content: a lower bound of the output, the input is unknown
none       nothing is known: every bucket is null
"""

BUCKETS = ("uncached_in", "cached_in", "cache_write_in", "reasoning_out", "other_out")
"""The names of the buckets, in the order in which every table and export shows them."""


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens per bucket. Null means unknown, zero means zero; a known bucket is never negative."""

    uncached_in: int | None = None
    cached_in: int | None = None
    cache_write_in: int | None = None
    reasoning_out: int | None = None
    other_out: int | None = None

    def __post_init__(self) -> None:
        for name in BUCKETS:
            count = getattr(self, name)
            if count is not None and count < 0:
                raise EventError(f"{name} is {count}; a token count is never negative")

    def counts(self) -> tuple[int | None, int | None, int | None, int | None, int | None]:
        """The five buckets in the order of `BUCKETS`."""
        return (
            self.uncached_in,
            self.cached_in,
            self.cache_write_in,
            self.reasoning_out,
            self.other_out,
        )

    @property
    def known(self) -> bool:
        """True if at least one bucket is known."""
        return any(count is not None for count in self.counts())


NOTHING_KNOWN = Usage()
