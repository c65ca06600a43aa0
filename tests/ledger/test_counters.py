"""Readings of engines' counters: put in line as if one had read them all, and cut into hours."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from ledger.folds.counters import in_line, moved, spans
from tests.support.engine_sim import ZERO, at, llama


def test_clocks_of_two_gateways_make_no_restart() -> None:
    a = [replace(llama(15 * n, 10 * n), gateway="a") for n in range(20)]
    b = [replace(llama(15 * n + 1, 10 * n - 5), gateway="b") for n in range(1, 15)]
    line = in_line([*b, *a])
    assert not moved(line).restarts and moved(line).by["llamacpp:prompt_tokens_total"] == 190


@pytest.mark.parametrize("behind", [-110, -31, -12, 12, 31, 110], ids=str)
@pytest.mark.parametrize("restarted", [False, True])
def test_a_clock_that_is_wrong_makes_no_restart_where_a_gateway_follows_on_another(
    behind: int, restarted: bool
) -> None:
    def made(seconds: int) -> int:
        return seconds - 1800 if restarted and seconds >= 1800 else 10_000 + seconds

    a = [replace(llama(n - behind, made(n)), gateway="a") for n in range(0, 2400, 15)]
    b = [replace(llama(n, made(n)), gateway="b") for n in range(1800, 4200, 15)]
    for line in (in_line([*a, *b]), in_line([*a[60:], *b]), in_line([*a, *b[30:]])):
        did = moved(line)
        first, last = (one.counters["llamacpp:prompt_tokens_total"] for one in (line[0], line[-1]))
        lost = 11_800 + last - first - did.by["llamacpp:prompt_tokens_total"]
        assert len(did.restarts) == restarted
        assert 0 <= lost <= 1800 if restarted else lost == 11_800


def test_another_gateway_reads_where_the_first_did_not() -> None:
    a = [replace(llama(60 * n, 10 * n), gateway="a") for n in (*range(10), *range(40, 50))]
    b = [replace(llama(60 * n + 1, 10 * n), gateway="b") for n in range(12, 70, 5)]
    line = in_line([*a, *b])
    assert [one.at for one in line] == sorted(one.at for one in line)
    assert {one.gateway for one in line if 1000 < (one.at - ZERO).total_seconds() < 2000} == {"b"}
    assert line[-1].gateway == "b"


def test_hours_begin_at_the_nearest_reading_and_are_joined_where_there_is_none() -> None:
    seconds = [10, 1800, 3590, 3620, 5400, 10_000, 10_790]
    line = [llama(second, second) for second in seconds]
    found = spans(line, ZERO, ZERO + timedelta(hours=3))
    assert [[one.at for one in (s.line[0], s.line[-1])] for s in found] == [
        [at(ZERO, 10), at(ZERO, 3590)],
        [at(ZERO, 3590), at(ZERO, 10_790)],
    ]
    assert [s.joined for s in found] == [(), (ZERO + timedelta(hours=2),)]
    whole_day = moved(line).by["llamacpp:prompt_tokens_total"]
    assert whole_day == sum(moved(s.line).by["llamacpp:prompt_tokens_total"] for s in found)


def test_another_engine_behind_the_address_begins_a_window_of_its_own() -> None:
    vllm = {"vllm:prompt_tokens_total": 5, "vllm:generation_tokens_total": 5}
    line = [llama(0), llama(600), replace(llama(700), counters=vllm)]
    line.append(replace(llama(1300), counters=vllm))
    found = spans(line, ZERO, ZERO + timedelta(hours=1))
    assert [len(span.line) for span in found] == [2, 2]
