"""What a dead spool leaves open, and that closing it says the same however often it is done."""

from datetime import timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.events import (
    Draft,
    Event,
    RequestAbandoned,
    RequestAttempted,
    RequestRejected,
    SourceClosed,
    SourceMark,
    Usage,
    payload_of,
)
from ledger.folds.requests import REQUEST_TYPES, RequestRow, fold_request
from streams.adoption import UNFOLDED_MAX, OpenRequest, SpoolLife, abandoned, closed
from streams.codec import decode, encode
from tests.streams.builders import START, accepted, attempted, delivered, finished

SOURCE = "/gateway/test/0192aa"


def events_of(*drafts: Draft, source: str = SOURCE) -> list[Event]:
    """The events that `source` would have written for `drafts`."""
    last: dict[str, int] = {}
    events = []
    for draft in drafts:
        topic = draft.payload.TOPIC
        last[topic] = last.get(topic, 0) + 1
        events.append(decode(encode(draft, source, last[topic], START)))
    return events


def life_of(events: list[Event]) -> SpoolLife:
    life = SpoolLife()
    for number, event in enumerate(events):
        life.take(event, payload_of(event), number * 100)
    return life


def at(seconds: int) -> timedelta:
    return timedelta(seconds=seconds)


def test_an_open_stream_is_closed_with_its_last_running_total() -> None:
    life = life_of(
        events_of(
            accepted("a"),
            attempted("a", START + at(1)),
            delivered("a", 1, 3, START + at(2)),
            delivered("a", 2, 9, START + at(3)),
        )
    )
    (draft,) = abandoned(SOURCE, life.open.values())
    assert (draft.id, draft.subject, draft.time) == ("a/abandoned", "key-1", START + at(3))
    said = draft.payload
    assert isinstance(said, RequestAbandoned)
    assert said.usage == Usage(uncached_in=7, other_out=9)
    assert (said.basis, said.chunks, said.attempts, said.backend_id) == ("running", 9, 1, "b-1")
    assert (said.accepted_at, said.abandoned_source) == (START, SOURCE)


@pytest.mark.parametrize("totals", [UNFOLDED_MAX - 3, UNFOLDED_MAX, 3 * UNFOLDED_MAX + 1])
def test_a_long_stream_is_closed_with_the_last_of_many_totals(totals: int) -> None:
    drafts = [delivered("a", n, n, START + at(n)) for n in range(1, totals + 1)]
    life = life_of(events_of(accepted("a"), attempted("a"), *drafts))
    for _ in range(2):
        (draft,) = abandoned(SOURCE, life.open.values())
        assert isinstance(draft.payload, RequestAbandoned)
        assert (draft.payload.chunks, draft.payload.attempts) == (totals, 1)
        assert draft.time == START + at(totals)


def test_a_plain_call_that_was_cut_has_no_count_at_all() -> None:
    life = life_of(events_of(accepted("a"), attempted("a")))
    (draft,) = abandoned(SOURCE, life.open.values())
    assert isinstance(draft.payload, RequestAbandoned)
    assert (draft.payload.basis, draft.payload.usage.known) == ("none", False)


def test_an_abandoned_request_is_billed_as_the_model_that_was_asked_last() -> None:
    tried = attempted("a", attempt=2)
    assert isinstance(tried.payload, RequestAttempted)
    other = msgspec.structs.replace(tried.payload, model="small")
    records = (
        accepted("a", model="big"),
        attempted("a"),
        msgspec.structs.replace(tried, payload=other),
    )
    for count, expected in ((2, ("big", None)), (3, ("small", "big"))):
        life = life_of(events_of(*records[:count], delivered("a", 1, 3)))
        (draft,) = abandoned(SOURCE, life.open.values())
        assert isinstance(draft.payload, RequestAbandoned)
        assert (draft.payload.model, draft.payload.asked_model) == expected


def test_what_ended_or_was_rejected_is_not_open() -> None:
    rejected = RequestRejected(request_id="c", key_id="key-1", status=404, code="model_not_found")
    life = life_of(
        events_of(
            accepted("a"),
            accepted("b"),
            finished("a"),
            Draft("c/rejected", "key-1", START, rejected),
            delivered("a", 9, 1),
            attempted("b", attempt=2),
        )
    )
    assert set(life.open) == {"b"}
    assert life.last == {"requests": 5, "tokens": 1}


