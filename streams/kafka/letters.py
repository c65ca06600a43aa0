"""What a dead letter looks like: a record that nobody could take, and why. Pure.

The record's own headers and value stay as they were; what is added are headers that begin with
`tollbook-`. The key names the place the record came from, so that one that was sent aside twice,
because a process died in between, is seen to be one.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

Headers = list[tuple[str, bytes]]

MARK: Final = "tollbook-"
"""Begins every header that a dead letter adds; no record of ours has one before."""

NOWHERE: Final = -1
"""Partition and offset of a record that no broker ever took."""


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A record set aside. `topic` is its name on the broker, `by` the role that set it aside.

    `partition` and `offset` are `NOWHERE` for a record that a broker refused. `cut` is true if the
    value was too large to be kept with what is added; then `value` is null.
    """

    topic: str
    partition: int
    offset: int
    reason: str
    by: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    cut: bool = False

    @property
    def place(self) -> str:
        """Names this letter: `TOPIC/PARTITION/OFFSET`, or its event for one that has no offset."""
        if self.offset >= 0:
            return f"{self.topic}/{self.partition}/{self.offset}"
        said = dict(self.headers)
        name = b"/".join(said.get(header, b"") for header in ("ce_source", "ce_sequence"))
        return f"{self.topic}/{name.decode(errors='replace')}"


class Sent(msgspec.Struct, frozen=True):
    """What goes to the broker for a dead letter."""

    key: bytes
    value: bytes | None
    headers: Headers


def sent_of(letter: DeadLetter) -> Sent:
    """The record that carries `letter`."""
    added = {
        "topic": letter.topic.encode(),
        "partition": b"%d" % letter.partition,
        "offset": b"%d" % letter.offset,
        "reason": letter.reason.encode(errors="replace"),
        "by": letter.by.encode(),
    }
    if letter.key is not None:
        added["key"] = letter.key
    if letter.value is None or letter.cut:
        added["value"] = b"cut" if letter.cut else b"null"
    headers = [(MARK + name, value) for name, value in added.items()]
    value = None if letter.cut else letter.value
    return Sent(letter.place.encode(), value, [*letter.headers, *headers])


def letter_of(headers: Iterable[tuple[str, bytes]], value: bytes | None) -> DeadLetter | None:
    """The dead letter in a record; null if it is none. Any bytes give an answer."""
    own: Headers = []
    added: dict[str, bytes] = {}
    for name, said in headers:
        if name.startswith(MARK):
            added[name.removeprefix(MARK)] = said
        else:
            own.append((name, said))
    try:
        return DeadLetter(
            topic=added["topic"].decode(),
            partition=int(added["partition"]),
            offset=int(added["offset"]),
            reason=added["reason"].decode(errors="replace"),
            by=added.get("by", b"").decode(errors="replace"),
            key=added.get("key"),
            value=None if added.get("value") == b"null" else value,
            headers=own,
            cut=added.get("value") == b"cut",
        )
    except (KeyError, ValueError):
        return None
