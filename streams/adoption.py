"""What a spool leaves open when its writer dies, and the facts that close it. Pure.

Everything here follows from the records of that one spool and nothing else, so that adopting it
again, by whoever and after whatever crash, states the same facts under the same ids: the ledger
then sees a repetition and not a second truth.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final

import msgspec

from ledger.events import (
    Draft,
    Event,
    Payload,
    RequestAbandoned,
    RequestAccepted,
    RequestAttempted,
    RequestFinished,
    SourceClosed,
    TokensDelivered,
)
from ledger.folds.requests import RequestRow, fold_request


class OpenRequest(msgspec.Struct, frozen=True):
    """An accepted request without an end: what is known of it, and when it was last heard of.

    `offset` is at or before its acceptance, in the same segment of the spool. `model` is the one
    that was asked last, null: the one of its acceptance.
    """

    row: RequestRow
    last_time: datetime
    offset: int
    model: str | None = None


UNFOLDED_MAX: Final = 32
"""Events of an open request that wait to be folded; a long stream tells its totals thousands of
times."""


class _Held:
    """An open request: what was folded of it, and what came since.

    Most requests end before anybody asks, and then nothing of them was folded for nothing.
    """

    __slots__ = ("_known", "_since", "offset")

    def __init__(self, offset: int, known: OpenRequest | None = None) -> None:
        self.offset = offset
        self._known = known
        self._since: list[tuple[Event, Payload]] = []

    def take(self, event: Event, payload: Payload) -> None:
        self._since.append((event, payload))
        if len(self._since) >= UNFOLDED_MAX:
            self.request()

    def request(self) -> OpenRequest:
        """How it stands now."""
        row, model, time = None, None, None
        if self._known is not None:
            row, model, time = self._known.row, self._known.model, self._known.last_time
        for event, payload in self._since:
            row, time = fold_request(row, event, payload), event.time
            if isinstance(payload, RequestAttempted):
                model = payload.model
        assert row is not None and time is not None, "it is held from its acceptance on"
        self._since.clear()
        self._known = OpenRequest(row, time, self.offset, model)
        return self._known


class SpoolLife:
    """What one spool's records say so far. Records are taken in order, from the first that exists.

    Taking a run of records again changes nothing, if all that came after them is taken again too.
    """

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}
        self.last: dict[str, int] = {}
        self.last_time: datetime | None = None
        self.source: str | None = None
        self.closed_itself = False

    @property
    def open(self) -> dict[str, OpenRequest]:
        """The requests without an end, by id, in the order of their acceptance."""
        return {request_id: held.request() for request_id, held in self._held.items()}

    @open.setter
    def open(self, requests: Mapping[str, OpenRequest]) -> None:
        self._held = {name: _Held(request.offset, request) for name, request in requests.items()}

    def take(self, event: Event, payload: Payload, offset: int) -> None:
        """Go on by one record that was read from the log at or after `offset`."""
        self.source = event.source
        self.last[event.topic] = event.sequence
        self.last_time = event.time
        if isinstance(payload, RequestFinished):
            self._held.pop(payload.request_id, None)
        elif isinstance(payload, RequestAccepted):
            held = self._held[payload.request_id] = _Held(offset)
            held.take(event, payload)
        elif isinstance(payload, RequestAttempted | TokensDelivered):
            known = self._held.get(payload.request_id)
            if known is not None:
                known.take(event, payload)
        elif isinstance(payload, SourceClosed):
            self.closed_itself |= payload.closed_source == event.source
        # Rejections open nothing; marks, and what an adopter wrote for others, end nothing of this
        # source.

    def oldest_open(self) -> int | None:
        """The lowest offset that is needed to close what is open; null if nothing is."""
        return min((held.offset for held in self._held.values()), default=None)


def abandoned(
    source: str, requests: Iterable[OpenRequest], adopter: str | None = None
) -> list[Draft]:
    """One `request.abandoned` for each of `requests` of the dead `source`, dated by its last event.

    `adopter` is the incarnation of an adopter that cannot know what was said of `source` before,
    by another adopter and from more of its records: its ids are then its own, and the fold says
    which of the two stands.

    A request of which nothing but running totals is known (its acceptance is lost) has no key to
    bill and is left out.
    """
    drafts = []
    for request in requests:
        row = request.row
        if row.key_id is None or row.model is None or row.endpoint is None:
            continue
        if row.stream is None or row.accepted_at is None:
            continue
        payload = RequestAbandoned(
            request_id=row.request_id,
            key_id=row.key_id,
            model=request.model or row.model,
            endpoint=row.endpoint,
            stream=row.stream,
            accepted_at=row.accepted_at,
            abandoned_source=source,
            basis=row.basis,
            usage=row.usage,
            backend_id=row.backend_id,
            attempts=row.attempts,
            chunks=row.chunks,
            asked_model=None if request.model in (None, row.model) else row.model,
        )
        name = f"{row.request_id}/abandoned{_suffix(adopter)}"
        drafts.append(Draft(name, row.key_id, request.last_time, payload))
    return drafts


def closed(
    source: str,
    last: Mapping[str, int],
    time: datetime,
    by: str,
    adopter: str | None = None,
    heads: Mapping[str, str] | None = None,
) -> Draft:
    """The `source.closed` of `source`. `time` is its last event's; `by` is `itself` or the adopter.

    `last` is the last sequence of each topic before this event; `adopter` as for `abandoned`.
    `heads` are those of the chains at `last`, null where whoever says this has not seen them.
    """
    given = None if heads is None else dict(heads)
    payload = SourceClosed(closed_source=source, last=dict(last), by=by, heads=given)
    return Draft(f"{source}/closed{_suffix(adopter)}", source, time, payload)


def _suffix(adopter: str | None) -> str:
    return "" if adopter is None else f"/{adopter}"
