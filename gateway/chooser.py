"""Which backend a request is sent to: the pure rule on what is known now, noted and counted."""

from collections import Counter

from gateway.backends.pool import Backend, Pool
from gateway.call import Call
from gateway.routing.policy import Ruling, Wanted, choose
from gateway.stats import Stats

TURNS_MAX = 1_000
"""Models whose requests are counted for turns. A backend that takes any name has no end of them."""


class Chooser:
    """Chooses for the requests of one gateway process, by the rules of their models."""

    def __init__(self, pool: Pool, stats: Stats, ruling: Ruling) -> None:
        self._pool = pool
        self._stats = stats
        self._ruling = ruling
        self._turns: Counter[str] = Counter()

    def choose(self, call: Call, tried: tuple[str, ...]) -> Backend | None:
        """The backend for the next try of `call`, told in `call.choice`; null if none is left.

        `tried` are those that failed it. Whoever calls the backend leases it at once: so the next
        choice, even in the same moment, sees this one in flight.
        """
        model = call.wish.model
        wanted = Wanted(call.request_id, model, tried, call.only, self._turns[model])
        choice = choose(wanted, self._pool.views(), self._ruling.of(model))
        if choice is None:
            return None
        if len(self._turns) >= TURNS_MAX:
            self._turns.clear()
        self._turns[model] += 1
        self._stats.picks[choice.backend_id, choice.how] += 1
        call.choice = choice
        return self._pool.backends[choice.backend_id]
