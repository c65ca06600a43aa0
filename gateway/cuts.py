"""What is billed when a request does not end well: one policy for each cause, stated here. Which of
these ends are faults of the server stands at the end. Pure.

Two rules stand behind the table. Who leaves pays for what was begun for them: the prompt, and all
that the backend had produced as far as it is known. Who was let down pays for what arrived: if a
server fails before anything arrived nothing is billed, and later the prompt and what was delivered.
"""

from collections.abc import Collection
from typing import Final, Literal

import msgspec

from gateway.wire.requests import Asked, Engine
from ledger.events import Basis, Usage
from ledger.events.requests import Outcome
from ledger.events.usage import NOTHING_KNOWN

Cause = Literal[
    "client_gone",
    "client_stalled",
    "first_byte",
    "between_chunks",
    "total",
    "backend_lost",
    "backend_unreachable",
    "backend_error",
    "shutdown",
    "spool_failed",
    "gateway_failed",
]
"""Why a request did not end well, in more words than its outcome has."""

Cut = Literal[
    "client_gone", "client_stalled", "first_byte", "between_chunks", "total", "spool_failed"
]
"""The causes that come from outside: whoever sees one sets it and cancels the request's task."""

Billed = Literal["begun", "delivered"]
"""begun      the prompt, and what was produced, also if none of it had arrived
delivered  the prompt and what was produced if any text of it went to the client, else nothing"""


class Policy(msgspec.Struct, frozen=True):
    """What one cause means. `reason` stands on the row. `tokenized`: is there time to ask the
    backend's tokenizer where the engine itself gave no count?"""

    outcome: Outcome
    reason: str
    billed: Billed
    tokenized: bool = True


POLICIES: Final[dict[Cause, Policy]] = {
    "client_gone": Policy("client_gone", "the client hung up", "begun"),
    "client_stalled": Policy(
        "client_gone", "the client stopped reading beyond the time limit", "begun"
    ),
    "first_byte": Policy("timeout", "no first byte within the time limit", "delivered"),
    "between_chunks": Policy(
        "timeout", "silence within the stream beyond the time limit", "delivered"
    ),
    "total": Policy("timeout", "the whole request beyond the time limit", "delivered"),
    "backend_lost": Policy("backend_lost", "the backend broke off its answer", "delivered"),
    "backend_unreachable": Policy(
        "backend_unreachable", "the backend could not be reached", "delivered"
    ),
    "backend_error": Policy(
        "backend_lost", "the backend told of an error within its stream", "delivered"
    ),
    "shutdown": Policy("shutdown", "the gateway stopped", "delivered", tokenized=False),
    "spool_failed": Policy(
        "spool_failed", "the usage spool could not take a write", "delivered", tokenized=False
    ),
    "gateway_failed": Policy(
        "gateway_failed", "a fault of the gateway itself", "delivered", tokenized=False
    ),
}
"""Every cause. What became of a request whose gateway was killed is told by who adopts its spool:
`abandoned`, with the last running totals, and never tokenized, since no text is on disk."""

DRAINED: Final = "the client hung up; the answer was read to its end"
"""The reason of a request whose client left and whose answer was read on (`reads_on`)."""


def reads_on(wish: Asked, engine: Engine | None, drain_to_end: Collection[str]) -> bool:
    """True if an answer is read to its end although its client has left.

    That is so where it is set for the model. It is so for an answer of llama.cpp that is not
    streamed, too: llama.cpp goes on with it whether or not its connection is closed (its issue
    24496; measured in tests/e2e/test_real_doors.py), so to stop reading would spare it nothing and
    cost the count.
    """
    if engine == "llamacpp" and not wish.stream:
        return True
    return wish.model in drain_to_end or "*" in drain_to_end


def billed(policy: Policy, counted: tuple[Basis, Usage], chunks: int) -> tuple[Basis, Usage]:
    """What of `counted` is billed under `policy`; `chunks` is what had been passed on."""
    if policy.billed == "delivered" and not chunks:
        return "none", NOTHING_KNOWN
    return counted


def wants_tokens(policy: Policy | None, basis: Basis, chunks: int) -> bool:
    """True if a tokenizer can better a count of `basis`; `policy` null: the answer is whole."""
    if basis in ("reported", "running"):
        return False
    return policy is None or (policy.tokenized and (policy.billed == "begun" or chunks > 0))


def bettered(known: Usage, tokenized: Usage | None, chunks: int) -> tuple[Basis, Usage] | None:
    """`known`, counted by chunks, with what a tokenizer found; null if it found nothing new.

    It is `counted` still if the text was too long to be kept, so that only the prompt is better
    known. What the engine said itself stands. The output is never less than the chunks that were
    seen: each of them held at least one token, while a text may be written with fewer tokens than
    it was produced with.
    """
    if tokenized is None or not any(tokenized.counts()):
        return None
    basis: Basis = "tokenized"
    said_input = known.uncached_in is not None
    reasoning, other = tokenized.reasoning_out, tokenized.other_out
    if other is not None:
        other = max(other, chunks - (reasoning or 0))
    elif known.other_out is not None:
        basis, reasoning, other = "counted", known.reasoning_out, known.other_out
    source = known if said_input else tokenized
    return basis, Usage(
        uncached_in=source.uncached_in,
        cached_in=source.cached_in,
        cache_write_in=source.cache_write_in,
        reasoning_out=reasoning,
        other_out=other,
    )


_FAULTS: Final[dict[Cause, str]] = {
    "first_byte": "it sent no first byte within the time limit",
    "between_chunks": "it fell silent within a stream",
}

EMPTY: Final = "it ended a stream in which nothing was, not even its end"
"""A model that says nothing still ends its answer: that is no fault."""

_NOT_FOR_ALL: Final = (501, 505)
"""The server does not know what this request is: another one may be fine."""


def fault_of_status(status: int) -> str | None:
    """The fault of a server that answers with `status`, in words; null if that shows none.

    A client must never be able to shut a backend for the others, so its own errors, its leaving and
    its limits are no faults. A refused server key and a redirect are the operator's to mend, but no
    request is answered until then, and a server that refuses fast would else seem the least busy
    of all and be sent everything.
    """
    if status >= 500:
        return None if status in _NOT_FOR_ALL else f"it answered {status}"
    if status == 401:
        return "it refuses the server key (401); see 'key' of this backend"
    return f"it answered with a redirect ({status})" if 300 <= status < 400 else None


def fault_of_cut(cut: Cut | None, *, heard: bool) -> str | None:
    """The same of a request that was cut; `heard`: something of its answer had come.

    What takes longer as a whole than is allowed is long, not faulty, if anything came.
    """
    if cut is None or (cut == "total" and heard):
        return None
    return _FAULTS["first_byte"] if cut == "total" else _FAULTS.get(cut)
