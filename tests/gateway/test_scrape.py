"""Metrics pages of engines: by the names of several versions, whole or damaged.

The pages in `pages/` are llama.cpp's own, and for vLLM and SGLang what Python's Prometheus client
writes for the names and labels in their sources.
"""

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.requests import Engine
from gateway.wire.scrape import NAMES, Page, read_page
from ledger.folds.counters import COUNTINGS

PAGES = Path(__file__).parent / "pages"

VLLM = {"vllm:prompt_tokens_total": 98_313_546, "vllm:generation_tokens_total": 4829}
SGLANG = {"sglang:prompt_tokens_total": 8_128_902, "sglang:generation_tokens_total": 7_557_572}

READ: dict[str, Page] = {
    # A KV cache's use, and no counter of cached tokens.
    "llamacpp-2025.02": Page(
        "llamacpp",
        {"llamacpp:prompt_tokens_total": 143, "llamacpp:tokens_predicted_total": 673},
        running=2,
        waiting=1,
        kv_usage=0.0625,
    ),
    # The other way round.
    "llamacpp-2026.10": Page(
        "llamacpp",
        {
            "llamacpp:prompt_tokens_total": 33,
            "llamacpp:prompt_tokens_cached_total": 23,
            "llamacpp:tokens_predicted_total": 16,
        },
        running=0,
        waiting=0,
        prefix_hits=23,
        prefix_queries=56,
    ),
    # Its only word on prefixes is a rate, which is no counter.
    "vllm-0.6": Page("vllm", VLLM, 1764459842.51, 3, 2, 0.42),
    # Prefixes are counted in blocks, under names of the GPU.
    "vllm-0.8": Page("vllm", VLLM, 1764459842.51, 3, 2, 0.42, 21_604, 77_160),
    "vllm-0.9": Page("vllm", VLLM, 1764459842.51, 3, 2, 0.42, 345_678, 1_234_567),
    # Old and new names stand side by side, and nothing counts twice.
    "vllm-0.10": Page("vllm", VLLM, None, 3, 2, 0.42, 345_678, 1_234_567),
    "vllm-0.18-two-engines": Page(
        "vllm",
        {
            "vllm:prompt_tokens_total": 196_627_093,
            "vllm:prompt_tokens_cached_total": 627_093,
            "vllm:generation_tokens_total": 9659,
        },
        None,
        7,
        5,
        0.42,
        691_357,
        2_469_135,
    ),
    "sglang-0.4": Page("sglang", SGLANG, None, 162, 2826, 0.28),
    # Two data-parallel ranks of two tensor-parallel ones each, which all tell of themselves.
    "sglang-0.5-ranks": Page(
        "sglang",
        SGLANG | {"sglang:cached_tokens_total": 456},
        None,
        324,
        5652,
        0.28,
        456,
        8_128_902,
    ),
    # All requests, and then the same ones by priority; two stages of one pipeline.
    "sglang-2026.11-priorities": Page(
        "sglang",
        SGLANG | {"sglang:cached_tokens_total": 456},
        None,
        5,
        7,
        0.31,
        456,
        8_128_902,
    ),
}


def test_every_page_has_a_line_here() -> None:
    assert {path.stem for path in PAGES.iterdir()} == set(READ)


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("engine", ["openai", "itself", "another"])
def test_a_page_is_read_whatever_engine_it_is_thought_to_be(name: str, engine: str) -> None:
    page = (PAGES / f"{name}.txt").read_bytes()
    own = READ[name].engine
    assert own is not None
    thought: Engine = "openai"
    if engine == "itself":
        thought = own
    elif engine == "another":
        thought = "vllm" if own == "sglang" else "sglang"
    assert read_page(page, thought) == READ[name]
    assert read_page(page.replace(b"\n", b"\r\n"), thought) == READ[name]


def test_what_is_compared_with_the_ledger_is_read() -> None:
    compared = {name for one in COUNTINGS for each in one.measures for name in each.counters}
    assert compared <= {name for names in NAMES.values() for name in names.counters}


def test_names_are_found_without_total_too() -> None:
    page = read_page(b"# TYPE vllm:prompt_tokens counter\nvllm:prompt_tokens 5\n")
    assert page.counters == {"vllm:prompt_tokens": 5}


def test_labels_may_hold_anything_in_quotes() -> None:
    page = (
        b'vllm:prompt_tokens_total{model_name="a} 7 \\"{",engine="0"} 5 1764459842000\n'
        b'vllm:prompt_tokens_total {engine="1"}\t6.0\n'
        b"vllm:prompt_tokens_total{} 1e3"
    )
    assert read_page(page).counters == {"vllm:prompt_tokens_total": 1011}


@pytest.mark.parametrize(
    "damage", [b"NaN", b"+Inf", b"-1e9", b"seven", b"", b'{engine="1} 5', b"{ 7", b"1e300"]
)
def test_a_damaged_counter_is_left_out_and_the_others_are_read(damage: bytes) -> None:
    page = (
        b'vllm:prompt_tokens_total{engine="0"} 5\nvllm:prompt_tokens_total %b\n'
        b"vllm:generation_tokens_total 7\nvllm:num_requests_running %b\n" % (damage, damage)
    )
    found = read_page(page)
    assert found.counters == {"vllm:generation_tokens_total": 7}
    assert found.running is None


