"""What routing is given and what it answers: the request, the backends as they seem now, the rules,
and the choice. Values only."""

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Literal

import msgspec

Policy = Literal["fewest_waiting", "round_robin", "weighted"]

How = Literal[
    "score",  # the least score, within the weight that was drawn
    "explored",  # any that is fit
    "trial",  # it is half open
    "last_resort",  # none is known to be up
    "asked",  # a probe of the gateway's own, that had to go there
]


class BackendView(msgspec.Struct, frozen=True):
    """What one gateway knows of one backend now.

    `models` null: any name is passed on. `up` false: its breaker is open, or it was not heard of
    yet; it is then only a last resort. `in_flight`: requests of this gateway that it is working on,
    `others_in_flight` those that other gateways tell of.

    From the engine's own page, null where it does not tell: `running` and `waiting` requests of
    whoever sent them, and `kv_usage`, the part of its KV memory in use, 0 to 1. `picked` counts
    this gateway's picks since that page was read, or since it was due to be read.

    `first_token_us` and `between_tokens_us` are moving averages of this gateway's answers.

    `weight`: percent of its usual part of the requests, 0 for none while another is up. `draining`:
    it gets no new request. `trial` null: its breaker is closed; else it is half open, and so many
    trial requests may begin now. `share`: 0 to 1, rising after it recovered. `refused`: the part of
    the attempts of late that it refused at once, 0 to 1 in hundredths.
    """

    backend_id: str
    models: Collection[str] | None
    up: bool
    in_flight: int
    others_in_flight: int = 0
    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    picked: int = 0
    first_token_us: int | None = None
    between_tokens_us: int | None = None
    weight: int = 100
    draining: bool = False
    trial: int | None = None
    share: float = 1.0
    refused: float = 0.0


class Wanted(msgspec.Struct, frozen=True):
    """The request, as far as routing may see it. `tried` are backends that failed it already;
    `only` is the one that it must go to (a probe of the gateway's own), null for any. `number`
    counts this gateway's requests for the model, for policies that go by turns."""

    request_id: str
    model: str
    tried: tuple[str, ...] = ()
    only: str | None = None
    number: int = 0


class Rules(msgspec.Struct, frozen=True):
    """How to choose for one model. `explore` is the part of the requests that goes to any backend
    that is fit, whatever its score, so that a wrong signal cannot starve one."""

    policy: Policy = "fewest_waiting"
    explore: float = 0.01


class Ruling(msgspec.Struct, frozen=True):
    """The rules of each model: `models` by name, `default` for every other."""

    default: Rules = Rules()
    models: Mapping[str, Rules] = msgspec.field(default_factory=dict)

    def of(self, model: str) -> Rules:
        """The rules for requests of `model`."""
        return self.models.get(model, self.default)


class Choice(msgspec.Struct, frozen=True):
    """The backend to call. `score` is what it won by, lower is better; `reasons` for a person.

    `odds` is how the draw stood: groups as (probability, backends that share it evenly). They add
    up to 1 and say what part of all requests each backend could expect at this moment.
    `last_resort` is true if no backend of the model is fit, and this one is tried all the same.
    `how` sorts choices for counting.
    """

    backend_id: str
    score: float
    reasons: tuple[str, ...]
    odds: tuple[tuple[float, tuple[str, ...]], ...] = ()
    last_resort: bool = False
    how: How = "score"

    @property
    def score_text(self) -> str:
        """The score as headers and events show it."""
        return _score_text(self.score)


@lru_cache(maxsize=4096)
def _score_text(score: float) -> str:
    return f"{score:.3f}"
