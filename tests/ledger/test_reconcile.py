"""Reconciliation: within the bound exactly if nobody called the engine around the gateway."""

import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.cuts import POLICIES
from gateway.wire.endpoints import ENDPOINTS
from ledger.events import Usage
from ledger.events.requests import SYSTEM_KEY_ID
from ledger.folds.causes import cause_words, finding, verdict, window_words
from ledger.folds.counters import (
    COUNTINGS,
    COUNTS_ONLY,
    READS_ONLY,
    Counting,
    Measure,
    Reading,
    Span,
    counting_of,
    in_line,
    moved,
    spans,
    value_of,
)
from ledger.folds.reconcile import (
    STALLED,
    TEMPLATE_TOKENS_MAX,
    Ran,
    Several,
    Side,
    Whole,
    Window,
    reckon,
)
from tests.support.engine_sim import SECONDS, ZERO, Sim, at, llama, simulated

HOURS = timedelta(seconds=SECONDS)
SKEW = timedelta(seconds=2)


def whole(seconds: float, tokens: tuple[int, int, int] = (10, 0, 5), **more: Any) -> Ran:
    """A request of three seconds that ended well."""
    a, b, c = tokens
    said: dict[str, Any] = {
        "request_id": f"r{seconds}",
        "outcome": "completed",
        "basis": "reported",
        "usage": Usage(uncached_in=a, cached_in=b, cache_write_in=0, reasoning_out=0, other_out=c),
        "started": at(ZERO, seconds),
        "ended": at(ZERO, seconds + 3),
        "first_token": at(ZERO, seconds + 1),
        "held_out": 100,
    }
    return Ran(**(said | more))


def window(line: list[Reading], *ran: Ran, known: Whole | None = None) -> Window:
    found = reckon("b", Span(tuple(line)), known or Whole(), ran)
    assert found is not None
    return found


def side(found: Window, name: str = "out") -> Side:
    return next(side for side in found.sides if side.side == name)


def names(side: Side) -> list[str]:
    return [cause.name for cause in side.causes]


def hidden(sim: Sim, found: Window) -> bool:
    """True if the engine restarted in that time and every counter had soon grown beyond what it
    was, with no reading in between and no word of when its process began."""
    moments = [at(ZERO, when) for when in sim.restarts]
    shown = [
        when
        for when in moments
        if any(gap.after - SKEW <= when <= gap.before + SKEW for gap in found.restarts)
    ]
    return any(
        found.start - SKEW < when < found.end + SKEW for when in moments if when not in shown
    )


@given(seed=st.integers(0, 2**32))
@settings(max_examples=80)
def test_without_a_back_door_every_difference_is_explained(seed: int) -> None:
    sim = simulated(seed, ZERO)
    dice = random.Random(seed)
    line = in_line(sim.readings(dice.choice((10, 60, 200)), dice.choice((0, 0.2, 0.8))))
    for span in spans(line, ZERO, ZERO + HOURS):
        found = reckon("b", span, Whole(), sim.ran)
        assert found is not None
        for looked in found.sides:
            # A restart that no reading shows takes tokens with it, but it never makes a back door.
            assert looked.beyond <= 0, looked
            assert not looked.beyond or hidden(sim, found), looked


@given(seed=st.integers(0, 2**32), size=st.integers(1, 10**6))
@settings(max_examples=80)
def test_a_back_door_is_found_where_it_is_larger_than_the_bound(seed: int, size: int) -> None:
    sim = simulated(seed, ZERO, requests=12)
    measure = sim.dice.choice([one for one in sim.counting.measures if one.binds])
    when = sim.dice.uniform(60, SECONDS - 60)
    sim.back_door(when, measure.side, size)
    line = in_line(sim.readings(15, 0.1))
    for span in spans(line, ZERO, ZERO + HOURS):
        found = reckon("b", span, Whole(), sim.ran)
        assert found is not None
        inside = found.start + SKEW < at(ZERO, when) < found.end - SKEW
        outside = not found.start - SKEW < at(ZERO, when) < found.end + SKEW
        looked = side(found, measure.side)
        if inside and not found.restarts and not hidden(sim, found):
            assert looked.engine >= size
            if size > looked.high - looked.low:
                assert looked.beyond > 0 and verdict(looked) == "surplus"
                assert size - (looked.high - looked.low) <= looked.beyond <= size
                assert "BACK DOOR" in finding(found, looked)
        elif outside:
            assert looked.beyond <= 0


def test_whole_requests_are_exact() -> None:
    found = window([llama(0), llama(600, 20, 6, 10)], whole(60, (10, 3, 5)), whole(90, (10, 3, 5)))
    assert [(s.engine, s.ledger, s.low, s.high) for s in found.sides] == [
        (20, 20, 20, 20),
        (6, 6, 6, 6),
        (10, 10, 10, 10),
    ]
    assert {verdict(s) for s in found.sides} == {"same"}
    assert found.requests == 2 and not found.beyond


