"""Attempts: put together from two events each, in any order and any batches, to the same rows."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select

from ledger.events import Draft, Event, RequestAttempted, payload_of
from ledger.folds.attempts import AttemptRow, merged, told_by
from ledger.sql import tables
from tests.ledger.ledgers import Feeder, Make, scribed
from tests.support import events as say
from tests.support.events import START, after


def told(events: Iterable[Event]) -> Iterable[AttemptRow]:
    for event in events:
        payload = payload_of(event)
        assert isinstance(payload, RequestAttempted)
        yield from told_by(event, payload)


def tries(request_id: str, failures: Iterable[str | None]) -> list[Draft]:
    """A first attempt, and another one after each of `failures`."""
    life = [say.attempted(request_id, 1, START, backend_id="b-1")]
    for number, words in enumerate(failures, start=2):
        at = after(number)
        life.append(say.attempted(request_id, number, at, backend_id=f"b-{number}", after=words))
    return life


FAILURES = st.lists(st.sampled_from(["connect refused", "no first byte", "", None]), max_size=3)


def test_an_attempt_has_its_backend_its_time_and_why_it_failed() -> None:
    rows = merged(told(scribed(tries("r", ["connect refused"]))))
    assert list(rows.values()) == [
        AttemptRow(
            request_id="r",
            attempt=1,
            backend_id="b-1",
            started_at=START,
            failed="connect refused",
        ),
        AttemptRow(request_id="r", attempt=2, backend_id="b-2", started_at=after(2)),
    ]


def test_a_failure_alone_is_a_row_whose_rest_is_not_known_yet() -> None:
    (_, second) = scribed(tries("r", ["connect refused"]))
    rows = merged(told([second]))
    assert rows["r", 1] == AttemptRow(request_id="r", attempt=1, failed="connect refused")


@given(st.data(), FAILURES, FAILURES)
def test_any_order_and_repetition_gives_the_same_rows(
    data: st.DataObject, one: list[str | None], other: list[str | None]
) -> None:
    life = scribed([*tries("r1", one), *tries("r2", other)])
    repeats = data.draw(st.lists(st.sampled_from(life), max_size=4))
    order: list[Event] = data.draw(st.permutations(life + repeats))
    assert merged(told(order)) == merged(told(life))
    cut = data.draw(st.integers(0, len(order)))
    parts = [*merged(told(order[:cut])).values(), *merged(told(order[cut:])).values()]
    assert merged(parts) == merged(told(life))


@pytest.mark.parametrize("failures", [[], ["refused"], ["", "slow"], [None, "slow"]], ids=str)
def test_the_table_has_the_same_rows_in_any_order_of_any_batches(
    make_ledger: Make, tmp_path: Path, failures: list[str | None]
) -> None:
    life = scribed([say.accepted("r"), *tries("r", failures)])
    columns = [c for c in tables.attempts.columns if c.name != "started_us"]
    wanted = [
        (row.request_id, row.attempt, row.backend_id, row.failed)
        for row in merged(told(life[1:])).values()
    ]
    for order in (life, life[::-1]):
        with make_ledger(tmp_path, "ledger") as ledger:
            feeder = Feeder(ledger)
            for event in order:
                feeder.feed([event])
            feeder.feed(order)
            with ledger.read() as read:
                found = read.rows(select(*columns).order_by(*tables.attempts.primary_key.columns))
            assert [tuple(row) for row in found] == sorted(wanted)
        (tmp_path / "ledger.db").unlink(missing_ok=True)
