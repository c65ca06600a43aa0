"""What the demo proves, as decisions over numbers. Pure.

Each request was made alone, so what llama.cpp's counters moved by is that request's own. The ledger
must say the same, request by request; only after a hang-up may the engine have counted more.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from ledger.folds.requests import RequestRow

LATE_TOKENS_MAX = 32
"""Tokens an engine may still make between the last chunk that was seen and its own stop: it looks
for a hang-up once for each token, so it is one or two, and a few more on a busy machine. An engine
that never stopped would make ten times as many."""

PROMPT = "llamacpp:prompt_tokens_total"
CACHED = "llamacpp:prompt_tokens_cached_total"
PREDICTED = "llamacpp:tokens_predicted_total"
BUSY = "llamacpp:requests_processing"


class Counters(msgspec.Struct, frozen=True):
    """llamacpp's own counters, or a difference of two readings: prompt tokens that it processed,
    prompt tokens that it found in its cache, tokens that it made."""

    prompt: int
    cached: int
    predicted: int

    def minus(self, other: "Counters") -> "Counters":
        """What they moved by since `other`."""
        return Counters(
            self.prompt - other.prompt, self.cached - other.cached, self.predicted - other.predicted
        )


class Check(msgspec.Struct, frozen=True):
    """One thing that must hold, and what was seen."""

    name: str
    holds: bool
    seen: str


class Compared(msgspec.Struct, frozen=True):
    """One request: what the engine counted for it, what the ledger holds, what explains a
    difference. `explained` is null if there is one that nothing explains."""

    request_id: str
    engine: Counters
    ledger: Counters | None
    explained: str | None

    @property
    def same(self) -> bool:
        """True if both say the same."""
        return self.engine == self.ledger


def read_counters(text: str) -> tuple[Counters, bool]:
    """The counters in a Prometheus page of llama.cpp, and whether it is idle.

    Raises `ValueError` if one of them is not there.
    """
    found: dict[str, int] = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name in (PROMPT, CACHED, PREDICTED, BUSY):
            found[name] = int(float(value))
    lacking = {PROMPT, CACHED, PREDICTED, BUSY} - found.keys()
    if lacking:
        raise ValueError(f"the engine's metrics lack {', '.join(sorted(lacking))}")
    return Counters(found[PROMPT], found[CACHED], found[PREDICTED]), found[BUSY] == 0


def door(name: str, status: int, wanted: int) -> Check:
    """A door answered `status` where `wanted` is right."""
    return Check(name, status == wanted, f"{status}")


def held(row: RequestRow) -> Counters | None:
    """What the ledger holds of one request; null if it does not know all of it."""
    usage = row.usage
    if usage.uncached_in is None or usage.cached_in is None or usage.other_out is None:
        return None
    return Counters(
        usage.uncached_in, usage.cached_in, usage.other_out + (usage.reasoning_out or 0)
    )


def compare(request_id: str, engine: Counters, row: RequestRow | None) -> Compared:
    """Hold one request's row against what the engine counted for it."""
    ledger = None if row is None else held(row)
    if row is None or ledger is None:
        return Compared(request_id, engine, ledger, None)
    if engine == ledger:
        return Compared(request_id, engine, ledger, "")
    late = engine.minus(ledger)
    cut = row.outcome == "client_gone" and row.basis != "reported"
    if cut and late.prompt == late.cached == 0 and 0 < late.predicted <= LATE_TOKENS_MAX:
        return Compared(
            request_id,
            engine,
            ledger,
            f"{late.predicted} more made by the engine after the last chunk that was seen, "
            "before it noticed the hang-up; they reached nobody and are not billed",
        )
    return Compared(request_id, engine, ledger, None)


def totals(compared: Sequence[Compared], engine: Counters, billed: Counters) -> Check:
    """The bill against the engine's counters over the whole run.

    It holds if every request is the same or explained, and if nothing but these requests moved the
    counters or the bill.
    """
    name = "the ledger's totals are the engine's own counters"
    unexplained = [one.request_id for one in compared if one.explained is None]
    if unexplained:
        return Check(name, False, f"no explanation for {', '.join(unexplained)}")
    if _sum(one.engine for one in compared) != engine:
        return Check(name, False, "something else used the engine meanwhile")
    if _sum(one.ledger for one in compared if one.ledger is not None) != billed:
        return Check(name, False, "the bill is not the sum of its requests")
    late = engine.minus(billed).predicted
    seen = (
        f"processed input {billed.prompt} = {engine.prompt}, cached input {billed.cached} = "
        f"{engine.cached}, output {billed.predicted} = {engine.predicted}"
    )
    return Check(name, True, f"{seen} - {late} after the hang-up" if late else seen)


def _sum(counters: Iterable[Counters]) -> Counters:
    prompt = cached = predicted = 0
    for one in counters:
        prompt, cached = prompt + one.prompt, cached + one.cached
        predicted += one.predicted
    return Counters(prompt, cached, predicted)


def billed(lines: Iterable[Mapping[str, int | None]]) -> Counters:
    """The sum of a bill's lines, each by bucket; an unknown bucket adds nothing."""
    return _sum(
        Counters(
            line["uncached_in"] or 0,
            line["cached_in"] or 0,
            (line["other_out"] or 0) + (line["reasoning_out"] or 0),
        )
        for line in lines
    )
