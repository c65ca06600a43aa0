"""What a spool leaves open when its writer dies, and the facts that close it. Pure.

Everything here follows from the records of that one spool and nothing else, so that adopting it
again, by whoever and after whatever crash, states the same facts under the same ids: the ledger
then sees a repetition and not a second truth.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime

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


class SpoolLife:
    """What one spool's records say so far. Records are taken in order, from the first that exists.

    Taking a run of records again changes nothing, if all that came after them is taken again too.
    """

    def __init__(self) -> None:
        self.open: dict[str, OpenRequest] = {}
        self.last: dict[str, int] = {}
        self.last_time: datetime | None = None
        self.source: str | None = None
        self.closed_itself = False

    def take(self, event: Event, payload: Payload, offset: int) -> None:
        """Go on by one record that was read from the log at or after `offset`."""
        self.source = event.source
        self.last[event.topic] = event.sequence
        self.last_time = event.time
        match payload:
            case RequestAccepted():
                self._hold(payload.request_id, None, event, payload, offset)
            case RequestAttempted() | TokensDelivered():
                known = self.open.get(payload.request_id)
                if known is not None:
                    model = known.model
                    if isinstance(payload, RequestAttempted):
                        model = payload.model
                    self._hold(payload.request_id, known.row, event, payload, known.offset, model)
            case RequestFinished():
                self.open.pop(payload.request_id, None)
            case SourceClosed():
                self.closed_itself |= payload.closed_source == event.source
            case _:
                # Rejections open nothing; marks, and what an adopter wrote for others, end nothing
                # of this source.
                return

    def oldest_open(self) -> int | None:
        """The lowest offset that is needed to close what is open; null if nothing is."""
        return min((request.offset for request in self.open.values()), default=None)

    def _hold(
        self,
        request_id: str,
        row: RequestRow | None,
        event: Event,
        payload: Payload,
        offset: int,
        model: str | None = None,
    ) -> None:
        row = fold_request(row, event, payload)
        self.open[request_id] = OpenRequest(row, event.time, offset, model)


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
