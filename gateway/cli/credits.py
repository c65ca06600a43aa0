"""`tollbook credits`: money that came in or was granted, budgets, and what usage left of them."""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click

from gateway.cli.account_facts import Names, find
from gateway.cli.data import all_names, change_registry, current_ledger, registry
from gateway.cli.money_facts import (
    MONTHS_MAX,
    Line,
    budgeted,
    find_entry,
    lines_of,
    moved,
    parse_amount,
    parse_budget,
    parse_signed,
    transferred,
    undone,
)
from gateway.cli.options import INSTANT, MONTH, Parsed, csv_option, json_option, one_format
from gateway.cli.output import Cell, Column, Table, json_text, show
from gateway.cli.place import Place, place_option
from gateway.cli.price_entries import parse_currency
from gateway.cli.sources import checked_reason
from ledger.amounts import decimal_text
from ledger.clock import SystemClock, from_us, to_us
from ledger.events import CreditPosted, Draft
from ledger.events.money import PostingKind
from ledger.folds.accounts import budget_of
from ledger.folds.book import Book
from ledger.folds.money import Entry
from ledger.words import counted

if TYPE_CHECKING:
    from ledger.sql.accounts import BudgetLine, Standing

OWNERS: Final = ("project", "organization")
AMOUNT: Final = Parsed("amount", parse_amount)

_OPTIONS: Final = (
    click.option(
        "--currency",
        type=Parsed("currency", parse_currency),
        required=True,
        metavar="CODE",
        help="Three letters, such as EUR.",
    ),
    click.option(
        "--reason",
        required=True,
        metavar="TEXT",
        help="Why; it is kept for ever, so it is no place for a person's name.",
    ),
    click.option(
        "--from",
        "begin",
        type=INSTANT,
        metavar="INSTANT",
        help="When it has its effect. Default: now. Never in a closed month.",
    ),
)


