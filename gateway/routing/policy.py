"""Where the next request goes: a pure function of the request, what is known, and the rules.

Filter, score, pick. Later policies keep this signature; who acts on a choice never looks inside.
"""

import hashlib
from collections.abc import Sequence
from operator import attrgetter

from gateway.routing.policies import POLICIES, Scoring
from gateway.routing.views import BackendView, Choice, Policy, Rules, Wanted

__all__ = ["BackendView", "Choice", "Policy", "Rules", "Wanted", "choose"]

_Odds = tuple[tuple[float, tuple[str, ...]], ...]

_CHANCE = 1 << 20
_TRIAL = "a trial of a backend that may have recovered"
_DEFAULT = Rules()
_by_id = attrgetter("backend_id")


def choose(request: Wanted, state: Sequence[BackendView], rules: Rules = _DEFAULT) -> Choice | None:
    """The backend for `request`, null if there is none; lower scores are better.

    Filter: it serves the model, is not draining, has a weight above 0, and did not fail this
    request already. Of those: one that is half open and may have a trial now gets the first try of
    a request; else one whose breaker is closed; else, as a last resort, any. So a backend that
    recovered between two probes is found, and a request fails with words about the server.

    Score: by `rules.policy`, see `gateway.routing.policies` for formula, units and missing signals.

    Pick: where weight x share differs, first a draw of one weight, by the sum of all that have it;
    so a canary has its part exactly, and the rest goes by score. Then the least score; ties, the
    draw, and `rules.explore` go by a hash of the request's id: spread evenly, and the same request
    in the same state would get the same backend again.
    """
    if request.only is not None:
        return _only(request, state)
    model, tried = request.model, request.tried
    fit = [
        view
        for view in state
        if ((models := view.models) is None or model in models)
        and not view.draining
        and view.weight > 0
    ]
    if tried:
        fit = [view for view in fit if view.backend_id not in tried]
    if not fit:
        return None
    # So that nothing hangs on the order in which the backends were given.
    fit.sort(key=_by_id)
    draw = _draw(request)
    due = [] if tried else [view for view in fit if view.trial]
    if due:
        best = _nth(due, draw)
        names = tuple(view.backend_id for view in due)
        return Choice(best.backend_id, 0.0, (_TRIAL,), ((1.0, names),))
    ready = [view for view in fit if view.up and view.trial is None]
    last_resort = not ready
    among = ready or fit
    scoring = POLICIES[rules.policy]
    best, score, words, odds = _pick(request, among, scoring, rules, draw)
    reasons = (*scoring.words(best, score), *words, f"{len(among)} of {len(state)} backends fit")
    if last_resort:
        reasons += ("last resort: none is known to be up",)
    return Choice(best.backend_id, score, reasons, odds, last_resort)


def _only(request: Wanted, state: Sequence[BackendView]) -> Choice | None:
    """The one that was named, in whatever state it is: a probe is there to find out."""
    for view in state:
        if (
            view.backend_id == request.only
            and view.backend_id not in request.tried
            and (view.models is None or request.model in view.models)
        ):
            return Choice(view.backend_id, 0.0, ("asked for",), ((1.0, (view.backend_id,)),))
    return None


def _pick(
    request: Wanted, among: list[BackendView], scoring: Scoring, rules: Rules, draw: int
) -> tuple[BackendView, float, tuple[str, ...], _Odds]:
    """The best of `among` with its score, why it was picked, and how the odds were."""
    if len(among) == 1:
        (one,) = among
        return one, scoring.score(request, among)[0], (), ((1.0, (one.backend_id,)),)
    weights = [view.weight * view.share for view in among]
    words: tuple[str, ...] = ()
    drawn, classes = among, [(1.0, among)]
    if min(weights) != max(weights):
        classes = _classes(among, weights)
        drawn, words = _class(classes, draw % _CHANCE / _CHANCE)
    odds: list[tuple[float, tuple[str, ...]]] = []
    best, least = drawn[0], 0.0
    for part, views in classes:
        scores = scoring.score(request, views)
        low = min(scores)
        tied = [view for view, score in zip(views, scores, strict=True) if score == low]
        if views is drawn:
            best, least = tied[0] if len(tied) == 1 else _nth(tied, draw), low
        shared = views if scoring.by_turns else tied
        odds.append((part, tuple([view.backend_id for view in shared])))
    if scoring.by_turns or not rules.explore or (len(odds) == 1 and len(odds[0][1]) == len(among)):
        return best, least, words, tuple(odds)
    explore, everyone = rules.explore, tuple([view.backend_id for view in among])
    told = ((explore, everyone), *((part * (1 - explore), names) for part, names in odds))
    if (draw >> 20) % _CHANCE < explore * _CHANCE:
        best = _nth(among, draw)
        score = scoring.score(request, among)[among.index(best)]
        return best, score, (f"explored: {explore:.2%} of the requests go to any",), told
    return best, least, words, told


def _classes(
    among: Sequence[BackendView], weights: Sequence[float]
) -> list[tuple[float, list[BackendView]]]:
    """The backends by weight x share, the lightest first, each with its part of the requests."""
    found: dict[float, list[BackendView]] = {}
    for view, weight in zip(among, weights, strict=True):
        found.setdefault(weight, []).append(view)
    total = sum(weight * len(views) for weight, views in found.items())
    return [
        (weight * len(found[weight]) / total, found[weight]) for weight in sorted(found) if weight
    ]


def _class(
    classes: Sequence[tuple[float, list[BackendView]]], chance: float
) -> tuple[list[BackendView], tuple[str, ...]]:
    for drawn in classes:
        if chance < drawn[0]:
            break
        chance -= drawn[0]
    part, views = drawn
    one = views[0]
    rising = f" of which {one.share:.0%} after it recovered" if one.share < 1 else ""
    return views, (f"drawn by weight {one.weight}{rising}: {part:.1%} of the requests",)


def _draw(request: Wanted) -> int:
    """A number that is fixed by the request's id and try, and looks like chance: 64 bits."""
    name = f"{request.request_id}/{len(request.tried)}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest())


def _nth(views: Sequence[BackendView], draw: int) -> BackendView:
    return views[(draw >> 40) % len(views)]
