"""What the accounts of money are called, and what movements leave on them. Pure.

`project/ID` and `organization/ID` hold what somebody has paid in or was granted; `budget/MONTH/ID`
what a project means to spend in a month, which is no money. The rest is where it comes from and
goes to, so that every movement adds up to zero.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from ledger.events.requests import SYSTEM_KEY_ID
from ledger.folds.book import Book
from ledger.folds.money import Entry

CASH: Final = "cash"
"""Money that was really paid, or paid back."""
GRANTS: Final = "grants"
"""Credit that nobody paid for."""
ADJUSTMENTS: Final = "adjustments"
"""What a person set right."""
BUDGETS: Final = "budgets"
"""The other side of every budget."""

PROJECT: Final = "project/"
ORGANIZATION: Final = "organization/"
BUDGET: Final = "budget/"
_MONTH_LENGTH: Final = len("2026-11")


def budget_account(month: str, project_id: str) -> str:
    """The account of what a project means to spend in a month such as `2026-11`."""
    return f"{BUDGET}{month}/{project_id}"


def budget_of(account: str) -> tuple[str, str] | None:
    """The month and the project whose budget `account` is; null if it is another account."""
    if not account.startswith(BUDGET):
        return None
    name = account.removeprefix(BUDGET)
    return name[:_MONTH_LENGTH], name[_MONTH_LENGTH + 1 :]


def held(entries: Iterable[Entry], until: datetime | None = None) -> dict[tuple[str, str], int]:
    """What movements leave on each (account, currency), in pico; only of those that had their
    effect by `until`. All accounts of one currency together are always zero."""
    sums: dict[tuple[str, str], int] = {}
    for entry in entries:
        if until is None or entry.effective_from <= until:
            for account, currency, pico in entry.postings:
                sums[account, currency] = sums.get((account, currency), 0) + pico
    return sums


def keys_in(book: Book, project_id: str) -> list[str]:
    """The ids of the keys that belong to a project by now, sorted."""
    known = {*book.keys, SYSTEM_KEY_ID}
    return sorted(
        key_id
        for key_id, had in book.members.items()
        if had and had[-1].project_id == project_id and key_id in known
    )
