"""Requests and usage: any order, any repetition, any cut of the events adds up to the same."""

from collections.abc import Iterable
from datetime import datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.events import BUCKETS, Draft, Event, RequestAttempted, Usage, payload_of
from ledger.folds.requests import REQUEST_TYPES, RequestRow, fold_request, fold_told
from ledger.folds.usage import EMPTY, ZERO, Cell, Rolled, by_bucket, changes, contribution
from tests.support import events
from tests.support.events import SOURCE, START, Scribe, after, tokens
from tests.support.strategies import lives, shuffled


def row_of(life: Iterable[Event], row: RequestRow | None = None) -> RequestRow | None:
    """The row after `life`, from `row` on."""
    for event in life:
        row = fold_request(row, event, payload_of(event))
    return row


def written(*drafts: Draft) -> list[Event]:
    return Scribe().write_all(*drafts)


def folded(*drafts: Draft) -> RequestRow:
    row = row_of(written(*drafts))
    assert row is not None
    return row


def test_an_open_request_shows_its_running_totals_and_is_on_no_bill() -> None:
    row = folded(*events.life("r1")[:3])
    assert (row.state, row.billed, row.chunks, row.attempts) == ("open", False, 2, 1)
    assert row.usage == tokens(out=2) and row.backend_id == "b-1" and row.basis == "running"
    assert contribution(row) is None and contribution(None) is None


def test_a_finished_request_has_all_that_its_end_said() -> None:
    finish = events.finished("r1", first_token_us=5, duration_us=9, overhead_us=2, reason="x")
    row = folded(events.accepted("r1", client_request="c"), finish)
    assert row == RequestRow(
        request_id="r1",
        state="finished",
        source=SOURCE,
        key_id="key-1",
        model="m",
        endpoint="chat",
        stream=True,
        accepted_at=START,
        backend_id="b-1",
        attempts=1,
        chunks=4,
        basis="reported",
        usage=tokens(),
        outcome="completed",
        status=200,
        reason="x",
        first_token_us=5,
        duration_us=9,
        overhead_us=2,
        client_request="c",
    )


def test_a_finish_alone_can_be_billed() -> None:
    row = folded(events.finished("r1"))
    assert row.billed and contribution(row) is not None


def test_an_abandoned_request_is_billed_by_its_last_running_totals() -> None:
    scribe, runner = Scribe(SOURCE), Scribe("/runner/test/1")
    life = scribe.write_all(*events.life("r1")[:3])
    row = row_of([*life, runner.write(events.abandoned("r1"))])
    assert row is not None and (row.state, row.outcome) == ("abandoned", "abandoned")
    assert row.source == SOURCE, "it was accepted by the gateway that died, not by its heir"
    assert row.usage == tokens(out=2) and row.basis == "running"


def test_a_finish_beats_an_abandonment_in_either_order() -> None:
    finish, given_up = written(events.finished("r1"), events.abandoned("r1"))
    one, other = row_of([finish, given_up]), row_of([given_up, finish])
    assert one == other and one is not None and one.state == "finished"


def test_of_two_running_totals_the_later_stands_in_either_order() -> None:
    early, late = events.delivered("r1", 1, 2), events.delivered("r1", 2, 9)
    assert folded(early, late).chunks == folded(late, early).chunks == 9


def test_usage_that_moves_between_two_chunks_is_not_lost_by_order() -> None:
    early = events.delivered("r1", 1, 0, usage=tokens(out=0))
    late = events.delivered("r1", 2, 0, usage=tokens(out=1))
    assert folded(early, late).usage == folded(late, early).usage == tokens(out=1)


@given(st.permutations(range(4)))
def test_another_model_than_was_asked_for_is_billed_in_any_order(order: list[int]) -> None:
    attempt = events.attempted("r1")
    assert isinstance(attempt.payload, RequestAttempted)
    asked = msgspec.structs.replace(attempt.payload, model="small")
    life = written(
        events.accepted("r1", model="big"),
        msgspec.structs.replace(attempt, payload=asked),
        events.delivered("r1"),
        events.finished("r1", model="small", asked_model="big"),
    )
    row = row_of(life[index] for index in order)
    assert row is not None and row == row_of(life) and row.model == "small"
    found = contribution(row)
    assert found is not None and found[0].model == "small"


