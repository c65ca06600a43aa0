"""The scores of each policy: pure functions of the request and the backends that are fit.

A policy is given the backends in the order of their ids, and gives one score for each, lower is
better. Whoever adds one (by prefix, say) adds a function and a line in `POLICIES`; filter, weights,
exploration and ties are `policy.choose`'s.
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from gateway.routing.views import BackendView, Policy, Wanted

KV_FULL: Final = 0.999
"""A full KV memory still counts less than one request that waits."""

REFUSES_ALL: Final = 1_000
"""One that refuses everything ranks behind one where so many requests wait."""

WORK_OF_HALF: Final = 32
"""Where an engine does not tell its KV use, so many requests at work count as half of it."""


class Scoring(msgspec.Struct, frozen=True):
    """One policy: its scores, what a score says for a person, and whether equal scores are shared
    out over turns (`by_turns`) or by the hash of the request's id."""

    score: Callable[[Wanted, Sequence[BackendView]], list[float]]
    words: Callable[[BackendView, float], list[str]]
    by_turns: bool = False


def fewest_waiting(request: Wanted, views: Sequence[BackendView]) -> list[float]:
    """score = queue + fill + refusals: fewest waiting, then least KV use.

    queue, in requests = max(waiting + new, in_flight + others_in_flight - running)
    new = min(picked, in_flight): picked after the engine's page was read and still in flight, so
    that page cannot tell of them.
    fill, 0 to 1 = kv_usage.
    refusals, in requests = 1000 x refused³, with refused the part, 0 to 1, of the attempts of late
    that it refused at once: it would else seem the least busy of all. So a few, as clients cause
    them, weigh next to nothing (one more than none: 0.2), half of them 125 requests that wait, and
    all of them 1000. It fades by itself, and with each attempt that is not refused.

    Missing signals: kv_usage null → work / (work + 32), where work = max(in_flight +
    others_in_flight, running); running null → queue = waiting + new. If one of the backends does
    not tell how many wait, the others' tellings cannot be held against its silence: then
    queue = max(in_flight + others_in_flight, running + waiting + new) for all of them, with null
    as 0, which is the fewest at work.
    """
    blind = None in [view.waiting for view in views]
    scores: list[float] = []
    for view in views:
        mine, picked, running = view.in_flight, view.picked, view.running or 0
        work = mine + view.others_in_flight
        queue = (view.waiting or 0) + (picked if picked < mine else mine)
        if blind:
            queue = max(work, running + queue)
        elif work - running > queue and view.running is not None:
            queue = work - running
        fill = view.kv_usage
        if fill is None:
            busy = max(work, running)
            fill = busy / (busy + WORK_OF_HALF)
        score = queue + (fill if fill < KV_FULL else KV_FULL)
        if view.refused:
            score += REFUSES_ALL * view.refused**3
        scores.append(score)
    return scores


def _words_of_load(view: BackendView, score: float) -> list[str]:
    words = ["waiting not told" if view.waiting is None else f"{view.waiting} waiting"]
    if view.running is not None:
        words.append(f"{view.running} running")
    words.append(f"{view.in_flight} in flight")
    if view.others_in_flight:
        words.append(f"{view.others_in_flight} of other gateways")
    if view.picked:
        words.append(f"{view.picked} picked since it was read")
    words.append("KV not told" if view.kv_usage is None else f"KV {view.kv_usage:.1%}")
    if view.refused:
        words.append(f"refused {view.refused:.0%} of late")
    return words


def weighted(request: Wanted, views: Sequence[BackendView]) -> list[float]:
    """score = 0 for all: nothing but the weights counts, and a backend's part of the requests is
    its weight x share over the sum of all. It needs no signal.

    With equal scores shared out over turns it is round robin, which knows nothing of how busy a
    backend is: for comparison.
    """
    return [0.0] * len(views)


def _words_of_weight(view: BackendView, score: float) -> list[str]:
    return ["by weight alone"]


def _words_of_turn(view: BackendView, score: float) -> list[str]:
    return ["its turn"]


POLICIES: Final[dict[Policy, Scoring]] = {
    "fewest_waiting": Scoring(fewest_waiting, _words_of_load),
    "round_robin": Scoring(weighted, _words_of_turn, by_turns=True),
    "weighted": Scoring(weighted, _words_of_weight),
}