def test_one_token_around_the_gateway_is_found() -> None:
    found = window([llama(0), llama(600, 10, 0, 6)], whole(60))
    assert side(found).beyond == 1 and names(side(found)) == ["back_door"]
    assert not side(found, "uncached_in").beyond


def test_one_token_that_the_engine_never_made_is_found() -> None:
    found = window([llama(0), llama(600, 10, 0, 4)], whole(60))
    assert side(found).beyond == -1 and names(side(found)) == ["missing"]
    assert verdict(side(found)) == "missing"


CUTS: dict[str, tuple[Ran, int, int]] = {
    "the client left: 5 tokens in 2 s, so at most 32 more": (
        whole(60, outcome="client_gone", basis="running"),
        5,
        5 + 32,
    ),
    "never over its own limit": (
        whole(60, outcome="client_gone", basis="running", held_out=9),
        5,
        9,
    ),
    "fast: 200 tokens in 2 s, so 2 s more at that rate": (
        whole(60, (10, 0, 200), outcome="client_gone", basis="running", held_out=5000),
        200,
        400,
    ),
    "the engine worked on while nobody read": (
        whole(60, outcome="client_gone", basis="running", reason=STALLED),
        5,
        100,
    ),
    "llama.cpp makes a plain answer to its end": (
        whole(60, outcome="client_gone", basis="tokenized", stream=False),
        0,
        100 + 8,
    ),
    "read to its end": (whole(60, outcome="client_gone"), 5, 5),
    "chunks are a lower bound": (whole(60, outcome="client_gone", basis="counted"), 5, 100),
    "nothing is known": (whole(60, basis="none", usage=Usage()), 0, 100),
    "nothing is known, and it took 3 s": (
        whole(60, basis="none", usage=Usage(), held_out=None),
        0,
        5000,
    ),
    "counted by a tokenizer": (whole(60, basis="tokenized"), 0, 5 + 8),
    "refused by the backend": (whole(60, basis="none", usage=Usage(), status=400), 0, 0),
    "failed by the backend": (whole(60, basis="none", usage=Usage(), status=500), 0, 100),
    "failed by the backend, which is not at work any more": (
        whole(60, basis="none", usage=Usage(), status=500, held_out=None, stream=False),
        0,
        3000,
    ),
    "given up by a proxy, behind which it may be": (
        whole(60, basis="none", usage=Usage(), status=504, held_out=5000, stream=False),
        0,
        5000,
    ),
    "another attempt after a failure that the backend told of": (
        whole(60, failed="status 503", held_out=None, stream=False),
        0,
        3000,
    ),
    "another attempt after a proxy gave up": (
        whole(60, failed="status 502", held_out=5000, stream=False),
        0,
        5000,
    ),
    "nothing is generated there": (
        whole(60, basis="none", usage=Usage(), outcome="backend_lost", endpoint="embeddings"),
        0,
        0,
    ),
    "no end yet": (whole(60, state="open", ended=None, outcome=None, basis="running"), 0, 100),
    "answered elsewhere": (whole(60, failed="lost"), 0, 100),
    "never reached": (whole(60, failed="unreachable"), 0, 0),
}


@pytest.mark.parametrize("case", CUTS)
def test_the_bound_of_one_request(case: str) -> None:
    ran, low, high = CUTS[case]
    looked = side(window([llama(0), llama(600)], ran))
    assert (looked.low, looked.high) == (low, high)
    assert low <= looked.ledger <= high


@pytest.mark.parametrize("case", CUTS)
def test_a_range_has_a_cause_of_its_size(case: str) -> None:
    looked = side(window([llama(0), llama(600)], CUTS[case][0]))
    causes = [cause for cause in looked.causes if cause.name not in ("back_door", "missing")]
    assert sum(cause.more for cause in causes) == looked.high - looked.ledger
    assert sum(cause.fewer for cause in causes) == looked.ledger - looked.low
    assert all(cause_words(cause, looked) for cause in looked.causes)


def test_a_request_that_never_got_a_token_may_have_cost_its_prompt() -> None:
    ran = whole(60, outcome="client_gone", basis="none", usage=Usage(), first_token=None, held_in=3)
    looked = side(window([llama(0), llama(600)], ran), "uncached_in")
    assert (looked.low, looked.high) == (0, 4 * 3 + TEMPLATE_TOKENS_MAX)


def test_what_a_tokenizer_counted_may_have_been_cached() -> None:
    usage = Usage(uncached_in=100, reasoning_out=0, other_out=5)
    ran = whole(60, basis="tokenized", usage=usage, held_in=50)
    found = window([llama(0), llama(600, 10, 90, 5)], ran)
    assert side(found, "uncached_in").low == 0 and side(found, "cached_in").high >= 100
    assert not found.beyond


