"""The one table of topics: what each holds and for how long it is kept."""

from typing import Final, Literal

import msgspec


class Topic(msgspec.Struct, frozen=True):
    """One topic. `key` names the event attribute that orders it, `kept` how long it lasts.

    `ledger` is kept for ever in the table `events`; `while_open` only until its request has an end.
    """

    name: str
    key: str
    kept: Literal["ledger", "while_open"]
    holds: str


TOPICS: Final[dict[str, Topic]] = {
    topic.name: topic
    for topic in (
        Topic("requests", "subject", "ledger", "a request's life from accepted to its end"),
        Topic("tokens", "subject", "while_open", "running totals of open streams"),
        Topic("sources", "source", "ledger", "marks, and which source is closed"),
        Topic("registry", "subject", "ledger", "keys and prices, in one order"),
    )
}