@pytest.mark.parametrize(
    ("usages", "read"),
    [
        (("0.2", "0.6"), 0.4),
        (("1.0000001",), 1.0),
        (("0.0",), 0.0),
        (("42.0",), None),
        (("0.5", "42.0"), None),
        (("-1.0", "0.5"), None),
        (("NaN",), None),
    ],
)
def test_a_share_of_the_cache_is_between_0_and_1_or_not_known(
    usages: tuple[str, ...], read: float | None
) -> None:
    lines = [f'vllm:kv_cache_usage_perc{{engine="{n}"}} {use}' for n, use in enumerate(usages)]
    found = read_page("\n".join(["vllm:prompt_tokens_total 5", *lines]).encode())
    assert found.kv_usage == (None if read is None else pytest.approx(read))


@pytest.mark.parametrize(
    "lines",
    [
        b"vllm:prefix_cache_hits_total 5\n",
        b"vllm:prefix_cache_queries_total 5\n",
        b"vllm:prefix_cache_hits_total NaN\nvllm:prefix_cache_queries_total 5\n",
        b"vllm:external_prefix_cache_hits_total 5\nvllm:external_prefix_cache_queries_total 9\n",
    ],
)
def test_hits_without_queries_say_nothing(lines: bytes) -> None:
    found = read_page(b"vllm:prompt_tokens_total 5\n" + lines)
    assert (found.prefix_hits, found.prefix_queries) == (None, None)


def test_the_newest_start_counts_where_several_processes_answer() -> None:
    page = b"vllm:prompt_tokens_total 5\n" + b"".join(
        b'process_start_time_seconds{pid="%d"} %d\n' % (at, at) for at in (10, 30, 20)
    )
    assert read_page(page).process_started == 30


@pytest.mark.parametrize(
    "page",
    [
        b"",
        b"\n",
        b"<html>not found</html>",
        b'{"error":{"code":501}}',
        b"# HELP vllm:prompt_tokens_total x\n# TYPE vllm:prompt_tokens_total counter\n",
        b"process_start_time_seconds 5\npython_gc_objects_collected_total 7\n",
        b"vllm:num_requests_running 7\n",
        b" vllm:prompt_tokens_total 7\n",
        b"x_vllm:prompt_tokens_total 7\n",
        b"\xff\xfe\x00",
    ],
)
def test_a_page_without_counters_is_no_reading(page: bytes) -> None:
    assert read_page(page) == Page()


FRAGMENTS = [
    name.encode() for names in NAMES.values() for name in (*names.counters, names.running)
] + [b"{", b"}", b'"', b"\\", b" ", b"\n", b"1", b"e9", b"NaN", b'tp_rank="1"', b"\x00\xff"]


@given(st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.binary(max_size=5)), max_size=60))
def test_garbage_is_read_without_complaint(parts: list[bytes]) -> None:
    page = read_page(b"".join(parts))
    assert all(count >= 0 for count in page.counters.values())


def long_page(lines: int) -> bytes:
    """A page of vLLM with eight engines and all of its histograms, `lines` long."""
    labels = 'engine="%d",model_name="meta-llama/Llama-3.1-8B-Instruct"'
    wanted = [
        f"vllm:{name}_tokens_total{{{labels % n}}} 9.8313546e+07"
        for n in range(8)
        for name in ("prompt", "generation")
    ]
    wanted += [f"vllm:kv_cache_usage_perc{{{labels % n}}} 0.42" for n in range(8)]
    buckets = [
        f'vllm:request_prompt_tokens_bucket{{{labels % (n % 8)},le="{n}.0"}} 1234.0'
        for n in range(lines - len(wanted))
    ]
    return "\n".join([*buckets, *wanted]).encode() + b"\n"


def test_a_long_page_is_read_in_a_millisecond() -> None:
    page = long_page(1000)
    assert page.count(b"\n") == 1000
    best = 1.0
    for _ in range(20):
        began = time.perf_counter()
        found = read_page(page, "vllm")
        best = min(best, time.perf_counter() - began)
    assert found.counters["vllm:prompt_tokens_total"] == 8 * 98_313_546
    assert best < 0.001, f"{best * 1e6:.0f} µs"


def test_a_line_that_does_not_end_takes_no_time() -> None:
    page = b'vllm:prompt_tokens_total{a="' + b'\\"' * 500_000
    began = time.perf_counter()
    assert read_page(page) == Page()
    assert time.perf_counter() - began < 1


@pytest.mark.parametrize("endless", [b"{" + b'a="b",' * 500_000 + b"} 5", b" " * 3_000_000 + b"5"])
def test_an_endless_sample_is_damaged_and_holds_nobody_up(endless: bytes) -> None:
    endless = b"vllm:prompt_tokens_total%b\n" % endless
    began = time.perf_counter()
    assert read_page(endless + b"vllm:generation_tokens_total 7\n").counters == {
        "vllm:generation_tokens_total": 7
    }
    assert time.perf_counter() - began < 1