def test_a_request_across_an_edge_is_shared_by_time_and_widens_the_bound() -> None:
    ran = whole(-100, (10, 0, 300), ended=at(ZERO, 200), first_token=at(ZERO, -100))
    line = [
        replace(one, counters={"vllm:prompt_tokens_total": 0, "vllm:generation_tokens_total": n})
        for one, n in ((llama(0), 0), (llama(600), 190))
    ]
    looked = side(window(line, ran))
    assert (looked.ledger, looked.low, looked.high) == (200, 0, 300)
    assert names(looked) == ["edge"] and verdict(looked) == "explained"


@pytest.mark.parametrize(("seconds", "low"), [(594.5, 5), (596, 0), (598, 0), (598.9, 0)], ids=str)
def test_near_an_edge_a_request_may_be_on_either_side(seconds: float, low: int) -> None:
    """It ends three seconds later, and the window at 600 s."""
    looked = side(window([llama(0), llama(600)], whole(seconds)))
    assert (looked.low, looked.high) == (low, 5)
    assert looked.ledger == (5 if seconds + 3 < 600 else 0)


def test_probes_are_named() -> None:
    found = window([llama(0), llama(600, 10, 0, 5)], whole(60, key_id=SYSTEM_KEY_ID))
    assert names(side(found)) == ["probes"] and verdict(side(found)) == "same"
    both = window(
        [llama(0), llama(600, 30, 0, 15)],
        whole(60, key_id=SYSTEM_KEY_ID),
        known=Whole(requests=2, tokens={"uncached_in": 20, "other_out": 10}, probes=2),
    )
    (probes,) = side(both).causes
    assert probes.requests == 3 and both.requests == 3 and not both.beyond


def test_a_restart_is_crossed_and_its_gap_named() -> None:
    line = [llama(0, 50, 0, 50), llama(15, 60, 0, 55), llama(30, 10, 0, 2), llama(600, 20, 0, 7)]
    found = window(line, whole(5), whole(20, (10, 0, 9)), whole(60, (10, 0, 5)))
    looked = side(found)
    assert looked.engine == 5 + 7 and looked.ledger == 5 + 9 + 5 and not looked.beyond
    (gap,) = found.restarts
    assert (gap.after, gap.before) == (line[1].at, line[2].at)
    assert "restart" in names(looked)
    assert any("restarted" in words for words in window_words(found))


def test_a_restart_that_the_counters_hide_is_seen_by_the_start_of_the_process() -> None:
    first = llama(0, 5, process_started=at(ZERO, -500))
    line = [first, llama(15, 900, process_started=at(ZERO, 7))]
    assert moved(line).by["llamacpp:prompt_tokens_total"] == 900
    assert moved(line).restarts[0].before == at(ZERO, 7)
    same = [first, llama(15, 900, process_started=at(ZERO, -499.5))]
    assert moved(same).by["llamacpp:prompt_tokens_total"] == 895 and not moved(same).restarts


def test_missed_readings_change_nothing_and_are_named() -> None:
    some = [llama(0), llama(15, 3), llama(900, 500), llama(915, 502)]
    assert moved(some).by == moved([some[0], some[-1]]).by
    faults = [Reading(at=at(ZERO, 30), gateway="g", fault="no answer")]
    found = reckon("b", Span(tuple(some)), Whole(), [], faults)
    assert found is not None
    words = list(window_words(found))
    assert any("1 reading failed" in one and "no answer" in one for one in words)
    assert any("15 min" in one for one in words)


@pytest.mark.parametrize(
    ("count", "off"), [(999_999, 0), (1_000_000, 5), (9_999_999, 5), (10_000_000, 50)]
)
def test_a_page_that_rounds_widens_the_bound(count: int, off: int) -> None:
    """llama.cpp writes its counters with six digits: `1.23457e+06`."""
    looked = side(window([llama(0), llama(600, 0, 0, count)]))
    assert (looked.low, looked.high) == (-off, off)
    both = side(window([llama(0, 0, 0, count), llama(600, 0, 0, count)]))
    assert (both.low, both.high) == (-2 * off, 2 * off) and not both.beyond


@pytest.mark.parametrize(
    ("engine", "high"), [("llamacpp:", 10), ("vllm:", 10 * 4), ("sglang:", 10 * 5)]
)
def test_a_prompt_may_count_once_for_each_of_several_answers(engine: str, high: int) -> None:
    counting = next(one for one in COUNTINGS if one.measures[0].counters[0].startswith(engine))
    zero = {name: 0 for measure in counting.measures for name in measure.counters}
    line = [replace(llama(0), counters=zero), replace(llama(600), counters=zero)]
    singly = window(line, whole(60, answers=4)).sides[0]
    known = Whole(1, {"uncached_in": 10}, several=Several(1, prompts=10, times=40))
    together = window(line, known=known).sides[0]
    for looked in (singly, together):
        assert (looked.ledger, looked.low, looked.high) == (10, 10, high)
        sizes = [cause.more for cause in looked.causes if cause.name == "answers"]
        assert sizes == [high - 10] * (high > 10)


