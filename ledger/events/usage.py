"""Token counts of one request: five disjoint buckets, and how they were obtained."""

from typing import Annotated, Literal

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


TOKENS_MAX = 10**12
"""No request has more tokens in one bucket; a million such requests still fit a BIGINT."""
Tokens = Annotated[int, msgspec.Meta(ge=0, le=TOKENS_MAX)]


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens per bucket. Null means unknown, zero means zero; a known bucket is never negative."""

    uncached_in: Tokens | None = None
    cached_in: Tokens | None = None
    cache_write_in: Tokens | None = None
    reasoning_out: Tokens | None = None
    other_out: Tokens | None = None

    def __post_init__(self) -> None:
        for count in self.counts():
            if count is not None and not 0 <= count <= TOKENS_MAX:
                name = BUCKETS[self.counts().index(count)]
                raise EventError(f"{name} is {count}; a token count is from 0 to {TOKENS_MAX}")

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