def test_the_oldest_open_request_says_what_must_be_kept() -> None:
    events = events_of(accepted("a"), accepted("b"), delivered("a", 1, 1), finished("a"))
    assert life_of(events[:1]).oldest_open() == 0
    assert life_of(events[:3]).oldest_open() == 0
    assert life_of(events).oldest_open() == 100
    assert SpoolLife().oldest_open() is None


def test_a_source_that_closed_itself_is_known_as_closed() -> None:
    mark = Draft(f"{SOURCE}/mark/1", SOURCE, START, SourceMark(last={}, open=0))
    own = closed(SOURCE, {"requests": 2}, START + at(5), "itself")
    events = events_of(mark, accepted("a"), finished("a"), own)
    assert not life_of(events[:-1]).closed_itself
    life = life_of(events)
    assert life.closed_itself
    assert (life.source, life.last_time) == (SOURCE, START + at(5))


def test_an_adopter_that_closes_others_has_not_closed_itself() -> None:
    other = closed("/gateway/test/other", {"requests": 2}, START, "/runner/test/1")
    life = life_of(events_of(other, source="/runner/test/1"))
    assert not life.closed_itself
    assert life.source == "/runner/test/1"


def test_the_closing_of_a_source_names_its_last_sequences_and_who_did_it() -> None:
    draft = closed(SOURCE, {"requests": 7, "tokens": 3}, START, "/runner/test/1")
    assert (draft.id, draft.subject, draft.time) == (f"{SOURCE}/closed", SOURCE, START)
    assert draft.payload == SourceClosed(
        closed_source=SOURCE, last={"requests": 7, "tokens": 3}, by="/runner/test/1"
    )


@pytest.mark.parametrize("lost", ["key_id", "model", "endpoint", "stream", "accepted_at"])
def test_a_request_whose_acceptance_was_lost_is_left_out(lost: str) -> None:
    (event,) = events_of(accepted("a"))
    row = fold_request(None, event, payload_of(event))
    assert len(abandoned(SOURCE, [OpenRequest(row, START, 0)])) == 1
    fields = {name: getattr(row, name) for name in RequestRow.__struct_fields__} | {lost: None}
    assert abandoned(SOURCE, [OpenRequest(RequestRow(**fields), START, 0)]) == []


@st.composite
def traffic(draw: st.DrawFn) -> list[Event]:
    """The records of some requests, interleaved as they come, each at some stage of its life."""
    lives = []
    for number in range(draw(st.integers(0, 5))):
        name = f"r{number}"
        drafts = [accepted(name, START + at(number))]
        drafts += [
            attempted(name, START + at(number), n + 1) for n in range(draw(st.integers(0, 2)))
        ]
        drafts += [delivered(name, n, n * 3, START + at(n)) for n in range(draw(st.integers(0, 3)))]
        if draw(st.booleans()):
            drafts.append(finished(name, START + at(9)))
        lives.append(drafts)
    mixed: list[Draft] = []
    while any(lives):
        life = draw(st.sampled_from([life for life in lives if life]))
        mixed.append(life.pop(0))
    return events_of(*mixed)


def rows_of(events: list[Event]) -> dict[str, RequestRow]:
    rows: dict[str, RequestRow] = {}
    for event in events:
        payload = payload_of(event)
        if isinstance(payload, REQUEST_TYPES):
            known = rows.get(payload.request_id)
            rows[payload.request_id] = fold_request(known, event, payload)
    return rows


@given(traffic())
def test_with_its_closings_no_request_of_a_dead_spool_stays_open(events: list[Event]) -> None:
    life = life_of(events)
    closings = abandoned(SOURCE, life.open.values())
    rows = rows_of(events + events_of(*closings, source="/runner/test/1"))
    assert all(row.billed for row in rows.values())
    before = rows_of(events)
    for name, row in rows.items():
        assert (row.usage, row.basis, row.chunks) == (
            before[name].usage,
            before[name].basis,
            before[name].chunks,
        ), "a closing changes no count"


@given(traffic(), st.data())
def test_taking_a_tail_again_changes_nothing(events: list[Event], data: st.DataObject) -> None:
    again_from = data.draw(st.integers(0, len(events)))
    upto = data.draw(st.integers(again_from, len(events)))
    life = SpoolLife()
    for number in [*range(upto), *range(again_from, len(events))]:
        life.take(events[number], payload_of(events[number]), number * 100)
    once = life_of(events)
    assert life.last == once.last
    assert by_id(abandoned(SOURCE, life.open.values())) == by_id(
        abandoned(SOURCE, once.open.values())
    )


def by_id(drafts: list[Draft]) -> dict[str, Draft]:
    return {draft.id: draft for draft in drafts}
