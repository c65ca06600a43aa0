"""When the demo may say that the books are right, and when not."""

from typing import Any

import msgspec
import pytest

from gateway.demo.checks import (
    LATE_TOKENS_MAX,
    Counters,
    billed,
    compare,
    door,
    read_counters,
    totals,
)
from ledger.events import Usage
from ledger.folds.requests import RequestRow

METRICS = """# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 41
llamacpp:prompt_tokens_cached_total 33
llamacpp:tokens_predicted_total 1.2e+01
llamacpp:requests_processing {busy}
"""
ENGINE = Counters(41, 33, 12)


def row(
    uncached: int | None = 41, cached: int | None = 33, out: int = 12, **more: Any
) -> RequestRow:
    usage = Usage(uncached_in=uncached, cached_in=cached, reasoning_out=0, other_out=out)
    values = {"basis": "reported", "outcome": "completed", "state": "finished"} | more
    return RequestRow(request_id="r-1", usage=usage, **values)


def cut(**more: Any) -> RequestRow:
    return row(basis="running", outcome="client_gone", **more)


def test_counters_are_read_from_the_metrics_page() -> None:
    assert read_counters(METRICS.format(busy=0)) == (ENGINE, True)
    assert read_counters(METRICS.format(busy=2)) == (ENGINE, False)
    with pytest.raises(ValueError, match="requests_processing"):
        read_counters(METRICS.partition("llamacpp:requests")[0])


def test_equal_numbers_need_no_explanation() -> None:
    found = compare("r-1", ENGINE, row())
    assert (found.same, found.explained) == (True, "")
    split = msgspec.structs.replace(
        row(), usage=Usage(uncached_in=41, cached_in=33, reasoning_out=5, other_out=7)
    )
    assert compare("r-1", ENGINE, split).same


@pytest.mark.parametrize("late", [1, LATE_TOKENS_MAX])
def test_tokens_made_after_a_hang_up_are_explained(late: int) -> None:
    found = compare("r-1", Counters(41, 33, 40), cut(out=40 - late))
    assert not found.same
    assert found.explained is not None and found.explained.startswith(f"{late} more")


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(row(out=11), id="a whole answer with a token less"),
        pytest.param(cut(out=13), id="more billed than made"),
        pytest.param(cut(uncached=40, out=11), id="other input"),
        pytest.param(cut(cached=0, out=11), id="other input from the cache"),
        pytest.param(cut(uncached=None, out=12), id="input unknown"),
        pytest.param(None, id="no row"),
    ],
)
def test_other_differences_are_not(wrong: RequestRow | None) -> None:
    assert compare("r-1", ENGINE, wrong).explained is None


def test_an_engine_that_goes_on_after_a_hang_up_is_not_excused() -> None:
    many = Counters(41, 33, 12 + LATE_TOKENS_MAX + 1)
    assert compare("r-1", many, cut()).explained is None


def test_totals_hold_only_if_all_adds_up() -> None:
    whole = compare("r-1", ENGINE, row())
    short = compare("r-2", Counters(5, 36, 14), cut(uncached=5, cached=36))
    engine, books = Counters(46, 69, 26), Counters(46, 69, 24)
    check = totals([whole, short], engine, books)
    assert check.holds
    assert check.seen.endswith("output 24 = 26 - 2 after the hang-up")
    assert totals([whole], ENGINE, ENGINE).seen.endswith("output 12 = 12")
    for compared, counted, bill, words in (
        ([whole, compare("r-3", ENGINE, None)], ENGINE, ENGINE, "no explanation for r-3"),
        ([whole], engine, ENGINE, "something else used the engine"),
        ([whole], ENGINE, books, "not the sum"),
    ):
        check = totals(compared, counted, bill)
        assert not check.holds and words in check.seen


def test_a_door_holds_only_for_the_right_answer() -> None:
    assert door("front", 200, 200).holds
    assert not door("back", 200, 401).holds


def test_a_bill_is_summed_over_its_lines() -> None:
    line = {"uncached_in": 3, "cached_in": None, "reasoning_out": 1, "other_out": 2}
    assert billed([line, line]) == Counters(6, 0, 6)
    assert billed([]) == Counters(0, 0, 0)
