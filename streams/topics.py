"""The one table of topics: what each holds, its key, how long it lasts, who writes and who reads.

An event's `topic` is the name here without the prefix that an installation gives all of them on
Kafka. Derived topics hold values and no events.
"""

from typing import Final, Literal

import msgspec

Kept = Literal["ledger", "while_open", "window", "derived"]
DAY_MS: Final = 86_400_000
FOREVER: Final = -1


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """One topic.

    `key` names what orders it: an event attribute, or the key of a derived value. `kept`: for ever
    in the ledger's table `events`; only until its request has an end; only in a window of time; or
    `derived`, which can be made again from the others. `split`: it has the installation's number
    of partitions, else one. `retention_ms` is Kafka's, -1 for ever; a compacted topic keeps the
    last value of each key, and a key without a value (a tombstone) is gone. `kafka` is its name
    there behind the prefix, where that is not `name`.
    """

    name: str
    key: str
    kept: Kept
    holds: str
    writers: str
    readers: str
    split: bool = False
    compacted: bool = False
    retention_ms: int = FOREVER
    kafka: str | None = None

    def on_kafka(self, prefix: str) -> str:
        """The topic's name on a broker."""
        return f"{prefix}.{self.kafka or self.name}"

    def partitions(self, split: int) -> int:
        """How many partitions it has where split topics have `split`."""
        return split if self.split else 1

    def config(self) -> dict[str, str]:
        """The topic's settings on a broker, by Kafka's names."""
        said = {
            "cleanup.policy": "compact" if self.compacted else "delete",
            "message.timestamp.type": "CreateTime" if self.compacted else "LogAppendTime",
        }
        if self.compacted:
            # A gateway that was away for a day still learns what is gone.
            said["delete.retention.ms"] = str(DAY_MS)
        else:
            said["retention.ms"] = str(self.retention_ms)
        return said


TOPICS: Final[dict[str, Topic]] = {
    topic.name: topic
    for topic in (
        Topic(
            name="requests",
            key="subject",
            kept="ledger",
            holds="a request's life from accepted to its end",
            writers="relay",
            readers="ledger writer, worker",
            split=True,
            retention_ms=30 * DAY_MS,
        ),
        Topic(
            name="tokens",
            key="subject",
            kept="while_open",
            holds="running totals of open streams",
            writers="relay",
            readers="ledger writer",
            split=True,
            retention_ms=7 * DAY_MS,
        ),
        Topic(
            name="sources",
            key="source",
            kept="ledger",
            holds="marks, and which source is closed",
            writers="relay, tollbook sources close",
            readers="ledger writer",
            retention_ms=30 * DAY_MS,
        ),
        Topic(
            name="backends",
            key="subject",
            kept="window",
            holds="what each gateway saw of each backend",
            writers="relay",
            readers="worker",
            split=True,
            retention_ms=DAY_MS,
        ),
        Topic(
            name="counters",
            key="subject",
            kept="ledger",
            holds="what the engines' own counters said, to reconcile with",
            writers="relay",
            readers="ledger writer",
            split=True,
            retention_ms=30 * DAY_MS,
        ),
        Topic(
            name="registry",
            key="subject",
            kept="ledger",
            holds="keys, prices and backends, in one order",
            writers="tollbook keys, prices and backends",
            readers="ledger writer, worker, every registry command",
            kafka="registry-log",
        ),
        Topic(
            name="registry-state",
            key="key/ID, price/MODEL or backend/ID",
            kept="derived",
            holds="the newest state of each key, price and backend",
            writers="worker",
            readers="gateway",
            compacted=True,
            kafka="registry",
        ),
        Topic(
            name="routing-state",
            key="BACKEND/GATEWAY",
            kept="derived",
            holds="one view of each backend by each gateway, with an epoch and an expiry",
            writers="worker",
            readers="gateway",
            split=True,
            compacted=True,
        ),
        Topic(
            name="usage-by-key",
            key="key id",
            kept="derived",
            holds="live totals of each key, with what they have counted already",
            writers="worker",
            readers="gateway",
            split=True,
            compacted=True,
        ),
        Topic(
            name="dead-letters",
            key="TOPIC/PARTITION/OFFSET",
            kept="window",
            holds="records that are no events, or that a broker refused, with the reason",
            writers="ledger writer, worker, relay",
            readers="tollbook dead-letters",
            retention_ms=90 * DAY_MS,
        ),
    )
}

EVENT_TOPICS: Final = ("requests", "tokens", "sources", "backends", "counters", "registry")
"""Topics that hold events, by name."""

LEDGER_TOPICS: Final = ("requests", "tokens", "sources", "counters", "registry")
"""Topics that the ledger writer reads."""
