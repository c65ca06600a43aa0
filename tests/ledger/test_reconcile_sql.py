"""What a reconciliation reads of the ledger, in every kind of database."""

import random
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from ledger.audit import audit
from ledger.events import Draft, Usage
from ledger.events.requests import SYSTEM_KEY_ID
from ledger.folds.reconcile import TEMPLATE_TOKENS_MAX, Side, Window
from ledger.sql import reconcile as module
from ledger.sql.reconcile import first_reading, heard_until, latest, reconcile, settled, unread
from ledger.sql.session import Ledger
from tests.ledger.ledgers import Feeder, scribed
from tests.support import events as say
from tests.support.events import SOURCE, START

ZERO = START.replace(minute=0)
HOUR = timedelta(hours=1)


def after(seconds: float) -> Any:
    return ZERO + timedelta(seconds=seconds)


def read_at(number: int, seconds: float, prompt: int, cached: int, out: int) -> Draft:
    counters = {
        "llamacpp:prompt_tokens_total": prompt,
        "llamacpp:prompt_tokens_cached_total": cached,
        "llamacpp:tokens_predicted_total": out,
    }
    return say.counted("b-1", number, after(seconds), counters, "llamacpp")


def served(name: str, seconds: float, usage: Usage, **more: Any) -> list[Draft]:
    """A request of two seconds at `b-1`."""
    at, key = after(seconds), more.pop("key_id", "key-1")
    values = {"duration_us": 2_000_000, "first_token_us": 500_000} | more
    return [
        say.accepted(name, at, key, held_in=25, held_out=100),
        say.attempted(name, 1, at, key),
        say.finished(name, at, key, usage=usage, **values),
    ]


def windows(ledger: Ledger, **more: Any) -> list[Window]:
    with ledger.read() as read:
        return list(reconcile(read, ZERO, ZERO + 4 * HOUR, **more))


def side(window: Window, name: str) -> Side:
    return next(side for side in window.sides if side.side == name)


def story(seed: int) -> list[Draft]:
    """Two hours of requests of every kind, and readings of what an engine counted for them."""
    dice = random.Random(seed)
    drafts: list[Draft] = []
    told: list[tuple[float, int, int, int]] = []
    for number in range(150):
        seconds = dice.uniform(-60, 7400)
        a, b, c = dice.randrange(500), dice.randrange(50), dice.randrange(100)
        usage = say.tokens(a, c, b)
        more: dict[str, Any] = {}
        kind = dice.random()
        if kind < 0.1:
            more = {"outcome": "client_gone", "basis": "running"}
        elif kind < 0.15:
            more, usage = {"outcome": "backend_lost", "basis": "none"}, Usage()
        elif kind < 0.2:
            more = {"key_id": SYSTEM_KEY_ID}
        elif kind < 0.25:
            more = {"backend_id": "b-2"}
        elif kind < 0.3:
            usage = Usage(uncached_in=a, other_out=c)
        elif kind < 0.35:
            more = {"duration_us": None}
        drafts += served(f"r{number}", seconds, usage, **more)
        if more.get("backend_id") is None:
            told.append((seconds + 2, a, b, c))
    for number in range(120):
        when = 60.0 * number
        done = [one for one in told if one[0] <= when]
        a, b, c = sum(o[1] for o in done), sum(o[2] for o in done), sum(o[3] for o in done)
        drafts.append(read_at(number + 1, when, a, b, c))
    return drafts


