"""Movements of money as facts: what a command makes of the book.

Every one adds up to zero and is never changed; what was wrong is undone by another. Pure, but that
every fact gets an id that was never there.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from gateway.cli.failure import Stop
from gateway.setting_values import nearest
from ledger.amounts import decimal_text, signed_pico
from ledger.errors import AmountError
from ledger.events import CreditPosted, Draft, Posting
from ledger.events.money import PostingKind
from ledger.folds.accounts import (
    ADJUSTMENTS,
    BUDGETS,
    CASH,
    GRANTS,
    budget_account,
    budget_of,
    held,
)
from ledger.folds.book import Book
from ledger.folds.money import Entry
from ledger.identity import mint_id

AGAINST: Final[Mapping[PostingKind, str]] = {
    "grant": GRANTS,
    "top_up": CASH,
    "refund": CASH,
    "adjustment": ADJUSTMENTS,
}
"""Where the money of a movement comes from, or goes to."""

UNDO: Final = "undo/"
"""The id of what undoes another movement is this and the other's id, so that it is there once."""

MONTHS_MAX: Final = 120
"""Of one budget. A fact holds them all and has an end."""


class Line(msgspec.Struct, frozen=True):
    """One side of a movement on an account that somebody owns."""

    entry: Entry
    account: str
    currency: str
    pico: int


def parse_amount(text: str) -> str:
    """An exact amount above zero, in plain digits. Raises `ValueError` with words."""
    if parse_signed(text).startswith("-"):
        raise ValueError(f"{text} is below zero; `tollbook credits adjust` takes such amounts")
    return parse_signed(text)


def parse_signed(text: str) -> str:
    """An exact amount, perhaps with a minus, but not zero. Raises `ValueError` with words."""
    try:
        pico = signed_pico(text)
    except AmountError as wrong:
        raise ValueError(str(wrong)) from wrong
    if pico == 0:
        raise ValueError("an amount of nothing moves nothing")
    return decimal_text(pico)


def parse_budget(text: str) -> str:
    """An exact amount from zero up: a budget may be taken away. Raises `ValueError`."""
    try:
        pico = signed_pico(text)
    except AmountError as wrong:
        raise ValueError(str(wrong)) from wrong
    if pico < 0:
        raise ValueError(f"{text} is below zero, which no budget is")
    return decimal_text(pico)


def moved(
    book: Book,
    kind: PostingKind,
    account: str,
    currency: str,
    amount: str,
    reason: str,
    begin: datetime,
    now: datetime,
) -> Draft:
    """`account` gets `amount` (below zero: it gives), as a movement of that kind. Raises `Stop` if
    it is closed and would get something."""
    pico = signed_pico(amount)
    if pico > 0:
        _refuse_closed(book, account)
    postings = [(account, currency, pico), (AGAINST[kind], currency, -pico)]
    return _posted(mint_id(), kind, postings, reason, begin, now)


def transferred(
    book: Book,
    giver: str,
    taker: str,
    currency: str,
    amount: str,
    reason: str,
    begin: datetime,
    now: datetime,
) -> Draft:
    """`amount` goes from one account to another. Raises `Stop`."""
    if giver == taker:
        raise Stop(f"{giver} is both sides; name two accounts")
    _refuse_closed(book, taker)
    pico = signed_pico(amount)
    postings = [(taker, currency, pico), (giver, currency, -pico)]
    return _posted(mint_id(), "adjustment", postings, reason, begin, now)


def undone(book: Book, entry: Entry, reason: str, now: datetime) -> Draft:
    """The movement that takes `entry` back as a whole; both stay in the books. Raises `Stop` if
    one does already, and for a budget, which is rather set anew."""
    if entry.kind == "budget":
        raise Stop(f"{entry.entry_id} is a budget; set it to another by `tollbook credits budget`")
    new = UNDO + entry.entry_id
    if any(one.entry_id == new for one in book.entries):
        raise Stop(f"{entry.entry_id} is undone already, by {new}; undo that one to restore it")
    postings = [(account, currency, -pico) for account, currency, pico in entry.postings]
    # It has its effect when the other had, but never behind the end of a closed month.
    begin = entry.effective_from
    if book.periods and begin < book.periods[-1].end:
        begin = book.periods[-1].end
    return _posted(new, "adjustment", postings, reason, begin, now)


def budgeted(
    book: Book,
    project_id: str,
    months: Mapping[str, datetime],
    currency: str,
    amount: str,
    reason: str,
    now: datetime,
) -> Draft:
    """What brings the project's budget of each month to `amount`: the differences to what it is.
    `months` gives the start of each. Raises `Stop` if all are so already."""
    _refuse_closed(book, f"project/{project_id}")
    wanted, there = signed_pico(amount), held(book.entries)
    postings: list[tuple[str, str, int]] = []
    for month in months:
        account = budget_account(month, project_id)
        if difference := wanted - there.get((account, currency), 0):
            postings.append((account, currency, difference))
    if not postings:
        raise Stop("that is the budget already; nothing was written")
    postings.append((BUDGETS, currency, -sum(pico for _, _, pico in postings)))
    # Numbered and not minted: of two commands that made up the same difference one is refused.
    number = sum(1 for one in book.entries if one.kind == "budget") + 1
    begin = min(months.values())
    return _posted(f"budget/{number}", "budget", postings, reason, begin, now)


def find_entry(entries: Sequence[Entry], which: str) -> Entry:
    """The movement with that id. Raises `Stop` with the nearest if there is none."""
    for one in entries:
        if one.entry_id == which:
            return one
    near = nearest(which, [one.entry_id for one in entries])
    hint = f"did you mean {near}?" if near else "`tollbook credits list` shows them"
    raise Stop(f"there is no movement {which!r}; {hint}")


def lines_of(entries: Sequence[Entry], account: str | None = None) -> list[Line]:
    """The sides of movements that somebody owns, in the registry's order; those of `account` only,
    and with a project its budgets."""
    lines = []
    for entry in entries:
        for held_by, currency, pico in entry.postings:
            if owner_of(held_by) is None or (account and owner_of(held_by) != account):
                continue
            lines.append(Line(entry, held_by, currency, pico))
    return lines


def owner_of(account: str) -> str | None:
    """`project/ID` or `organization/ID` whose money or budget it is; null: nobody's."""
    if (budget := budget_of(account)) is not None:
        return f"project/{budget[1]}"
    return account if account.startswith(("project/", "organization/")) else None


def _posted(
    entry_id: str,
    kind: PostingKind,
    postings: Sequence[tuple[str, str, int]],
    reason: str,
    begin: datetime,
    now: datetime,
) -> Draft:
    payload = CreditPosted(
        entry_id=entry_id,
        kind=kind,
        postings=[
            Posting(account=account, currency=currency, amount=decimal_text(pico))
            for account, currency, pico in postings
        ],
        reason=reason,
        effective_from=begin,
    )
    # With a part that is minted, the loser of a race is another event and not a conflict.
    return Draft(f"{entry_id}/{mint_id()}", "credits", now, payload)


def _refuse_closed(book: Book, account: str) -> None:
    kind, _, id_ = account.partition("/")
    there = book.projects if kind == "project" else book.organizations
    if there[id_].closed:
        raise Stop(
            f"{kind} {id_} is closed and takes nothing new; open it again by "
            f"`tollbook accounts close {id_} --reopen`"
        )
