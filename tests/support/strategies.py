"""What Hypothesis draws: usages, whole lives of requests, and events in any order.

A life obeys what a gateway writes: its running totals grow with its chunks, its repeats say the
same, and it ends at most once in each way.
"""

from datetime import timedelta

from hypothesis import strategies as st

from ledger.events import Basis, Draft, Event, Usage
from tests.support import events

TOKENS_MAX = 10**9
KEYS = ("key-1", "key-2")
MODELS = ("m", "other")
BASES: tuple[Basis, ...] = ("reported", "running", "tokenized", "counted", "none")

counts = st.none() | st.integers(0, TOKENS_MAX)
usages = st.builds(
    Usage,
    uncached_in=counts,
    cached_in=counts,
    cache_write_in=counts,
    reasoning_out=counts,
    other_out=counts,
)
instants = st.integers(0, 3 * 24 * 3600 * 10**6).map(
    lambda us: events.START + timedelta(microseconds=us)
)


@st.composite
def lives(draw: st.DrawFn, request_id: str = "r") -> list[Draft]:
    """The events of one request, in the order in which they happened."""
    at, key = draw(instants), draw(st.sampled_from(KEYS))
    model, stream = draw(st.sampled_from(MODELS)), draw(st.booleans())
    life = [events.accepted(request_id, at, key, model, stream)]
    attempts = draw(st.integers(0, 2))
    life += [events.attempted(request_id, n, at, key, f"b-{n}") for n in range(1, attempts + 1)]
    chunks = out = 0
    for number in range(1, draw(st.integers(0, 3)) + 1):
        # Usage may move while no chunk with content passes, and the other way round.
        chunks += draw(st.integers(0, 2))
        out += draw(st.integers(0, 5))
        usage = events.tokens(out=out)
        life.append(events.delivered(request_id, number, chunks, at, key, "running", usage))
    known = len(life) > 1 + attempts
    ends = draw(st.sampled_from(("open", "finished", "abandoned", "both")))
    if ends in ("abandoned", "both"):
        usage = events.tokens(out=out) if known else Usage()
        abandoned = events.abandoned(request_id, at, key, model, stream, usage=usage, chunks=chunks)
        life.append(abandoned)
    if ends in ("finished", "both"):
        usage = draw(grown(out)) if known else draw(usages)
        basis = draw(st.sampled_from(BASES))
        life.append(
            events.finished(
                request_id, at, key, model, stream, usage, basis, chunks=chunks, attempts=attempts
            )
        )
    return life


@st.composite
def grown(draw: st.DrawFn, out: int) -> Usage:
    """A final usage after running totals of 12 tokens in and `out` out: no total is lower.

    Tokens may still change their bucket: some engines say only at the end what was cached.
    """
    cached, reasoning = draw(st.integers(0, 12)), draw(st.integers(0, out))
    return Usage(
        uncached_in=12 - cached + draw(st.integers(0, 50)),
        cached_in=cached,
        cache_write_in=0,
        reasoning_out=reasoning,
        other_out=out - reasoning + draw(st.integers(0, 50)),
    )


@st.composite
def shuffled(draw: st.DrawFn, life: list[Event]) -> list[Event]:
    """All of `life` in any order, each event once or more often."""
    repeats = draw(st.lists(st.sampled_from(life), max_size=len(life)))
    order: list[Event] = draw(st.permutations(life + repeats))
    return order