def test_which_counters_of_which_engine_hold_which_buckets() -> None:
    """The whole table, as docs/reconcile.md shows it: whoever changes it says what changed."""
    assert [
        (c.engine, c.versions, m.side, m.counters[0].partition(":")[2], m.moves, m.cut_counts)
        for c in COUNTINGS
        for m in c.measures
    ] == [
        (
            "llamacpp",
            "since August 2026",
            "uncached_in",
            "prompt_tokens_total",
            "during_prompt",
            True,
        ),
        (
            "llamacpp",
            "since August 2026",
            "cached_in",
            "prompt_tokens_cached_total",
            "during_prompt",
            True,
        ),
        ("llamacpp", "since August 2026", "out", "tokens_predicted_total", "at_end", True),
        ("llamacpp", "before", "uncached_in", "prompt_tokens_total", "at_first_token", False),
        ("llamacpp", "before", "out", "tokens_predicted_total", "at_end", False),
        ("vllm", "since February 2026", "in", "prompt_tokens_total", "at_first_token", True),
        (
            "vllm",
            "since February 2026",
            "cached_in",
            "prompt_tokens_cached_total",
            "at_first_token",
            True,
        ),
        ("vllm", "since February 2026", "out", "generation_tokens_total", "as_made", True),
        ("vllm", "before", "in", "prompt_tokens_total", "at_first_token", True),
        ("vllm", "before", "out", "generation_tokens_total", "as_made", True),
        ("sglang", "with a counter of cached tokens", "in", "prompt_tokens_total", "at_end", False),
        (
            "sglang",
            "with a counter of cached tokens",
            "cached_in",
            "cached_tokens_total",
            "at_end",
            False,
        ),
        (
            "sglang",
            "with a counter of cached tokens",
            "out",
            "generation_tokens_total",
            "at_end",
            False,
        ),
        ("sglang", "before", "in", "prompt_tokens_total", "at_end", False),
        ("sglang", "before", "out", "generation_tokens_total", "at_end", False),
    ]


def test_an_engine_is_known_by_its_counters_with_or_without_their_suffix() -> None:
    for counting in COUNTINGS:
        page = {name: 1 for measure in counting.measures for name in measure.counters}
        assert counting_of(page) is counting
        bare = {name.removesuffix("_total"): 7 for name in page}
        assert counting_of(bare) is counting
        assert {value_of(bare, measure) for measure in counting.measures} == {7}
    assert counting_of({"process_cpu_seconds_total": 3}) is None


def test_the_endpoints_that_cost_nothing_are_those_of_the_gateways_table() -> None:
    silent = {endpoint.name for endpoint in ENDPOINTS.values() if not endpoint.generates}
    assert silent == READS_ONLY | COUNTS_ONLY
    lost = whole(60, basis="none", usage=Usage(), outcome="backend_lost", held_in=3)
    for endpoint in COUNTS_ONLY:
        looked = side(
            window([llama(0), llama(600)], replace(lost, endpoint=endpoint)), "uncached_in"
        )
        assert (looked.low, looked.high) == (0, 0)
    looked = side(window([llama(0), llama(600)], replace(lost, endpoint="rerank")), "uncached_in")
    assert looked.high > 0


def test_the_reason_of_a_stalled_client_is_the_gateways_own() -> None:
    assert POLICIES["client_stalled"].reason == STALLED


def shown(counting: Counting, measure: Measure) -> str:
    """One row of the table in docs/reconcile.md."""
    cells = (
        counting.engine,
        counting.versions,
        measure.side + ("" if measure.binds else " (shown only)"),
        " + ".join(f"`{name}`" for name in measure.counters),
        " + ".join(f"`{name}`" for name in measure.buckets),
        measure.moves,
        "as far as it got" if measure.cut_counts else "perhaps not",
        {"once": "once", "each": "`n` times", "each_and_once": "`n` + 1 times"}[measure.prompts],
    )
    return f"| {' | '.join(cells)} |"


def test_the_page_shows_the_whole_table() -> None:
    page = Path("docs/reconcile.md").read_text(encoding="utf-8")
    _, _, rest = page.partition("<!-- table: engines -->")
    table = rest.partition("<!-- end -->")[0].strip().splitlines()[2:]
    assert table == [shown(c, m) for c in COUNTINGS for m in c.measures]
