"""Which charges of a month FOCUS can hold, and what of the bill it cannot.

FOCUS has no word for a cost that is not known, and zero would be another statement. Tokens without
a price and requests of which nothing is known are left out and counted; what a file adds up to is
then what the bill adds up to.
"""

from collections.abc import Iterator

from ledger.export.manifest import LeftOut
from ledger.folds.book import Book
from ledger.folds.cost import cost_of_rated
from ledger.sql.charges import Charge, charges
from ledger.sql.rated import month_lines
from ledger.sql.session import ReadSession


def holdable(read: ReadSession, book: Book, month: str) -> Iterator[Charge]:
    """The charges of `month`, by hour, that have a cost; in their order."""
    for charge in charges(read, book, month, step="hour"):
        if charge.cost_pico is not None:
            yield charge


def left_out(read: ReadSession, book: Book, month: str) -> LeftOut:
    """What of the bill of `month` has no row."""
    tokens = requests = 0
    for line in month_lines(read, book, month, step="span"):
        if line.basis == "none":
            requests += line.totals.requests
        elif cost_of_rated(line).pico is None:
            tokens += sum(line.totals.tokens)
    return LeftOut(unpriced_tokens=tokens, unknown_requests=requests)