def test_the_backend_is_that_of_the_last_attempt() -> None:
    second = events.attempted("r1", 2, backend_id="b-2")
    assert folded(second, events.attempted("r1", 1)).backend_id == "b-2"


@pytest.mark.parametrize(
    "draft",
    [
        events.rejected("r1"),
        events.mark(SOURCE, 1, START, {}),
        events.closed(SOURCE, START, {}),
        events.key_issued("k1"),
        events.price("p1", {}),
    ],
    ids=lambda draft: type(draft.payload).__name__,
)
def test_what_is_no_event_of_an_accepted_request_is_a_mistake_of_the_caller(draft: Draft) -> None:
    assert not isinstance(draft.payload, REQUEST_TYPES)
    with pytest.raises(TypeError, match="not an event of an accepted request"):
        folded(draft)


@given(st.data(), lives())
def test_any_order_and_repetition_gives_the_same_row(
    data: st.DataObject, life: list[Draft]
) -> None:
    in_order = written(*life)
    assert row_of(data.draw(shuffled(in_order))) == row_of(in_order)


@given(st.data(), lives())
def test_a_fold_can_be_cut_written_down_and_taken_up_again(
    data: st.DataObject, life: list[Draft]
) -> None:
    order = data.draw(shuffled(written(*life)))
    cut = data.draw(st.integers(0, len(order)))
    stored = msgspec.json.encode(row_of(order[:cut]))
    row = msgspec.json.decode(stored, type=RequestRow | None)
    assert row_of(order[cut:], row) == row_of(order)


@given(st.data(), lives())
def test_no_event_lowers_a_total(data: st.DataObject, life: list[Draft]) -> None:
    row, seen = None, (0, 0, 0)
    for event in data.draw(shuffled(written(*life))):
        row = fold_request(row, event, payload_of(event))
        found = contribution(row)
        totals = found[1].totals if found else ZERO
        now = (totals.requests, sum(totals.tokens[:3]), sum(totals.tokens[3:]))
        assert all(new >= old for new, old in zip(now, seen, strict=True)), (seen, now)
        seen = now


@given(st.data(), st.integers(1, 4))
def test_requests_do_not_disturb_each_other(data: st.DataObject, count: int) -> None:
    ids = [f"r{n}" for n in range(count)]
    by_id = {name: written(*data.draw(lives(name))) for name in ids}
    mixed = data.draw(shuffled([event for life in by_id.values() for event in life]))
    rows: dict[str, RequestRow] = {}
    for event in mixed:
        name = event.id.partition("/")[0]
        rows[name] = fold_request(rows.get(name), event, payload_of(event))
    assert rows == {name: row_of(life) for name, life in by_id.items()}


def summed(parts: Iterable[dict[Cell, Rolled]]) -> dict[Cell, Rolled]:
    """All changes added up, cells that come to nothing left out."""
    total: dict[Cell, Rolled] = {}
    for part in parts:
        for cell, moved in part.items():
            total[cell] = total.get(cell, EMPTY).plus(moved)
    return {cell: rolled for cell, rolled in total.items() if not rolled.nothing}


@given(st.data(), st.integers(1, 3))
def test_roll_up_changes_add_up_to_the_contributions_in_any_batches(
    data: st.DataObject, count: int
) -> None:
    ids = [f"r{n}" for n in range(count)]
    mixed = data.draw(shuffled([e for name in ids for e in written(*data.draw(lives(name)))]))
    rows: dict[str, RequestRow] = {}
    moves = []
    while mixed:
        size = data.draw(st.integers(1, len(mixed)))
        batch, mixed = mixed[:size], mixed[size:]
        before = dict(rows)
        for event in batch:
            name = event.id.partition("/")[0]
            rows[name] = fold_request(rows.get(name), event, payload_of(event))
        moves.append(changes((before.get(name), row) for name, row in rows.items()))
    end = [
        (cell, rolled)
        for row in rows.values()
        for cell, rolled in filter(None, [contribution(row)])
    ]
    assert summed(moves) == summed({cell: rolled} for cell, rolled in end)


