"""The chains of one source: the head of each topic as its records come, `ledger.chain`. Pure."""

from ledger.chain import START, UNCHAINED_TOPICS, link_record

_TOPIC = b',"topic":"'


class Chains:
    """Takes every record of one source in order, from the first or from heads that were told."""

    def __init__(self, heads: dict[str, bytes] | None = None) -> None:
        self._heads = {} if heads is None else heads

    def take(self, record: bytes) -> None:
        """Go on by one `record`, as `streams.codec` wrote it."""
        # Within a JSON text a quote is escaped, so this can only be the name of the field; names
        # of topics hold nothing that would be escaped.
        start = record.index(_TOPIC) + len(_TOPIC)
        topic = record[start : record.index(b'"', start)].decode()
        if topic not in UNCHAINED_TOPICS:
            self._heads[topic] = link_record(self._heads.get(topic, START), record)

    def heads(self) -> dict[str, str]:
        """The head of each topic that is chained and of which a record came, 64 hex digits."""
        return {topic: head.hex() for topic, head in self._heads.items()}
