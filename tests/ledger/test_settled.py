"""A month before the first that was closed: settled with it, and it stands still as that one."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from ledger.clock import to_us
from ledger.errors import ExportFailed, NotClosable
from ledger.events import BooksSet, Draft
from ledger.export.check import check_export
from ledger.export.facts import month_in
from ledger.export.manifest import Manifest
from ledger.export.month import Exported, export_month
from ledger.export.statement import statements
from ledger.folds.months import standing_of
from ledger.sql.bill import bill
from ledger.sql.costs import costs
from ledger.sql.rated import Sheets, month_lines
from ledger.sql.replay import load_book
from ledger.sql.session import Ledger, ReadSession
from tests.ledger.closings import close
from tests.ledger.ledgers import Feeder, scribed
from tests.ledger.month_world import (
    END,
    NOVEMBER,
    OTHER,
    PRICES,
    Gateway,
    clean,
    cost,
    lines,
    priced,
    started,
)
from tests.support import events as say
from tests.support.events import SOURCE
from tests.support.prices import entry, listing

OCTOBER = datetime(2026, 10, 20, 10, tzinfo=UTC)


def later(ledger: Ledger) -> None:
    """What is told after November was closed: a price that begins in October, which the registry
    refuses, and other rules for the books."""
    per_unit = dict.fromkeys((*PRICES, "other_out"), "500")
    one = entry("dear", OCTOBER - timedelta(days=5), "m", per_unit=per_unit)
    rules = BooksSet(base=0, version=1, zone="UTC", rounding="down", issuer="Another")
    told = [listing([one], END, base=1), Draft("books/1", "books", END, rules)]
    Feeder(ledger, "registry/later").feed(scribed(told, "/cli/later"))


def late_october(ledger: Ledger) -> None:
    """November is the first month with requests and is closed; then those of October come."""
    gateway, feeder = started(ledger)
    offline = Gateway(OTHER)
    feeder.feed([*offline.marks(OCTOBER), *gateway.marks(END)])
    close(ledger, without=[OTHER])
    feeder.feed(offline.says(say.accepted("r0", OCTOBER), say.finished("r0", OCTOBER)))


def old_october(ledger: Ledger) -> None:
    """An older version closed November although October had a request, which its cut holds."""
    priced(ledger)
    gateway = Gateway()
    told = gateway.says(*say.life("r0", OCTOBER), *say.life("r1", NOVEMBER))
    Feeder(ledger).feed(told)
    cut = {SOURCE: {"requests": len(told)}}
    period = say.period_closed(cut, prices=1)
    Feeder(ledger, "closing").feed(scribed([period], "/cli/close"))


def october(read: ReadSession) -> tuple[str, str]:
    """What October costs on its bill and by the API."""
    book = load_book(read)
    first, after = to_us(datetime(2026, 10, 1, tzinfo=UTC)), to_us(NOVEMBER.replace(day=1, hour=0))
    parts = [(first, first + 10**12), (first + 10**12, after - 1), (after - 1, after)]
    spent = [one for _, one in costs(read, book, parts)]
    return cost(list(month_lines(read, book, "2026-10", step="day"))), cost(spent)


def test_what_comes_late_lands_in_the_open_month_and_leaves_nothing_behind(ledger: Ledger) -> None:
    """At the prices that the first closed month was closed with, whatever comes later."""
    late_october(ledger)
    for number in range(2):
        with ledger.read() as read:
            book = load_book(read)
            standing = standing_of(book.periods, "2026-10")
            assert (standing.state, standing.settled_with) == ("settled", "2026-11")
            assert bill(read, "2026-10") == []
            assert october(read) == ("0", "0")
        (line,) = lines(ledger, "2026-12")
        assert (line.kind, line.corrects, cost([line])) == ("late", f"{OTHER}:2", "0.00004")
        if not number:
            later(ledger)
    clean(ledger)


def test_what_the_cut_holds_keeps_its_price(ledger: Ledger) -> None:
    old_october(ledger)
    for number in range(2):
        with ledger.read() as read:
            book = load_book(read)
            (line,) = bill(read, "2026-10")
            assert (line.requests, line.cost) == (1, "0.00004")
            assert october(read) == ("0.00004", "0.00004")
            at = to_us(OCTOBER)
            rate = Sheets(book).at(at).rate("key-1", "m", at, lambda *_: (1, 0))
            assert rate is not None and rate.price.price_id == "p-m"
            (statement,) = statements(read, book, "2026-10", {})
            assert (statement.is_open, statement.period) == (False, "settled")
            assert (statement.settled_with, statement.root) == ("2026-11", None)
            assert (statement.issuer, statement.rounding) == (None, "half_even")
            assert book.rules.issuer == ("Another" if number else None)
        if not number:
            later(ledger)


def test_it_can_never_be_closed_and_says_so(ledger: Ledger) -> None:
    late_october(ledger)
    with pytest.raises(NotClosable) as refused:
        close(ledger, "2026-10")
    words = "2026-10 is before 2026-11, the first month that was closed, and was settled with it"
    assert words in str(refused.value)


def checked(ledger: Ledger, done: Exported, manifest: Manifest) -> list[str]:
    with ledger.read() as read:
        found = check_export(read, done.directory, manifest)
    assert (found.newer, found.repriced) == (0, 0)
    return found.differences


@pytest.mark.parametrize(("world", "held"), [(late_october, 0), (old_october, 1)])
def test_its_export_stands_still(
    ledger: Ledger, tmp_path: Path, world: Callable[[Ledger], None], held: int
) -> None:
    world(ledger)
    for kind in ("parquet", "csv", "focus-1.4"):
        done = export_month(ledger, "2026-10", tmp_path, kind=kind)
        manifest = done.manifest
        assert (manifest.period, manifest.root, manifest.requests) == ("settled", None, held)
        assert checked(ledger, done, manifest) == []
    later(ledger)
    for kind in ("parquet", "csv", "focus-1.4"):
        assert export_month(ledger, "2026-10", tmp_path, kind=kind).change == "same", kind
    with ledger.read() as read:
        assert month_in(read, "2026-10").closed[-1].month == "2026-11"
    with pytest.raises(ExportFailed, match="in the archive of that month"):
        export_month(ledger, "2026-10", tmp_path, kind="archive")


def test_an_export_that_says_otherwise_is_a_difference(ledger: Ledger, tmp_path: Path) -> None:
    """A settled month that the ledger has as open again has lost its closing."""
    started(ledger)
    done = export_month(ledger, "2026-10", tmp_path)
    assert done.manifest.period == "open"
    said = msgspec.structs.replace(done.manifest, period="settled")
    (words,) = checked(ledger, done, said)
    assert "says that it is settled, and the ledger says open" in words
