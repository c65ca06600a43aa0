"""The event that ended a request, as a part of any statement about requests."""

from typing import Final

from sqlalchemy import Text, cast, literal, select

from ledger.sql import tables

_EVENTS, _REQUESTS = tables.events.c, tables.requests.c

# One look-up by id for each row, in the statement itself: a statement of its own with thousands of
# ids takes Postgres longer to read than to answer.
ENDED_BY: Final = (
    select(_EVENTS.source + literal(":", Text) + cast(_EVENTS.sequence, Text))
    .where(_EVENTS.id == _REQUESTS.request_id + literal("/", Text) + _REQUESTS.state)
    .scalar_subquery()
    .label("ended_by")
)
"""`source:sequence` of that event; null while there is none, or none that the ledger holds."""
