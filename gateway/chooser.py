"""Which backend a request is sent to: the pure rule on what is known now, noted and counted."""

from collections import Counter

import msgspec

from gateway.backends.pool import Backend, Pool
from gateway.call import Call
from gateway.routing.policy import Choice, Ruling, Wanted, choose
from gateway.stats import Stats

FALLEN_BACK = "fallback, as no backend of the model asked for is fit"

TURNS_MAX = 1_000
"""Models whose requests are counted for turns. A backend that takes any name has no end of them."""


class Chooser:
    """Chooses for the requests of one gateway process, by the rules of their models."""

    def __init__(self, pool: Pool, stats: Stats, ruling: Ruling) -> None:
        self._pool = pool
        self._stats = stats
        self._ruling = ruling
        self._turns: Counter[str] = Counter()

    def choose(self, call: Call, tried: tuple[str, ...], *, fit: bool = False) -> Backend | None:
        """The backend for the next try of `call`, told in `call.choice`; null if none is left.

        `tried` are those that failed it. Whoever calls the backend leases it at once: so the next
        choice, even in the same moment, sees this one in flight. Where no backend of its model is
        fit, it is one of the first model in `call.fallbacks` that has one. `fit`: only one of its
        own model will do, and none as a last resort.
        """
        model = call.wish.model
        choice = self._choice(call, model, tried)
        if fit and choice is not None and choice.last_resort:
            return None
        if (choice is None or choice.last_resort) and call.fallbacks and not fit:
            model, choice = self._other(call, model, tried, choice)
        if choice is None:
            return None
        if not tried and choice.how != "asked":
            # Second tries and probes take no turn: they come in step with what they follow, and so
            # would give the same backend every first try.
            if len(self._turns) >= TURNS_MAX:
                self._turns.clear()
            self._turns[model] += 1
        self._stats.picks[choice.backend_id, choice.how] += 1
        if choice.how != "asked":
            self._stats.drawn[choice.odds] += 1
        call.choice = choice
        return self._pool.backends[choice.backend_id]

    def _choice(self, call: Call, model: str, tried: tuple[str, ...]) -> Choice | None:
        wanted = Wanted(call.request_id, model, tried, call.only, self._turns[model])
        return choose(wanted, self._pool.views(), self._ruling.of(model))

    def _other(
        self, call: Call, model: str, tried: tuple[str, ...], choice: Choice | None
    ) -> tuple[str, Choice | None]:
        """The model that answers in place of `model`, and where; as it was if none can."""
        for name in call.fallbacks:
            found = self._choice(call, name, tried)
            if found is not None and not found.last_resort:
                asked = call.asked_model or model
                self._stats.fallbacks[asked, name] += 1
                call.fall_back(name)
                reasons = (FALLEN_BACK, *found.reasons)
                return name, msgspec.structs.replace(found, reasons=reasons)
        return model, choice
