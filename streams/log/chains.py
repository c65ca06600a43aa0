"""The chains of one source: the head of each topic as its records come, `ledger.chain`. Pure."""

from ledger.chain import START, UNCHAINED_TOPICS, link_record


class Chains:
    """Takes every record of one source in order, from the first or from heads that were told."""

    def __init__(self, heads: dict[str, bytes] | None = None) -> None:
        self._heads = {} if heads is None else heads

    def take(self, topic: str, record: bytes) -> None:
        """Go on by one `record` of `topic`, as `streams.codec` wrote it."""
        if topic not in UNCHAINED_TOPICS:
            self._heads[topic] = link_record(self._heads.get(topic, START), record)

    def heads(self) -> dict[str, str]:
        """The head of each topic that is chained and of which a record came, 64 hex digits."""
        return {topic: head.hex() for topic, head in self._heads.items()}
