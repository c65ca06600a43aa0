"""Where the next request goes: a pure function of the request, what is known, and the rules.

Filter, score, pick. Later policies keep this signature; who acts on a choice never looks inside.
"""

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from operator import attrgetter

from gateway.routing.policies import POLICIES
from gateway.routing.views import BackendView, Choice, How, Policy, Rules, Ruling, Wanted

__all__ = ["BackendView", "Choice", "How", "Policy", "Rules", "Ruling", "Wanted", "choose"]

_Class = tuple[float, list[BackendView], list[float]]
"""A part of all requests, the backends of one weight x share that have it, and their scores."""

_SCORE: How = "score"
_EXPLORED: How = "explored"
_LAST_RESORT: How = "last_resort"

_CHANCE = 1 << 20
_REFUSES_MOST = 0.5
"""One that is half open and refused so much of late gets no trial until that has faded: each first
try would else go there, since a refusal neither closes it nor opens it again."""

_TRIAL = "a trial of a backend that may have recovered"
_DEFAULT = Rules()
_by_id = attrgetter("backend_id")


def choose(request: Wanted, state: Sequence[BackendView], rules: Rules = _DEFAULT) -> Choice | None:
    """The backend for `request`, null if there is none; lower scores are better.

    Filter: it serves the model, is not draining, and did not fail this request already. Of those:
    one that is half open, may have a trial now and does not refuse most gets the first try of a
    request; else one that is up, with a weight above 0 or, if there is none, without; else, as a
    last resort, one that is half open, or any. So a backend that recovered between two probes is
    found, and a request fails with words about it.

    Score: by `rules.policy`, see `gateway.routing.policies` for formula, units and missing signals.

    Pick: where weight x share differs, first a draw of one weight, by the sum of all that have it;
    so a canary has exactly its part, and whom score does not favour is no worse off. Among those of
    that weight the least score wins, but a part of the requests, `rules.explore`, goes to any of
    them. The draw, ties and exploration go by a hash of the request's id: spread evenly, and the
    same request in the same state would get the same backend again.
    """
    if request.only is not None:
        return _only(request, state)
    model, tried = request.model, request.tried
    fit = [
        view
        for view in state
        if ((models := view.models) is None or model in models) and not view.draining
    ]
    if tried:
        fit = [view for view in fit if view.backend_id not in tried]
    if not fit:
        return None
    if len(fit) == 1 and (one := fit[0]).up and one.trial is None and not one.refused:
        return _alone(
            rules.policy,
            len(state),
            one.backend_id,
            one.in_flight,
            one.others_in_flight,
            one.running,
            one.waiting,
            one.kv_usage,
            one.picked,
            one.weight,
        )
    # So that nothing hangs on the order in which the backends were given.
    fit.sort(key=_by_id)
    draw = _draw(request)
    due = [one for one in fit if one.trial and one.weight > 0 and one.refused < _REFUSES_MOST]
    if due and not tried:
        names = tuple(view.backend_id for view in due)
        name = names[(draw >> 40) % len(names)]
        return Choice(name, 0.0, (_TRIAL,), ((1.0, names),), how="trial")
    up = [view for view in fit if view.up and view.trial is None]
    # Those that are half open beyond their quota are known to answer.
    among = [view for view in up if view.weight > 0] or up or [view for view in fit if view.up]
    return _pick(request, among or fit, len(state), rules, draw, last_resort=not up)


@lru_cache(maxsize=4096)
def _alone(
    policy: Policy,
    known: int,
    backend_id: str,
    in_flight: int,
    others_in_flight: int,
    running: int | None,
    waiting: int | None,
    kv_usage: float | None,
    picked: int,
    weight: int,
) -> Choice:
    """The choice of the one backend that is fit: there is nothing to draw, and what scores and
    words are made from has mostly been seen before. A fleet of one server is what most have. It
    refuses nothing: how much it does changes all the time, so that would be kept in vain."""
    view = BackendView(
        backend_id,
        None,
        True,
        in_flight,
        others_in_flight,
        running,
        waiting,
        kv_usage,
        picked,
        weight=weight,
    )
    return _pick(Wanted("", ""), [view], known, Rules(policy), 0, last_resort=False)


