"""What a review found: the audit held an export's counts against the ledger, but not its money."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from ledger.audit import audit
from ledger.events import BUCKETS
from ledger.export.manifest import Manifest
from ledger.export.month import Exported, export_month
from tests.support.books import Books
from tests.support.events import START, after, life, price


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Books]:
    books = Books(tmp_path)
    yield books
    books.ledger.close()


def export(books: Books) -> Exported:
    return export_month(books.ledger, "2026-11", books.exports)


def said(books: Books, done: Exported, manifest: Manifest) -> tuple[list[str], list[str]]:
    with books.ledger.read() as read:
        report = audit(read, (), [(done.directory, manifest)])
    return [found.says for found in report.findings if found.check == "exports"], report.notes


def test_a_price_of_the_month_that_came_later_is_noted(books: Books) -> None:
    books.add(*life("r-1"))
    done = export(books)
    assert said(books, done, done.manifest) == ([], [])
    books.add(price("p-1", dict.fromkeys(BUCKETS, "1"), start=START))
    findings, notes = said(books, done, done.manifest)
    assert findings == [] and ["1 price of" in note for note in notes] == [True]
    again = export(books)
    assert again.change == "replaced" and said(books, again, again.manifest) == ([], [])


def test_a_price_of_the_next_month_is_none_of_its_business(books: Books) -> None:
    books.add(*life("r-1"))
    done = export(books)
    books.add(price("p-1", dict.fromkeys(BUCKETS, "1"), start=after(40 * 86_400)))
    assert said(books, done, done.manifest) == ([], [])


def test_money_that_the_bill_does_not_know_is_a_difference(books: Books) -> None:
    books.add(price("p-1", dict.fromkeys(BUCKETS, "1"), start=START))
    books.add(*life("r-1"))
    done = export(books)
    (cost,) = done.manifest.cost.values()
    findings, _ = said(
        books, done, msgspec.structs.replace(done.manifest, cost={"USD": f"9{cost}"})
    )
    assert len(findings) == 1 and f"9{cost} USD" in findings[0] and f" {cost} USD" in findings[0]
    findings, _ = said(books, done, msgspec.structs.replace(done.manifest, prices=["p-1", "p-9"]))
    assert len(findings) == 1 and "p-9" in findings[0]
