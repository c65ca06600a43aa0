"""Closed is closed: what a month holds, what refuses, what comes late and where it lands."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import delete, update

from ledger.audit import audit
from ledger.errors import NotClosable
from ledger.events import BooksSet, Draft, Usage
from ledger.sql import tables
from ledger.sql.adjust import corrections_of_all_time
from ledger.sql.late import late_rows
from ledger.sql.periods import parted
from ledger.sql.rated import rated
from ledger.sql.rebuild import rebuild
from ledger.sql.replay import load_book
from ledger.sql.session import Ledger
from tests.ledger.closings import close, closing
from tests.ledger.ledgers import Feeder, Make, scribed
from tests.ledger.month_world import (
    DECEMBER,
    END,
    NOVEMBER,
    OTHER,
    RUNNER,
    Gateway,
    clean,
    cost,
    lines,
    priced,
    started,
    sums,
)
from tests.support import events as say
from tests.support.events import SOURCE, Scribe


def test_a_month_waits_for_the_mark_past_its_end(ledger: Ledger) -> None:
    gateway, feeder = started(ledger)
    feeder.feed(gateway.marks(END - timedelta(seconds=1)))
    with pytest.raises(NotClosable, match=f"{SOURCE}: it has no mark at or after") as refused:
        close(ledger)
    assert "--without" in str(refused.value)
    feeder.feed(gateway.marks(END))
    frozen = close(ledger)
    assert (frozen.requests, frozen.open, frozen.unpriced) == (1, 0, 0)
    assert frozen.totals == {"USD": "0.00004"}  # 12 in at 2, 4 out at 4 for a million
    assert frozen.tokens == {"uncached_in": 12, "other_out": 4}
    assert frozen.cut[SOURCE] == {"requests": 2, "sources": 3}
    clean(ledger)


def test_what_a_mark_claims_must_have_come(ledger: Ledger) -> None:
    gateway, feeder = started(ledger)
    held = gateway.says(say.accepted("r2", NOVEMBER), say.finished("r2", NOVEMBER))
    feeder.feed(gateway.marks(END))
    with pytest.raises(NotClosable, match="2 of the events that it wrote have not come: 2 of 4"):
        close(ledger)
    feeder.feed(held[1:])
    with pytest.raises(NotClosable, match="2 of the events that it wrote have not come: 2 of 4"):
        close(ledger)
    feeder.feed(held[:1])
    assert close(ledger).requests == 2


def test_events_behind_the_mark_may_be_on_their_way(ledger: Ledger) -> None:
    """A gap behind what the month needs is none of its business, and is left out of the cut."""
    gateway, feeder = started(ledger)
    feeder.feed(gateway.marks(END))
    later = gateway.says(say.accepted("r2", DECEMBER), say.finished("r2", DECEMBER))
    feeder.feed(later[1:])
    assert close(ledger).cut[SOURCE]["requests"] == 2
    feeder.feed(later[:1])
    assert [one.kind for one in lines(ledger, "2026-12")] == ["usage"]
    clean(ledger)


def test_a_closed_source_has_told_all_if_all_has_come(ledger: Ledger) -> None:
    gateway, feeder = started(ledger)
    held = gateway.says(say.accepted("r2", NOVEMBER))
    said = gateway.says(say.closed(SOURCE, NOVEMBER, dict(gateway.scribe.last)))
    feeder.feed(said)
    with pytest.raises(NotClosable, match="1 of the events that it wrote has not come"):
        close(ledger)
    feeder.feed(held)
    frozen = close(ledger)
    assert (frozen.requests, frozen.open) == (1, 1)


def test_every_source_that_is_missing_is_named(ledger: Ledger) -> None:
    _, feeder = started(ledger)
    feeder.feed(Gateway(OTHER).marks(NOVEMBER))
    with pytest.raises(NotClosable) as refused:
        close(ledger)
    assert SOURCE in str(refused.value) and OTHER in str(refused.value)
    with pytest.raises(NotClosable) as refused:
        close(ledger, without=[SOURCE])
    assert SOURCE not in str(refused.value).split("to close without")[0]
    with pytest.raises(NotClosable, match="no gateway called /gateway/nobody"):
        close(ledger, without=["/gateway/nobody"])
    assert close(ledger, without=[SOURCE, OTHER]).requests == 1


def test_a_source_that_began_after_the_month_keeps_nobody_waiting(ledger: Ledger) -> None:
    gateway, feeder = started(ledger)
    feeder.feed(gateway.marks(END))
    feeder.feed(Gateway(OTHER).marks(END))
    assert close(ledger).requests == 1


def test_months_are_closed_once_and_in_their_order(ledger: Ledger) -> None:
    gateway, feeder = started(ledger)
    feeder.feed(gateway.says(say.finished("r0", NOVEMBER - timedelta(days=30))))
    feeder.feed(gateway.marks(DECEMBER))
    with pytest.raises(NotClosable, match="the first with requests is 2026-10"):
        close(ledger)
    close(ledger, "2026-10")
    with pytest.raises(NotClosable, match="2026-10 is closed already"):
        close(ledger, "2026-10")
    with pytest.raises(NotClosable, match="the next is 2026-11, not 2026-12"):
        close(ledger, "2026-12")
    with pytest.raises(NotClosable, match="still to come"):
        close(ledger, now=END - timedelta(seconds=1))
    close(ledger)
    clean(ledger)


def test_nothing_is_closed_from_before_the_ledger_began(ledger: Ledger) -> None:
    """A ledger without requests has no first month with any, and 1970 is not it."""
    with pytest.raises(NotClosable, match="the ledger holds nothing yet"):
        close(ledger, "1970-01")
    priced(ledger)  # told in January
    gateway = Gateway()
    Feeder(ledger).feed(gateway.marks(datetime(2026, 2, 3, tzinfo=UTC)))
    Feeder(ledger, "more").feed(gateway.marks(END))
    for month in ("1970-01", "2025-12"):
        with pytest.raises(NotClosable, match="is before 2026-01, in which this ledger's first"):
            close(ledger, month)
    assert close(ledger, "2026-02").requests == 0
    with pytest.raises(NotClosable, match="was settled with it"):
        close(ledger, "2026-01")


def test_an_empty_month_between_two_is_closed_as_any_other(ledger: Ledger) -> None:
    gateway, feeder = started(ledger)
    feeder.feed(gateway.says(say.finished("r2", datetime(2027, 1, 5, tzinfo=UTC))))
    feeder.feed(gateway.marks(datetime(2027, 2, 1, tzinfo=UTC)))
    months = [close(ledger, month) for month in ("2026-11", "2026-12", "2027-01")]
    assert [one.requests for one in months] == [1, 0, 1]
    clean(ledger)


def test_of_two_closings_one_stands_and_a_price_in_between_refuses_both(ledger: Ledger) -> None:
    gateway, feeder = started(ledger)
    feeder.feed(gateway.marks(END))
    _, one = closing(ledger)
    priced(ledger, model="other")
    Feeder(ledger, "one").feed([one])
    with ledger.read() as read:
        assert load_book(read).periods == ()
    _, two = closing(ledger, name="2")
    _, three = closing(ledger, now=END + timedelta(hours=2), name="3")
    Feeder(ledger, "two").feed([two])
    Feeder(ledger, "three").feed([three])
    with ledger.read() as read:
        (period,) = load_book(read).periods
    assert period.closed_at == END + timedelta(hours=1)


# --- what comes late ----------------------------------------------------------------------------


def test_an_offline_gateway_holds_a_month_open_and_lands_in_the_next(ledger: Ledger) -> None:
    """Its spool comes back after the month was closed without it."""
    gateway, feeder = started(ledger)
    offline = Gateway(OTHER)
    feeder.feed(offline.marks(NOVEMBER))
    feeder.feed(gateway.marks(END))
    spool = offline.says(
        say.accepted("r2", NOVEMBER, key_id="key-2"),
        say.finished("r2", NOVEMBER, key_id="key-2", usage=say.tokens(100, 50)),
    )
    with pytest.raises(NotClosable, match=OTHER):
        close(ledger)
    frozen = close(ledger, without=[OTHER])
    assert frozen.without[0].source == OTHER and frozen.requests == 1
    feeder.feed(spool)
    feeder.feed(offline.marks(END + timedelta(days=2)))
    assert sums(ledger, "2026-11").lines == frozen.lines
    (line,) = lines(ledger, "2026-12")
    assert (line.kind, line.corrects, line.key_id) == ("late", f"{OTHER}:2", "key-2")
    assert (line.totals.requests, cost([line])) == (1, "0.0004")
    with ledger.read() as read:
        assert [row.month for row in late_rows(read)] == ["2026-11"]
    # What landed stays where it is when that month is closed in its turn.
    feeder.feed([*gateway.marks(datetime(2027, 1, 1, tzinfo=UTC))])
    feeder.feed([*offline.marks(datetime(2027, 1, 1, tzinfo=UTC))])
    december = close(ledger, "2026-12")
    assert december.totals == {"USD": "0.0004"} and december.requests == 0
    assert lines(ledger, "2027-01") == []
    clean(ledger)


def test_an_abandoned_request_that_finishes_after_all(ledger: Ledger) -> None:
    """The finish beats the abandonment, so the line of the closed month is taken back in full."""
    gateway, feeder = started(ledger)
    runner = Scribe(RUNNER)
    feeder.feed(gateway.says(say.accepted("r2", NOVEMBER)))
    feeder.feed([runner.write(say.abandoned("r2", NOVEMBER, chunks=2))])
    feeder.feed(gateway.marks(END))
    frozen = close(ledger)
    assert frozen.requests == 2
    feeder.feed(gateway.says(say.finished("r2", NOVEMBER, usage=say.tokens(12, 9))))
    assert sums(ledger, "2026-11").lines == frozen.lines
    back, now = sorted(lines(ledger, "2026-12"), key=lambda one: one.totals.requests)
    assert (back.totals.requests, back.basis, back.totals.tokens[4]) == (-1, "running", -2)
    assert (now.totals.requests, now.basis, now.totals.tokens[4]) == (1, "reported", 9)
    assert {back.corrects, now.corrects} == {f"{RUNNER}:1"}
    assert cost([back, now]) == "0.000028"  # seven more tokens at 4 for a million
    clean(ledger)


def test_a_request_that_was_open_ends_in_the_next_month(ledger: Ledger) -> None:
    gateway, feeder = started(ledger)
    feeder.feed(gateway.says(say.accepted("r2", END - timedelta(seconds=2))))
    feeder.feed(gateway.marks(END))
    frozen = close(ledger)
    assert (frozen.requests, frozen.open) == (1, 1)
    feeder.feed(gateway.says(say.finished("r2", END - timedelta(seconds=2))))
    (line,) = lines(ledger, "2026-12")
    assert (line.kind, line.totals.requests, line.corrects) == ("late", 1, f"{SOURCE}:4")
    assert sums(ledger, "2026-11").lines == frozen.lines
    clean(ledger)


def test_late_lines_are_priced_as_their_own_month_was(ledger: Ledger) -> None:
    gateway, feeder = started(ledger)
    feeder.feed(gateway.says(say.accepted("r2", NOVEMBER)))
    feeder.feed(gateway.marks(END))
    close(ledger)
    dearer = say.price("p2", {"uncached_in": "200", "other_out": "400"}, base=1, start=END)
    Feeder(ledger, "registry/2").feed(scribed([dearer], "/cli/2"))
    feeder.feed(gateway.says(say.finished("r2", NOVEMBER)))
    feeder.feed(gateway.says(say.finished("r3", DECEMBER)))
    late, usual = sorted(lines(ledger, "2026-12"), key=lambda one: one.kind)
    assert (late.kind, cost([late])) == ("late", "0.00004")
    assert (usual.kind, cost([usual])) == ("usage", "0.004")
    clean(ledger)


def test_a_fact_under_two_names_is_in_the_cut_if_either_is(
    make_ledger: Make, tmp_path: Path
) -> None:
    """Told first under the name outside, it is late until the name within the cut comes too."""
    first, again = Scribe(RUNNER), Scribe(OTHER)
    told = [*scribed([say.accepted("r1", NOVEMBER)]), first.write(say.abandoned("r1", NOVEMBER))]
    twin = again.write(say.abandoned("r1", NOVEMBER))
    cut = {SOURCE: {"requests": 1}, RUNNER: {"requests": 1}}
    period = scribed([say.period_closed(cut)], "/cli/1")
    for number, order in enumerate(([*told, *period, twin], [twin, *period, *told])):
        with make_ledger(tmp_path, f"twice{number}") as ledger:
            for event in order:
                Feeder(ledger, f"{event.source}/{event.topic}/{event.sequence}").feed([event])
            with ledger.read() as read:
                assert late_rows(read) == []
            assert rebuild(ledger).parted == ()


# --- corrections --------------------------------------------------------------------------------


def fix(ledger: Ledger, number: int, usage: Usage | None, at: datetime, base: int = 0) -> None:
    draft = say.corrected("r1", usage, f"{SOURCE}:2", at, base)
    Feeder(ledger, f"fix/{number}").feed(scribed([draft], f"/cli/fix/{number}"))


def test_a_correction_stands_beside_what_it_corrects(ledger: Ledger) -> None:
    started(ledger)
    fix(ledger, 1, say.tokens(10, 4), NOVEMBER)
    usual, made = sorted(lines(ledger, "2026-11"), key=lambda one: one.kind, reverse=True)
    assert (usual.kind, usual.totals.requests, cost([usual])) == ("usage", 1, "0.00004")
    assert (made.kind, made.corrects, made.totals.requests) == ("corrected", f"{SOURCE}:2", 0)
    assert (made.totals.tokens, cost([made])) == ((-2, 0, 0, 0, 0), "-0.000004")
    clean(ledger)


def test_corrections_of_a_closed_month_land_in_the_open_one(ledger: Ledger) -> None:
    gateway, feeder = started(ledger)
    feeder.feed(gateway.marks(END))
    frozen = close(ledger)
    fix(ledger, 1, say.tokens(10, 4), DECEMBER)
    fix(ledger, 2, None, DECEMBER, base=1)
    assert sums(ledger, "2026-11").lines == frozen.lines
    assert cost(lines(ledger, "2026-12")) == "-0.00004"
    feeder.feed(gateway.marks(datetime(2027, 1, 1, tzinfo=UTC)))
    december = close(ledger, "2026-12")
    assert december.totals == {"USD": "-0.00004"} and december.requests == 0
    fix(ledger, 3, say.tokens(12, 5), datetime(2027, 1, 2, tzinfo=UTC), base=2)
    (again,) = lines(ledger, "2027-01")
    assert (again.totals.requests, cost([again])) == (1, "0.000044")
    assert sums(ledger, "2026-12").lines == december.lines
    with ledger.read() as read:
        book = load_book(read)
        total = [*rated(read, book, 0, 1 << 60, step="span"), *corrections_of_all_time(read, book)]
    months = [one for m in ("2026-11", "2026-12", "2027-01") for one in lines(ledger, m)]
    assert cost(total) == cost(months) == "0.000044"
    clean(ledger)


def test_a_correction_makes_known_what_nobody_could_count(ledger: Ledger) -> None:
    priced(ledger)
    lost = say.finished("r1", NOVEMBER, usage=Usage(), basis="none", outcome="backend_lost")
    Feeder(ledger).feed(scribed([say.accepted("r1", NOVEMBER), lost]))
    fix(ledger, 1, Usage(uncached_in=7, other_out=1), NOVEMBER)
    found = {one.basis: one for one in lines(ledger, "2026-11") if one.kind == "corrected"}
    assert (found["none"].totals.requests, found["reported"].totals.requests) == (-1, 1)
    assert cost(lines(ledger, "2026-11")) == "0.000018"


def test_what_comes_late_changes_no_correction(ledger: Ledger) -> None:
    """A person has said what it was; the finish that comes months later adds nothing to it."""
    priced(ledger)
    gateway, runner, feeder = Gateway(), Scribe(RUNNER), Feeder(ledger)
    feeder.feed(gateway.marks(NOVEMBER))
    feeder.feed(gateway.says(say.accepted("r1", NOVEMBER)))
    feeder.feed([runner.write(say.abandoned("r1", NOVEMBER))])
    feeder.feed(gateway.marks(END))
    close(ledger)
    fix(ledger, 1, say.tokens(12, 8), DECEMBER)
    feeder.feed(gateway.marks(datetime(2027, 1, 1, tzinfo=UTC)))
    december = close(ledger, "2026-12")
    feeder.feed(gateway.says(say.finished("r1", NOVEMBER, usage=say.tokens(12, 90))))
    assert lines(ledger, "2027-01") == []
    assert sums(ledger, "2026-12").lines == december.lines
    months = [one for m in ("2026-11", "2026-12") for one in lines(ledger, m)]
    assert cost(months) == "0.000056"  # 12 at 2 and 8 at 4
    clean(ledger)


def test_a_closing_that_overlooked_a_correction_is_refused(ledger: Ledger) -> None:
    gateway, feeder = started(ledger)
    feeder.feed(gateway.marks(END))
    _, event = closing(ledger)
    fix(ledger, 1, None, DECEMBER)
    Feeder(ledger, "closing").feed([event])
    with ledger.read() as read:
        assert load_book(read).periods == ()


# --- the audit ----------------------------------------------------------------------------------


def test_the_audit_sees_a_closed_month_that_was_touched(ledger: Ledger) -> None:
    gateway, feeder = started(ledger)
    feeder.feed(gateway.says(say.accepted("r2", NOVEMBER)))
    feeder.feed(gateway.marks(END))
    close(ledger)
    feeder.feed(gateway.says(say.finished("r2", NOVEMBER)))
    with ledger.read() as read:
        assert audit(read).findings == []
    with ledger.write() as tx:
        tx.execute(
            update(tables.usage_hourly).values(other_out=tables.usage_hourly.c.other_out + 1)
        )
        tx.execute(delete(tables.late))
    with ledger.read() as read:
        said = list(parted(read, load_book(read)))
    assert any(
        words.startswith("2026-11 was closed with totals {'USD': '0.00004'}") for words in said
    )
    assert any(words.startswith("2026-11 was closed with lines ") for words in said)
    assert any(words.startswith("late request r2: its events say LateRow(") for words in said)


# --- zones --------------------------------------------------------------------------------------


def test_a_month_is_that_of_the_zone_of_the_books(ledger: Ledger) -> None:
    """An hour before midnight UTC the next month has begun in Zurich; a quarter hour is enough."""
    for number, zone in enumerate(("Europe/Zurich", "Asia/Kathmandu")):
        draft = Draft(
            f"books/{number}",
            "books",
            NOVEMBER,
            BooksSet(base=number, version=number + 1, zone=zone),
        )
        Feeder(ledger, f"books/{number}").feed(scribed([draft], f"/cli/books/{number}"))
    gateway, feeder = Gateway(), Feeder(ledger)
    edge = datetime(2026, 11, 30, 18, 15, tzinfo=UTC)
    feeder.feed(gateway.marks(NOVEMBER))
    for number, at in enumerate((edge - timedelta(microseconds=1), edge)):
        feeder.feed(gateway.says(say.finished(f"r{number}", at)))
    feeder.feed(gateway.marks(edge))
    frozen = close(ledger)
    assert (frozen.zone, frozen.end, frozen.requests) == ("Asia/Kathmandu", edge, 1)
    assert [one.totals.requests for one in lines(ledger, "2026-12")] == [1]
    clean(ledger)


# --- any order ----------------------------------------------------------------------------------