def _only(request: Wanted, state: Sequence[BackendView]) -> Choice | None:
    """The one that was named, in whatever state it is: a probe is there to find out."""
    for view in state:
        if (
            view.backend_id == request.only
            and view.backend_id not in request.tried
            and (view.models is None or request.model in view.models)
        ):
            sure = ((1.0, (view.backend_id,)),)
            return Choice(view.backend_id, 0.0, ("asked for",), sure, how="asked")
    return None


def _pick(
    request: Wanted,
    among: list[BackendView],
    known: int,
    rules: Rules,
    draw: int,
    *,
    last_resort: bool,
) -> Choice:
    """The best of `among` in the weight that is drawn, or the one to explore there."""
    scoring, explore = POLICIES[rules.policy], rules.explore
    classes = _classes(among, scoring.score(request, among))
    drawn = _drawn(classes, draw % _CHANCE / _CHANCE)
    at = request.number if scoring.by_turns else draw >> 40
    odds: list[tuple[float, tuple[str, ...]]] = []
    best, score, how = among[0], 0.0, _SCORE
    for one in classes:
        part, views, scores = one
        if len(views) == 1:
            odds.append((part, (views[0].backend_id,)))
            if one is drawn:
                best, score = views[0], scores[0]
            continue
        least, tied = min(scores), views
        if least != max(scores):
            tied = [view for view, score in zip(views, scores, strict=True) if score == least]
            if explore:
                odds.append((part * explore, tuple([view.backend_id for view in views])))
                part *= 1 - explore
        odds.append((part, tuple([view.backend_id for view in tied])))
        if one is drawn:
            best, score = tied[at % len(tied)], least
            if tied is not views and (draw >> 20) % _CHANCE < explore * _CHANCE:
                number = at % len(views)
                best, score, how = views[number], scores[number], _EXPLORED
    words = scoring.words(best, score)
    if how is _EXPLORED:
        words.append(f"explored: {explore:.2%} of the requests go to any")
    if len(classes) > 1:
        words.append(_weighed(best, drawn[0]))
    if last_resort:
        how = _LAST_RESORT
        words.append("last resort: none is known to be up")
    elif not best.weight:
        words.append("its weight is 0 but no other is up")
    words.append(f"{len(among)} of {known} backends fit")
    return Choice(best.backend_id, score, tuple(words), tuple(odds), last_resort, how)


def _classes(among: list[BackendView], scores: list[float]) -> list[_Class]:
    """The backends by weight x share, the lightest first; where all are even, in one class."""
    weights = [view.weight * view.share for view in among]
    if min(weights) == max(weights):
        return [(1.0, among, scores)]
    found: dict[float, _Class] = {}
    for view, score, weight in zip(among, scores, weights, strict=True):
        if (same := found.get(weight)) is not None:
            same[1].append(view)
            same[2].append(score)
        elif weight:
            found[weight] = 0.0, [view], [score]
    total = sum(weights)
    return [
        (weight * len(views) / total, views, beside)
        for weight, (_part, views, beside) in sorted(found.items())
    ]


def _drawn(classes: list[_Class], chance: float) -> _Class:
    """The class that `chance`, 0 to 1, falls into."""
    for one in classes:
        if chance < one[0]:
            return one
        chance -= one[0]
    return classes[-1]


def _weighed(view: BackendView, part: float) -> str:
    rising = f" x {view.share:.2f} as it recovered" if view.share < 1 else ""
    return f"weight {view.weight}{rising}: drawn for {part:.1%} of the requests"


def _draw(request: Wanted) -> int:
    """A number that is fixed by the request's id and try, and looks like chance: 64 bits."""
    name = f"{request.request_id}/{len(request.tried)}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest())