def movement_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--currency`, `--reason`, `--from`, the place and `--json`."""
    command = json_option(place_option(command))
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.group("credits", no_args_is_help=True)
def command() -> None:
    """Money and budgets of projects and organizations, as movements that are never changed."""


@command.command("grant")
@click.argument("account", metavar="PROJECT|ORGANIZATION")
@click.argument("amount", type=AMOUNT)
@movement_options
def grant(account: str, amount: str, **given: Any) -> None:
    """Give credit that nobody paid for."""
    _move("grant", account, amount, **given)


@command.command("top-up")
@click.argument("account", metavar="PROJECT|ORGANIZATION")
@click.argument("amount", type=AMOUNT)
@movement_options
def top_up(account: str, amount: str, **given: Any) -> None:
    """Record money that was paid in ahead of use."""
    _move("top_up", account, amount, **given)


@command.command("refund")
@click.argument("account", metavar="PROJECT|ORGANIZATION")
@click.argument("amount", type=AMOUNT)
@movement_options
def refund(account: str, amount: str, **given: Any) -> None:
    """Record money that was paid back."""
    _move("refund", account, f"-{amount}", **given)


@command.command("adjust", context_settings={"ignore_unknown_options": True})
@click.argument("account", metavar="PROJECT|ORGANIZATION")
@click.argument("amount", type=Parsed("amount", parse_signed))
@movement_options
def adjust(account: str, amount: str, **given: Any) -> None:
    """Set an account right by AMOUNT, which may be below zero: -3.50."""
    _move("adjustment", account, amount, **given)


@command.command("transfer")
@click.argument("giver", metavar="FROM")
@click.argument("taker", metavar="TO")
@click.argument("amount", type=AMOUNT)
@movement_options
def transfer(
    giver: str,
    taker: str,
    amount: str,
    currency: str,
    reason: str,
    begin: datetime | None,
    place: Place,
    as_json: bool,
) -> None:
    """Move money between accounts: an organization's to its project."""
    reason = checked_reason(reason)
    book, names = registry(place), all_names(place)
    from_, to = ("/".join(find(book, names, which, OWNERS)) for which in (giver, taker))
    now = SystemClock().now()

    def make(book: Book) -> Draft:
        return transferred(book, from_, to, currency, amount, reason, begin or now, now)

    _post(place, make, as_json)


@command.command("undo")
@click.argument("which", metavar="ENTRY")
@click.option("--reason", required=True, metavar="TEXT", help="Why; it is kept for ever.")
@place_option
@json_option
def undo(which: str, reason: str, place: Place, as_json: bool) -> None:
    """Take a movement back as a whole, by another one. Both stay in the books."""
    reason = checked_reason(reason)
    now = SystemClock().now()
    _post(place, lambda book: undone(book, find_entry(book.entries, which), reason, now), as_json)


@command.command("budget")
@click.argument("project")
@click.argument("amount", type=Parsed("amount", parse_budget))
@click.option(
    "--currency",
    type=Parsed("currency", parse_currency),
    required=True,
    metavar="CODE",
    help="Three letters, such as EUR.",
)
@click.option("--month", type=MONTH, help="The first month. Default: the one that it is now.")
@click.option("--until", type=MONTH, help="The last month, if it is for several.")
@click.option("--reason", required=True, metavar="TEXT", help="Why; it is kept for ever.")
@place_option
@json_option
def budget(
    project: str,
    amount: str,
    currency: str,
    month: str | None,
    until: str | None,
    reason: str,
    place: Place,
    as_json: bool,
) -> None:
    """Set what PROJECT means to spend in a month to AMOUNT. Nothing is refused when it is used up;
    `tollbook credits list` shows what is left."""
    reason = checked_reason(reason)
    book = registry(place)
    _, id_ = find(book, all_names(place), project, ("project",))
    now = SystemClock().now()
    months = months_of(book.rules.zone, month, until, now)
    _post(
        place,
        lambda book: budgeted(book, id_, months, currency, amount, reason, now),
        as_json,
    )


@command.command("list")
@click.argument("account", required=False, metavar="[PROJECT|ORGANIZATION]")
@place_option
@json_option
@csv_option
def list_credits(account: str | None, place: Place, as_json: bool, as_csv: bool) -> None:
    """List movements, oldest first; on a month's budget also what is used of it and left.

    With Kafka what is used is what the ledger writer has brought so far.
    """
    one_format(as_json, as_csv)
    from ledger.sql.accounts import budgets
    from ledger.sql.replay import load_book

    book, names = registry(place), all_names(place)
    owner = None if account is None else "/".join(find(book, names, account, OWNERS))
    lines = lines_of(book.entries, owner)
    with current_ledger(place) as ledger, ledger.read() as read:
        there = budgets(read, load_book(read))
    if owner is not None:
        there = [one for one in there if f"project/{one.project_id}" == owner]
    if as_json:
        said = [entry_json(one) for one in dict.fromkeys(line.entry for line in lines)]
        click.echo(json_text({"entries": said, "budgets": [budget_json(one) for one in there]}))
    else:
        show(
            lines_table(lines, there, names),
            as_csv=as_csv,
            empty="no movement yet; `tollbook credits top-up` records one",
        )


@command.command("balance")
@click.argument("account", required=False, metavar="[PROJECT|ORGANIZATION]")
@click.option("--at", type=INSTANT, metavar="INSTANT", help="Until when. Default: now.")
@place_option
@json_option
@csv_option
def show_balance(
    account: str | None, at: datetime | None, place: Place, as_json: bool, as_csv: bool
) -> None:
    """Show what each account holds: what was moved onto it, minus what its project used.

    With Kafka it is what the ledger writer has brought so far.
    """
    one_format(as_json, as_csv)
    from ledger.sql.accounts import standings
    from ledger.sql.replay import load_book

    names = all_names(place)
    owner = None if account is None else "/".join(find(registry(place), names, account, OWNERS))
    until = at or SystemClock().now()
    with current_ledger(place) as ledger, ledger.read() as read:
        book = load_book(read)
        found = standings(read, book, to_us(until))
    found = [one for one in found if owner in (None, one.account)]
    closed = book.periods[-1] if book.periods else None
    is_open = closed is None or until > closed.end
    if as_json:
        rows = [standing_json(one, names) for one in found]
        click.echo(json_text({"at": until, "open": is_open, "accounts": rows}))
        return
    since = "no month is closed yet" if closed is None else f"closed is all up to {closed.month}"
    note = f"What is used may still change: {since}." if is_open else None
    table = standings_table(found, names, note)
    show(table, as_csv=as_csv, empty="nothing was moved or used yet")


def months_of(
    zone: str, month: str | None, until: str | None, now: datetime
) -> dict[str, datetime]:
    """The start of each month from one to another, both with it. Raises `UsageError`."""
    from ledger.zones import month_of, month_span, next_month

    first = month or month_of(to_us(now), zone)
    last = until or first
    months: dict[str, datetime] = {}
    while first <= last:
        if len(months) == MONTHS_MAX:
            raise click.UsageError(f"a budget is for at most {MONTHS_MAX} months at once")
        months[first] = from_us(month_span(first, zone)[0])
        first = next_month(first)
    if not months:
        raise click.UsageError(f"--until {last} is before {first}; give a later month")
    return months


def entry_json(entry: Entry) -> dict[str, object]:
    """One movement for JSON, with both of its sides. Amounts are exact decimals."""
    return {
        "entry": entry.entry_id,
        "kind": entry.kind,
        "from": entry.effective_from,
        "posted": entry.posted_at,
        "reason": entry.reason,
        "postings": [
            {"account": account, "currency": currency, "amount": decimal_text(pico)}
            for account, currency, pico in entry.postings
        ],
    }


def budget_json(one: "BudgetLine") -> dict[str, object]:
    """One budget for JSON."""
    return {
        "project": one.project_id,
        "month": one.month,
        "currency": one.currency,
        "budget": decimal_text(one.budget),
        "used": decimal_text(one.used),
        "left": decimal_text(one.left),
        "open": one.open,
        "unpriced_tokens": one.unpriced,
        "unknown_requests": one.unknown,
    }


def standing_json(one: "Standing", names: Names) -> dict[str, object]:
    """What one account holds, for JSON."""
    return {
        "account": one.account,
        "name": _called(one.account, names),
        "currency": one.currency,
        "moved": decimal_text(one.moved),
        "used": decimal_text(one.used),
        "balance": decimal_text(one.balance),
        "unpriced_tokens": one.unpriced,
        "unknown_requests": one.unknown,
    }


def lines_table(lines: Sequence[Line], there: "Sequence[BudgetLine]", names: Names) -> Table:
    """Movements as a table, a row for each side that somebody owns. The last row of a budget that
    was set several times has what is used and left of it. Pure."""
    by_name = {(one.month, one.project_id, one.currency): one for one in there}
    last: dict[tuple[str, str], int] = {}
    for number, line in enumerate(lines):
        last[line.account, line.currency] = number
    rows: list[tuple[Cell, ...]] = []
    for number, line in enumerate(lines):
        budget = budget_of(line.account)
        month = budget[0] if budget else None
        owner = f"project/{budget[1]}" if budget else line.account
        sums: tuple[Cell, ...] = (None, None)
        known = by_name.get((*budget, line.currency)) if budget else None
        if known is not None and last[line.account, line.currency] == number:
            sums = decimal_text(known.used), decimal_text(known.left)
        rows.append(
            (
                line.entry.effective_from,
                line.entry.kind.replace("_", "-"),
                _called(owner, names) or owner,
                month,
                decimal_text(line.pico),
                line.currency,
                *sums,
                line.entry.reason,
                line.entry.entry_id,
            )
        )
    columns = [Column("from"), Column("kind"), Column("account"), Column("month")]
    columns += [Column("amount", number=True), Column("currency")]
    columns += [Column("used", number=True), Column("left", number=True)]
    notes = _uncosted_notes([(one.unpriced, one.unknown) for one in there])
    if still := sorted({one.month for one in there if one.open}):
        verb = "is" if len(still) == 1 else "are"
        notes += (f"{', '.join(still)} {verb} open: what is used may still change.",)
    return Table((*columns, Column("reason"), Column("entry")), tuple(rows), notes)


def standings_table(found: "Sequence[Standing]", names: Names, note: str | None = None) -> Table:
    """Accounts as a table, with a note below. Pure."""
    columns = [Column("account"), Column("name"), Column("currency")]
    columns += [Column(name, number=True) for name in ("moved", "used", "balance")]
    each = {one.account: (one.unpriced, one.unknown) for one in found}
    return Table(
        tuple(columns),
        tuple(
            (
                one.account,
                _called(one.account, names),
                one.currency,
                decimal_text(one.moved),
                decimal_text(one.used),
                decimal_text(one.balance),
            )
            for one in found
        ),
        (*_uncosted_notes(each.values()), *([note] if note else [])),
    )


def _uncosted_notes(counts: Collection[tuple[int, int]]) -> tuple[str, ...]:
    unpriced = sum(one for one, _ in counts)
    unknown = sum(one for _, one in counts)
    notes = []
    if unpriced:
        tokens = counted(unpriced, "token has", "tokens have")
        notes.append(f"{tokens} no price; what they cost is not in what is used.")
    if unknown:
        requests = counted(unknown, "request")
        notes.append(f"Of {requests} nobody could count the tokens, nor what they cost.")
    return tuple(notes)


def _called(account: str, names: Names) -> str | None:
    kind, _, id_ = account.partition("/")
    return names.get(kind, {}).get(id_)


def _move(
    kind: PostingKind,
    which: str,
    amount: str,
    *,
    currency: str,
    reason: str,
    begin: datetime | None,
    place: Place,
    as_json: bool,
) -> None:
    reason = checked_reason(reason)
    account = "/".join(find(registry(place), all_names(place), which, OWNERS))
    now = SystemClock().now()

    def make(book: Book) -> Draft:
        return moved(book, kind, account, currency, amount, reason, begin or now, now)

    _post(place, make, as_json)


def _post(place: Place, make: Callable[[Book], Draft], as_json: bool) -> None:
    """Append the movement and show it with all its sides."""
    made: list[Draft] = []

    def remembered(book: Book) -> Draft:
        made.append(make(book))
        return made[-1]

    book = change_registry(place, remembered)
    payload = made[-1].payload
    assert isinstance(payload, CreditPosted), "what moves money is made of nothing else"
    entry = find_entry(book.entries, payload.entry_id)
    if as_json:
        click.echo(json_text(entry_json(entry)))
        return
    rows = tuple(
        (account, decimal_text(pico), currency) for account, currency, pico in entry.postings
    )
    columns = (Column("account"), Column("amount", number=True), Column("currency"))
    show(Table(columns, rows, (f"Its entry is {entry.entry_id}.",)))