def test_what_the_database_adds_up_is_what_one_by_one_gives(
    ledger: Ledger, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    Feeder(ledger).feed(scribed(story(seed)))
    quick = windows(ledger)
    monkeypatch.setattr(module, "_exactly", lambda *of: None)
    slow = windows(ledger)
    assert len(quick) == 2 and not any(window.beyond for window in quick)
    for one, other in zip(quick, slow, strict=True):
        assert [(s.engine, s.ledger, s.low, s.high) for s in one.sides] == [
            (s.engine, s.ledger, s.low, s.high) for s in other.sides
        ]
        assert one.requests == other.requests
        assert [s.causes for s in one.sides] == [s.causes for s in other.sides]


def test_a_call_around_the_gateway_is_exactly_the_surplus(ledger: Ledger) -> None:
    drafts = [
        *served("r1", 100, say.tokens(10, 5, 3)),
        *served("probe", 120, say.tokens(1, 1, 0), key_id=SYSTEM_KEY_ID),
        read_at(1, 10, 1000, 100, 500),
        read_at(2, 3000, 1000 + 11 + 7, 103, 500 + 6 + 13),
    ]
    Feeder(ledger).feed(scribed(drafts))
    (window,) = windows(ledger)
    assert [(s.side, s.difference, s.beyond) for s in window.sides] == [
        ("uncached_in", 7, 7),
        ("cached_in", 0, 0),
        ("out", 13, 13),
    ]
    assert window.requests == 2 and window.readings == 2 and window.longest == 2990
    assert windows(ledger, backend_id="b-1") == [window] and not windows(ledger, backend_id="b-9")


def test_limits_failed_attempts_and_the_end_of_an_abandoned_one_are_looked_up(
    ledger: Ledger,
) -> None:
    key = "key-1"
    late = say.attempted("moved", 2, after(205), key, "b-2")
    late = replace(late, payload=replace(late.payload, after="lost"))
    drafts = [
        *served("none", 100, Usage(), outcome="client_gone", basis="none", first_token_us=None),
        say.accepted("moved", after(200), held_in=10, held_out=70),
        say.attempted("moved", 1, after(200), key, "b-1"),
        late,
        say.finished("moved", after(200), backend_id="b-2", attempts=2, duration_us=9_000_000),
        say.accepted("dead", after(300), held_in=1, held_out=30),
        say.attempted("dead", 1, after(300)),
        say.abandoned("dead", after(300), usage=say.tokens(12, 4)),
        read_at(1, 10, 0, 0, 0),
        read_at(2, 3000, 12, 0, 4),
    ]
    Feeder(ledger).feed(scribed(drafts))
    (window,) = windows(ledger)
    out = side(window, "out")
    sizes = {cause.name: (cause.fewer, cause.more) for cause in out.causes}
    assert sizes == {"uncounted": (0, 100), "failed_attempt": (0, 70), "abandoned": (0, 26)}
    prompt = {cause.name: cause.more for cause in side(window, "uncached_in").causes}
    unknown = 4 * 25 + TEMPLATE_TOKENS_MAX
    assert prompt == {"uncounted": unknown, "failed_attempt": 12, "abandoned": 0}
    assert window.requests == 3 and not window.beyond


@pytest.mark.parametrize(("stream", "low"), [(True, 3), (False, 0)])
def test_a_plain_answer_of_llamacpp_goes_on_when_its_client_has_left(
    ledger: Ledger, stream: bool, low: int
) -> None:
    cut = {"outcome": "client_gone", "basis": "running", "stream": stream}
    drafts = [
        *served("r", 2900, say.tokens(10, 3), **cut),
        read_at(1, 10, 0, 0, 0),
        read_at(2, 3000, 10, 0, 3),
    ]
    Feeder(ledger).feed(scribed(drafts))
    (window,) = windows(ledger)
    assert side(window, "out").low == low and not window.beyond


def test_a_prompt_whose_cached_part_is_not_told_is_added_up_by_the_database(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    # vLLM is like that unless it is asked to tell, so this is every request of most installations.
    names = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")
    drafts = [
        say.counted("b-1", number, after(seconds), dict(zip(names, counts, strict=True)), "vllm")
        for number, seconds, counts in [(1, 10, (0, 0)), (2, 3000, (30, 8))]
    ]
    drafts += served("r1", 100, Usage(uncached_in=10, other_out=3))
    drafts += served("r2", 200, Usage(uncached_in=20, other_out=5))
    Feeder(ledger).feed(scribed(drafts))
    looked_at: list[str] = []

    def held(_: Any, ids: list[str]) -> dict[str, Any]:
        looked_at.extend(ids)
        return {}

    monkeypatch.setattr(module, "_held", held)
    (found,) = windows(ledger)
    assert not looked_at and found.requests == 2
    assert [(s.engine, s.ledger, s.low, s.high) for s in found.sides] == [
        (30, 30, 30, 30),
        (8, 8, 8, 8),
    ]


def test_several_answers_explain_a_surplus_of_prompts(ledger: Ledger) -> None:
    names = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")
    drafts = [
        say.accepted("r1", after(100), answers=3),
        say.attempted("r1", 1, after(100)),
        say.finished("r1", after(100), usage=say.tokens(10, 9, 5), duration_us=1_000_000),
        *served("r2", 200, say.tokens(7, 1, 0)),
        say.counted("b-1", 1, after(10), dict.fromkeys(names, 0)),
        say.counted("b-1", 2, after(3000), dict(zip(names, (15 * 3 + 7, 10), strict=True))),
    ]
    Feeder(ledger).feed(scribed(drafts))
    (window,) = windows(ledger)
    prompts = side(window, "in")
    assert (prompts.ledger, prompts.engine, prompts.high) == (22, 52, 52) and not window.beyond
    (cause,) = prompts.causes
    assert (cause.name, cause.requests, cause.more) == ("answers", 1, 30)


def test_a_backend_that_nobody_could_read_is_named(ledger: Ledger) -> None:
    fault = say.counted("b-1", 1, after(60), fault="status 404 at /metrics")
    strange = say.counted("b-3", 2, after(60), {"x": 1})
    drafts = [*served("r1", 100, say.tokens()), fault, strange]
    drafts += served("r2", 100, say.tokens(), backend_id="b-2")
    drafts += served("r3", 100, say.tokens(), backend_id="b-3")
    Feeder(ledger).feed(scribed(drafts))
    assert not windows(ledger)
    with ledger.read() as read:
        found = unread(read, ZERO, ZERO + HOUR)
        assert [one.backend_id for one in unread(read, ZERO, ZERO + HOUR, "b-2")] == ["b-2"]
    assert [(one.backend_id, one.requests) for one in found] == [("b-1", 1), ("b-2", 1), ("b-3", 1)]
    assert "status 404" in found[0].why and "less than twice" in found[1].why
    assert "no counters of an engine" in found[2].why


def test_only_what_every_living_source_has_told_is_over(ledger: Ledger) -> None:
    other = "/gateway/test/0193a0000000700080000000000000b2"
    dead = "/gateway/test/0193a0000000700080000000000000c3"
    with ledger.read() as read:
        assert heard_until(read) is None and first_reading(read) is None
    feeder = Feeder(ledger)
    drafts = [read_at(1, 10, 0, 0, 0), read_at(2, 300, 0, 0, 0), read_at(3, 1800, 0, 0, 0)]
    feeder.feed(scribed([*drafts, say.mark(SOURCE, 1, after(1900), {})]))
    feeder.feed(scribed([say.mark(other, 1, after(1700), {})], other))
    feeder.feed(scribed([say.mark(dead, 1, after(600), {})], dead))
    with ledger.read() as read:
        heard = heard_until(read)
        assert heard == after(1700) and first_reading(read) == after(10)
        assert not list(settled(reconcile(read, ZERO, ZERO + HOUR), heard))
    feeder.feed(scribed([say.closed(other, after(1750), {})], other + "x"))
    with ledger.read() as read:
        heard = heard_until(read)
        assert heard == after(1900)
        assert len(list(settled(reconcile(read, ZERO, ZERO + HOUR), heard))) == 1


@pytest.mark.parametrize("seconds", range(1801, 1831, 4))
def test_what_is_told_of_an_hour_has_a_verdict_wherever_the_last_reading_stands(
    ledger: Ledger, seconds: int
) -> None:
    # With a mark each minute and a reading each quarter of one, a finding would come and go.
    drafts = [read_at(n, 10 + 15 * n, 10 + n, 3, 5) for n in range(160)]
    Feeder(ledger).feed(scribed([*drafts, say.mark(SOURCE, 1, after(seconds), {})]))
    with ledger.read() as read:
        heard = heard_until(read)
        assert heard is not None
        (over,) = settled(reconcile(read, ZERO, ZERO + HOUR), heard)
        (checked,) = settled(reconcile(read, ZERO, heard), heard)
    assert over == checked and 0 <= seconds - (over.end - ZERO).total_seconds() < 15


def test_the_audit_says_what_is_beyond_the_bound(ledger: Ledger) -> None:
    drafts = [
        *served("r1", 100, say.tokens(10, 5, 3)),
        read_at(1, 10, 0, 0, 0),
        read_at(2, 3000, 10, 3, 5 + 8),
        say.mark(SOURCE, 1, after(3100), {"requests": 3, "counters": 2}),
    ]
    Feeder(ledger).feed(scribed(drafts))
    with ledger.read() as read:
        report = audit(read)
    (finding,) = report.findings
    assert not report.notes
    assert finding.check == "engines" and report.looked_at["engines"] == 1
    assert "b-1" in finding.says and "8 tokens" in finding.says
    assert "llamacpp:tokens_predicted_total moved by 13, the ledger holds 5" in finding.says


def test_a_source_that_fell_silent_is_named_where_an_engine_counted_more(ledger: Ledger) -> None:
    # Its machine is off: what it served last is on its disk, and will explain the difference.
    silent = "/gateway/test/0193a0000000700080000000000000c3"
    Feeder(ledger, "its").feed(scribed([say.mark(silent, 1, after(600), {})], silent))
    drafts = [read_at(1, 10, 0, 0, 0), read_at(2, 3000, 10, 3, 5)]
    Feeder(ledger).feed(scribed([*drafts, say.mark(SOURCE, 1, after(3100), {"counters": 2})]))
    with ledger.read() as read:
        report = audit(read)
    assert {finding.check for finding in report.findings} == {"engines"}
    (note,) = report.notes
    assert note.startswith(f"{silent} has told nothing since {after(600):%Y-%m-%dT%H:%M:%SZ}")


@pytest.mark.parametrize("year", [1, 2, 9999])
def test_a_clock_at_an_end_of_time_stops_no_comparison(ledger: Ledger, year: int) -> None:
    # The runner compares between two batches: what is raised here would end the books.
    zero = START.replace(year=year, month=1, day=1, hour=0, minute=0)
    if year == 9999:
        zero = zero.replace(month=12, day=31, hour=23, minute=20)
    counts = {"vllm:prompt_tokens_total": 5, "vllm:generation_tokens_total": 5}
    drafts = [
        say.counted("b-1", 1, zero, counts),
        say.counted("b-1", 2, zero + 0.5 * HOUR, counts),
        say.mark(SOURCE, 1, zero + 0.65 * HOUR, {}),
    ]
    Feeder(ledger).feed(scribed(drafts))
    with ledger.read() as read:
        assert latest(read, START) is not None
        assert not [one for one in audit(read).findings if one.check == "engines"]
