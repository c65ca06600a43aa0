"""Where the next request goes: a pure function of the request, what is known, and the rules.

Filter, score, pick. Later policies keep this signature; who acts on a choice never looks inside.
"""

import hashlib
from collections.abc import Collection, Sequence

import msgspec


class BackendView(msgspec.Struct, frozen=True):
    """What one gateway knows of one backend now.

    `models` null: any name is passed on. `up` false: it did not answer when last asked; it is then
    only a last resort. `in_flight`: requests of this gateway that it is working on.
    """

    backend_id: str
    models: Collection[str] | None
    up: bool
    in_flight: int


class Wanted(msgspec.Struct, frozen=True):
    """The request, as far as routing may see it. `tried` are backends that failed it already;
    `only` is the one that it must go to, null for any."""

    request_id: str
    model: str
    tried: tuple[str, ...] = ()
    only: str | None = None


class Choice(msgspec.Struct, frozen=True):
    """The backend to call. `score` is what it won by, lower is better; `reasons` for a person."""

    backend_id: str
    score: float
    reasons: tuple[str, ...]


def choose(request: Wanted, state: Sequence[BackendView]) -> Choice | None:
    """Fewest in flight among the backends that serve the model; null if there is none.

    score = requests in flight from this gateway (a count; it is always known). A backend that is
    not up is taken only if no other is left, so that one which recovered between two probes is
    found. Ties go by a hash of the request's id: spread evenly, and the same request would get the
    same backend again.
    """
    fit = [
        view
        for view in state
        if view.backend_id not in request.tried
        and (request.only is None or request.only == view.backend_id)
        and (view.models is None or request.model in view.models)
    ]
    if not fit:
        return None
    candidates = [view for view in fit if view.up] or fit
    best = candidates[0]
    if len(candidates) > 1:
        least = min([view.in_flight for view in candidates])
        tied = [view for view in candidates if view.in_flight == least]
        best = tied[0] if len(tied) == 1 else min(tied, key=lambda view: _order(request, view))
    reasons = [f"{best.in_flight} in flight", f"{len(candidates)} of {len(state)} backends fit"]
    if not best.up:
        reasons.append("last resort: it did not answer when last asked")
    return Choice(best.backend_id, float(best.in_flight), tuple(reasons))


def _order(request: Wanted, view: BackendView) -> bytes:
    name = f"{request.request_id}/{view.backend_id}".encode()
    return hashlib.blake2b(name, digest_size=8).digest()
