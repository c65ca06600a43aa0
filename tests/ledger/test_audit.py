"""The audit: clean where nothing parts, and one finding with words for each thing that does."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace
from sqlalchemy import Table, delete, update

from ledger.audit import FINDINGS_MAX, Finding, LogContents, Report, audit
from ledger.events import Event
from ledger.export.manifest import PARQUET, exports, place_of
from ledger.export.month import export_month
from ledger.sql import tables
from ledger.sql.rebuild import rebuild
from ledger.sql.session import Ledger
from tests.ledger.ledgers import Feeder, scribed
from tests.support import events as say
from tests.support.events import SOURCE, START, Scribe

OTHER = "/gateway/test/0193a0000000700080000000000000b2"
READER = f"{OTHER[:-1]}f"
RUNNER = "/runner/test/0193a0000000700080000000000000c3"


def lived(requests: int = 3) -> list[Event]:
    """What one gateway wrote: a mark, requests, and another mark."""
    drafts = [draft for n in range(requests) for draft in say.life(f"r{n}", say.after(n))]
    scribe = Scribe()
    stored = scribe.write_all(say.mark(SOURCE, 1, START, {}), *drafts)
    return [*stored, scribe.write(say.mark(SOURCE, 2, say.after(60), dict(scribe.last)))]


def held(ledger: Ledger, stored: Sequence[Event], **more: object) -> Report:
    """The audit of a ledger against one log that holds `stored`."""
    log = LogContents("log", "DIR/spool/1", stored)
    for name, value in more.items():
        setattr(log, name, value)
    with ledger.read() as read:
        return audit(read, [log])


def one(report: Report) -> Finding:
    (finding,) = report.findings
    return finding


def test_nothing_parts(ledger: Ledger) -> None:
    stored = lived()
    Feeder(ledger).feed(stored)
    report = held(ledger, stored, end=100 * len(stored))
    assert report.clean
    assert report.looked_at == {
        "set aside": 0,
        "logs": len(stored),
        "completeness": 2,
        "requests": 3,
        "conservation": 1,
        "usage": 1,
        "registry": 0,
        "prices": 0,
        "months": 0,
        "chains": sum(event.topic != "tokens" for event in stored),
        "exports": 0,
        "engines": 0,
    }


def test_an_empty_ledger_is_clean(ledger: Ledger) -> None:
    assert held(ledger, []).clean


def test_a_log_may_have_lost_its_oldest_segments(ledger: Ledger) -> None:
    stored = lived()
    Feeder(ledger).feed(stored)
    assert held(ledger, stored[5:]).clean


def test_progress_is_told_by_check(ledger: Ledger) -> None:
    Feeder(ledger).feed(lived())
    told: dict[str, int] = {}
    with ledger.read() as read:
        report = audit(read, progress=told.__setitem__)
    assert told == {name: count for name, count in report.looked_at.items() if count}


def test_an_event_that_the_ledger_lacks(ledger: Ledger) -> None:
    stored = lived()
    Feeder(ledger).feed([event for event in stored if event.id != "r1/attempted/1"])
    found = held(ledger, stored).findings
    assert [finding.check for finding in found] == ["logs", "completeness"]
    assert found[0].says == (
        f"DIR/spool/1: {SOURCE}:5 of requests (r1/attempted/1) is missing in the ledger"
    )
    assert found[1].says == f"1 of requests of {SOURCE} never came: 5"


def test_an_event_that_says_something_else(ledger: Ledger) -> None:
    stored = lived()
    Feeder(ledger).feed(stored)
    forged = [
        replace(event, time=say.after(2)) if event.id == "r1/attempted/1" else event
        for event in stored
    ]
    assert one(held(ledger, forged)).says.endswith("says something else in the ledger")


def test_an_event_that_the_log_lacks(ledger: Ledger) -> None:
    stored = lived()
    Feeder(ledger).feed(stored)
    fewer = [event for event in stored if event.id != "r1/attempted/1"]
    assert one(held(ledger, fewer)).says == (
        f"DIR/spool/1 lacks {SOURCE}:5 of requests, which the ledger has"
    )


def test_a_log_that_ends_too_early(ledger: Ledger) -> None:
    """Its end was lost, or an older copy was put back: by its length, or by its last sequences."""
    stored = lived()
    Feeder(ledger).feed(stored)
    assert "an older copy was put back" in one(held(ledger, stored[:5], end=500)).says
    found = [finding.says for finding in held(ledger, stored[:5]).findings]
    assert f"DIR/spool/1 has requests of {SOURCE} up to 3, and the ledger up to 9" in found


def test_a_log_that_is_broken_is_named(ledger: Ledger) -> None:
    stored = lived()
    Feeder(ledger).feed(stored)
    report = held(ledger, stored[:5], broken="broken bytes at 512 before whole records")
    assert one(report) == Finding("logs", "DIR/spool/1: broken bytes at 512 before whole records")


def test_a_fact_under_two_names_is_no_difference(ledger: Ledger) -> None:
    feeder = Feeder(ledger)
    feeder.feed(scribed([say.accepted("r1")]))
    first = scribed([say.abandoned("r1")], RUNNER)
    again = scribed([say.abandoned("r1"), say.closed(SOURCE, START, {}, OTHER)], OTHER)
    feeder.feed(first)
    feeder.feed(again)
    assert held(ledger, again).clean
    forged = [replace(again[0], time=START), again[1]]
    assert one(held(ledger, forged)).says.endswith("says something else in the ledger")


def test_what_was_set_aside_is_found_once(ledger: Ledger) -> None:
    feeder = Feeder(ledger)
    stored = scribed([say.accepted("r1"), say.finished("r1")])
    rival = scribed([say.finished("r1", usage=say.tokens(out=9))], OTHER)
    feeder.feed(stored)
    feeder.feed(rival)
    finding = one(held(ledger, rival))
    assert finding.check == "set aside"
    assert "r1/finished is already told otherwise" in finding.says


def test_what_a_source_claims_must_have_come(ledger: Ledger) -> None:
    feeder = Feeder(ledger)
    feeder.feed(lived())
    lost = say.closed(SOURCE, say.after(99), {"requests": 12, "sources": 2}, RUNNER)
    feeder.feed(scribed([lost], RUNNER))
    assert one(held(ledger, [])).says == f"{SOURCE} wrote requests up to 12, and only 9 came"
    feeder.feed(scribed([say.mark(OTHER, 1, START, {"requests": 1})], OTHER))
    assert len(held(ledger, []).findings) == 2


def test_an_end_whose_acceptance_never_came_is_named_with_its_source_and_hour(
    ledger: Ledger,
) -> None:
    """Up to ten of them by their ids; the others by their number."""
    lives = [draft for n in range(13) for draft in say.life(f"r{n:02}", say.after(n))]
    stored = scribed([*lives, say.accepted("open", say.after(3600))])
    kept = ("r12/accepted", "open/accepted")
    Feeder(ledger).feed([e for e in stored if not e.id.endswith("/accepted") or e.id in kept])
    ids = ", ".join(f"r{n:02}" for n in range(10))
    assert [f.says for f in held(ledger, []).findings if f.check == "conservation"] == [
        f"{SOURCE} at 2026-11-03T10Z: 1 accepted, and 13 finished + 0 abandoned + 0 open, "
        f"a difference of -12: {ids} and 2 more",
    ]


def test_gaps_are_named(ledger: Ledger) -> None:
    stored = scribed([say.accepted(f"r{n}") for n in range(1, 10)])
    Feeder(ledger).feed([e for e in stored if e.sequence not in (1, 2, 5, 7)])
    assert one(held(ledger, [])).says == f"4 of requests of {SOURCE} never came: 1 to 2, 5, 7"


@pytest.mark.parametrize(
    ("table", "values", "says"),
    [
        (tables.requests, {"other_out": 5}, "its row says Usage(uncached_in=12"),
        (tables.requests, {"accepted_us": 0}, "its row says 1970-01-01"),
        (tables.requests, {"state": "open"}, "its events say state finished, its row says open"),
        (tables.requests, {"accepted_us": 0}, "2026-11-03T10Z: 1 accepted, and 0 finished + 0"),
        (tables.requests, {"accepted_us": 0}, "1970-01-01T00Z: 0 accepted, and 1 finished"),
        (tables.requests, {"source": OTHER}, "a difference of -1: r1"),
        (tables.attempts, {"failed": "made up"}, "attempt 1 of request r1: its events say Att"),
        (tables.attempts, {"request_id": "r2"}, "has 1 row, and 0 of them are of a request"),
        (tables.counters, {"counters": "{}"}, 'its event says counters {"c":1}, its row says {}'),
        (tables.counters, {"fault": "none"}, "its event says fault None, its row says none"),
        (tables.counters, {"at_us": 5}, "at 2026-11-03T10:15:07Z by /gateway"),
        (tables.counters, {"at_us": 5}, "engines' readings has 1 row, and 0 of them have"),
        (tables.usage_hourly, {"other_out": 5}, "its requests add up to"),
        (tables.usage_hourly, {"failed_attempts": 5}, "its requests add up to"),
        (tables.usage_hourly, {"busy_us": 5}, "its requests add up to"),
        (tables.usage_hourly, {"busy_known": 5}, "its requests add up to"),
        (tables.usage_hourly, {"key_id": "key-2"}, "in which no request counts"),
        (tables.keys, {"revoked_us": 5}, "keys key-1: its events say"),
        (tables.prices, {"cached_in_per_million": "1"}, "prices p1: its events say"),
        (tables.source_topics, {"received": 5}, "source_topics is wrong about"),
        (tables.source_topics, {"topic": "invented"}, "of which there is no event"),
    ],
)
def test_a_projection_that_was_changed(
    ledger: Ledger, table: Table, values: dict[str, object], says: str
) -> None:
    Feeder(ledger).feed(scribed(say.life("r1")[:2] + say.life("r1")[-1:]))
    reading = say.counted("b-1", 1, say.after(7), {"c": 1})
    Feeder(ledger, "other").feed(scribed([reading], READER))
    for n, draft in enumerate([say.key_issued("key-1"), say.price("p1", {"cached_in": "2"})]):
        Feeder(ledger, f"registry/{n}").feed(scribed([draft], f"/cli/{n}"))
    chosen = table.c.source == SOURCE if "source" in table.c else table.c[0].is_not(None)
    chosen = table.c.source == READER if table is tables.counters else chosen
    with ledger.write() as tx:
        tx.execute(update(table).where(chosen).values(**values))
    assert any(says in finding.says for finding in held(ledger, []).findings)
    rebuild(ledger)
    assert held(ledger, []).clean


def test_rows_that_are_gone_or_made_up(ledger: Ledger) -> None:
    Feeder(ledger).feed(lived(2))
    rename = update(tables.requests).where(tables.requests.c.request_id == "r1")
    with ledger.write() as tx:
        tx.execute(rename.values(request_id="a made up one"))
    says = [finding.says for finding in held(ledger, []).findings]
    assert says == [
        "request r1 has events, but no row",
        "request a made up one has a row, but no event",
        f"{SOURCE} at 2026-11-03T10Z: 2 accepted, and 2 finished + 0 abandoned + 0 open, "
        "a difference of 0: r1, a made up one",
    ]
    with ledger.write() as tx:
        tx.execute(delete(tables.usage_hourly))
    assert held(ledger, []).findings[-1].check == "usage"


def test_running_totals_of_open_requests_are_not_judged(ledger: Ledger) -> None:
    stored = scribed([say.accepted("r1"), say.delivered("r1"), say.delivered("r2")])
    Feeder(ledger).feed(stored)
    assert held(ledger, stored).clean


def test_of_many_findings_the_number_is_told(ledger: Ledger) -> None:
    stored = scribed([say.accepted(f"r{n}") for n in range(FINDINGS_MAX + 50)])
    Feeder(ledger).feed(stored)
    with ledger.write() as tx:
        tx.execute(update(tables.requests).values(attempts=9))
    found = held(ledger, stored).findings
    assert len(found) == FINDINGS_MAX + 1
    assert found[-1] == Finding("requests", "and 50 more of this kind")


def test_requests_are_compared_across_runs_of_events(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of events may end within a request."""
    stored = lived(7)
    Feeder(ledger).feed(stored)
    for size in (1, 2, 4, 5):
        monkeypatch.setattr("ledger.sql.replay.RUN", size)
        monkeypatch.setattr("ledger.audit.RUN", size)
        report = held(ledger, stored)
        assert report.clean
        assert report.looked_at["requests"] == 7


def test_an_export_is_held_against_the_ledger(ledger: Ledger, tmp_path: Path) -> None:
    feeder, scribe = Feeder(ledger), Scribe()
    feeder.feed(scribe.write_all(*say.life("r1")))
    export_month(ledger, "2026-11", tmp_path / "exports")

    def checked() -> Report:
        with ledger.read() as read:
            return audit(read, exports=exports(tmp_path / "exports"))

    assert checked().clean
    feeder.feed(scribe.write_all(*say.life("r2")))
    later = checked()
    assert later.clean
    assert later.notes == [
        "1 request of 2026-11 ended after it was exported; export it again to take them in"
    ]
    place = place_of(tmp_path / "exports", PARQUET, "2026-11")
    with (place / "bill.parquet").open("ab") as file:
        file.write(b"!")
    assert one(checked()).check == "exports"
