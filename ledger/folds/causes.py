"""What a reconciliation found, in words. Pure."""

from collections.abc import Iterator
from typing import Final

from ledger.folds.reconcile import Cause, CauseName, Side, Window
from ledger.words import counted

_WORDS: Final[dict[CauseName, str]] = {
    "cut": "{n} cut: the engine may have made more after the last chunk that was seen",
    "uncounted": "{n} whose tokens nobody could count",
    "tokenized": "{n} counted by a tokenizer after a cut, which may differ from what was made",
    "failed_attempt": "{n} tried here and answered elsewhere: what that cost here is not billed",
    "open": "{n} without an end yet",
    "abandoned": "{n} of a gateway that died, known up to its last running total",
    "edge": "{n} at work across an edge of this time, shared by time",
    "restart": "{n} at work while the engine restarted, which it may not have counted",
    "answers": "{n} for several answers: the engine counts a prompt once for each of them",
    "rounded": "the engine shows its counters rounded",
    "probes": "{n} of the gateway's own probes, which are in the ledger",
}


def cause_words(cause: Cause, side: Side) -> str:
    """One cause with its size."""
    if cause.name == "back_door":
        also = f"; or {side.but}" if side.but else ""
        return (
            f"BACK DOOR: {counted(cause.more, 'token')} that no request of the ledger explains: "
            "somebody calls this engine around the gateway, or it is here under another name, "
            f"too{also}"
        )
    if cause.name == "missing":
        also = f"; or {side.but}" if side.but else ""
        return (
            f"MISSING: the engine counted {counted(cause.fewer, 'token')} fewer than the ledger "
            "holds at least: it restarted unseen, or several engines answer at this address"
            f"{also}"
        )
    words = _WORDS[cause.name].format(n=counted(cause.requests, "request"))
    sizes = [f"up to {cause.more:,} more"] * bool(cause.more)
    sizes += [f"up to {cause.fewer:,} fewer"] * bool(cause.fewer)
    return f"{words} ({', '.join(sizes)})" if sizes else words


def side_words(side: Side) -> Iterator[str]:
    """Every cause on one side, and what is to be known of its counter."""
    yield from (f"{side.side}: {cause_words(cause, side)}" for cause in side.causes)
    if side.difference and not side.binds and side.but:
        yield f"{side.side}: shown only, since {side.but}"


def window_words(window: Window) -> Iterator[str]:
    """What happened to the engine and its readings."""
    for gap in window.restarts:
        yield (
            f"the engine restarted between {gap.after:%H:%M:%S} and {gap.before:%H:%M:%S}; what "
            "it counted in between, also for others, is lost"
        )
    if len(window.restarts) > RESTARTS_ODD:
        yield "so many restarts look like several engines behind one address"
    for hour in window.joined:
        yield f"no reading near {hour:%H:%M}: the hours are compared together"
    if window.faults:
        yield f"{counted(window.faults, 'reading')} failed, the last because {window.fault}"
    if window.longest > LONG_SECONDS:
        yield f"the longest time between two readings is {window.longest / 60:.0f} min"


RESTARTS_ODD: Final = 3
LONG_SECONDS: Final = 300.0


def verdict(side: Side) -> str:
    """Whether both agree, in a word or two."""
    if side.beyond > 0:
        return "surplus"
    if side.beyond < 0:
        return "missing"
    if side.difference == 0:
        return "same"
    return "explained" if side.binds else "shown only"


def finding(window: Window, side: Side) -> str:
    """One side that is beyond its bound, as a line for an audit."""
    what = next(cause for cause in side.causes if cause.name in ("back_door", "missing"))
    return (
        f"{window.backend_id} from {window.start:%Y-%m-%d %H:%M:%S} to {window.end:%H:%M:%S}: "
        f"{' + '.join(side.counters)} moved by {side.engine:,}, the ledger holds {side.ledger:,} "
        f"({side.low:,} to {side.high:,} would be right). {cause_words(what, side)}"
    )