def test_a_replay_moves_the_roll_up_by_nothing() -> None:
    row = folded(*events.life("r1"))
    assert changes([(row, row)]) == {}


def test_a_better_basis_moves_the_request_to_another_cell() -> None:
    given_up, done = folded(events.abandoned("r1")), folded(events.finished("r1"))
    moved = changes([(given_up, done)])
    assert {cell.basis: rolled.totals.requests for cell, rolled in moved.items()} == {
        "running": -1,
        "reported": 1,
    }


def test_changes_can_be_taken_back() -> None:
    opened, done = folded(events.accepted("r1")), folded(events.finished("r1"))
    there, back = changes([(opened, done)]), changes([(done, opened)])
    assert summed([there, back]) == {} and len(there) == 1


@pytest.mark.parametrize("text", ["2026-11-03T10:15:00Z", "2026-11-03T15:45:00+05:30"])
def test_a_request_counts_in_the_utc_hour_of_its_acceptance(text: str) -> None:
    at = datetime.fromisoformat(text)
    row = RequestRow(request_id="r", state="finished", key_id="k", model="m", accepted_at=at)
    found = contribution(row)
    assert found is not None and found[0].hour == START.replace(minute=0)


def test_the_edge_of_an_hour_belongs_to_the_hour_that_begins() -> None:
    edge = START.replace(hour=11, minute=0)
    hours = [
        found[0].hour.hour
        for at in (edge - timedelta(microseconds=1), edge)
        if (found := contribution(folded(events.finished("r1", at))))
    ]
    assert hours == [10, 11]


def test_unknown_is_null_and_zero_is_zero() -> None:
    some = folded(events.finished("r1", usage=Usage(other_out=0), basis="counted"))
    found = contribution(some)
    assert found is not None
    expected: dict[str, int | None] = dict.fromkeys(BUCKETS)
    assert by_bucket(found[1].totals) == expected | {"other_out": 0}


def test_calls_that_failed_and_time_with_a_backend_are_rolled_up() -> None:
    """A request that was never passed on has made no call; an abandoned one has no known time."""
    rows = [
        folded(events.finished("r1", attempts=3, duration_us=9, overhead_us=2)),
        folded(events.finished("r2", attempts=0, duration_us=5, overhead_us=5)),
        folded(events.finished("r3", attempts=2)),
        folded(events.accepted("r4"), events.attempted("r4", 3)),
    ]
    (rolled,) = changes((None, row) for row in rows).values()
    assert (rolled.totals.requests, rolled.failed_attempts) == (3, 3)
    assert (rolled.busy_us, rolled.busy_known, rolled.busy) == (7, 2, 7)
    assert contribution(rows[3]) is None
    unknown = contribution(rows[2])
    assert unknown is not None and unknown[1].busy is None


def test_only_a_longer_time_with_a_backend_moves_the_roll_up() -> None:
    short, long = (
        folded(events.finished("r1", duration_us=9 + more, overhead_us=2)) for more in (0, 4)
    )
    (moved,) = changes([(short, long)]).values()
    assert moved == Rolled(ZERO, 0, 4, 0)


def test_an_end_without_key_or_model_is_a_programming_error() -> None:
    with pytest.raises(AssertionError, match="has an end"):
        contribution(RequestRow(request_id="r1", state="finished", accepted_at=after(0)))


@given(st.lists(lives(), min_size=1, max_size=2), st.data())
def test_events_that_are_folded_at_once_give_what_they_give_one_by_one(
    same: list[list[Draft]], data: st.DataObject
) -> None:
    """In any order, from any row, and with everything told twice or by two sources."""
    told = [(event, payload_of(event)) for life in same for event in written(*life)]
    told = [one for one in told if isinstance(one[1], REQUEST_TYPES)]
    told = data.draw(st.permutations(told + told[:2]))
    cut = data.draw(st.integers(0, len(told) - 1))
    before = None
    for event, payload in told[:cut]:
        before = fold_request(before, event, payload)
    one_by_one = before
    for event, payload in told[cut:]:
        one_by_one = fold_request(one_by_one, event, payload)
    assert fold_told(before, told[cut:]) == one_by_one
