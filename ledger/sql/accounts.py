"""Organizations, projects and keys with their names, and what their accounts hold.

A balance is what movements left on an account minus what the project's usage cost: usage is never
a movement, so that its price and the money cannot part.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec
from sqlalchemy import func, select

from ledger.clock import from_us
from ledger.events import BUCKETS
from ledger.events.requests import SYSTEM_KEY_ID
from ledger.folds.accounts import ORGANIZATION, PROJECT, budget_of, held, keys_in
from ledger.folds.book import Book
from ledger.folds.cost import cost_of_rated
from ledger.folds.months import standing_of
from ledger.folds.rating import Rated, split
from ledger.sql import tables
from ledger.sql.adjust import adjustments
from ledger.sql.names import KINDS, SYSTEM_NAME, names_of
from ledger.sql.rated import frame_of, month_lines, rated
from ledger.sql.session import ReadSession
from ledger.zones import month_of, next_month

Names = Mapping[str, Mapping[str, str]]
"""Names by kind (`organization`, `project`, `key`) and id."""


class KeyNode(msgspec.Struct, frozen=True):
    """A key as it stands in a tree; `name` null: nobody gave it one, or it was forgotten."""

    id: str
    name: str | None
    tags: Mapping[str, str]
    scope: str | None
    revoked: bool


class ProjectNode(msgspec.Struct, frozen=True):
    """A project and the keys that belong to it by now, by id."""

    id: str
    name: str | None
    organization_id: str
    tags: Mapping[str, str]
    closed: bool
    keys: tuple[KeyNode, ...]


class OrganizationNode(msgspec.Struct, frozen=True):
    """An organization and its projects, by id."""

    id: str
    name: str | None
    tags: Mapping[str, str]
    closed: bool
    projects: tuple[ProjectNode, ...]


class Used(msgspec.Struct, frozen=True):
    """What usage cost, in pico. What has no cost is not in it: `unpriced` tokens have no price, and
    of `unknown` requests nobody could count the tokens."""

    pico: int = 0
    unpriced: int = 0
    unknown: int = 0

    def plus(self, other: "Used") -> "Used":
        """Both together."""
        return Used(
            self.pico + other.pico,
            self.unpriced + other.unpriced,
            self.unknown + other.unknown,
        )


class Standing(msgspec.Struct, frozen=True):
    """What an account holds of one currency, in pico: what movements left on it, and what its
    project's usage took. `currency` null: no price and no movement says one. What has no cost, as
    in `Used`, is that of the whole project, since it has no currency."""

    account: str
    currency: str | None
    moved: int
    used: int
    unpriced: int
    unknown: int

    @property
    def balance(self) -> int:
        """What is left; below zero: more was used than there was."""
        return self.moved - self.used


class BudgetLine(msgspec.Struct, frozen=True):
    """A project's budget for a month and what of it is used, in pico; the rest as in `Standing`.
    `open`: the month is not closed, so that more may be used of it, or less."""

    project_id: str
    month: str
    currency: str
    budget: int
    used: int
    open: bool
    unpriced: int
    unknown: int

    @property
    def left(self) -> int:
        """What is left; below zero: it is overdrawn."""
        return self.budget - self.used


Costs = dict[tuple[str | None, str | None], Used]
"""What usage cost by project and currency; null: no project, and no price that says one."""


def account_names(read: ReadSession) -> dict[str, dict[str, str]]:
    """Every name by kind and id."""
    return {kind: names_of(read, kind) for kind in KINDS}


def tree(read: ReadSession, book: Book) -> list[OrganizationNode]:
    """The organizations of `book`, oldest first, each with its projects and their keys."""
    return tree_of(book, account_names(read))


def tree_of(book: Book, names: Names) -> list[OrganizationNode]:
    """`tree` with names that were read already. Pure."""
    inside: dict[str, list[ProjectNode]] = {}
    for one in sorted(book.projects.values(), key=lambda one: one.project_id):
        node = ProjectNode(
            id=one.project_id,
            name=names.get("project", {}).get(one.project_id),
            organization_id=one.organization_id,
            tags=one.tags,
            closed=one.closed,
            keys=tuple(_key(book, names, key_id) for key_id in keys_in(book, one.project_id)),
        )
        inside.setdefault(one.organization_id, []).append(node)
    return [
        OrganizationNode(
            id=one.organization_id,
            name=names.get("organization", {}).get(one.organization_id),
            tags=one.tags,
            closed=one.closed,
            projects=tuple(inside.get(one.organization_id, ())),
        )
        for one in sorted(book.organizations.values(), key=lambda one: one.organization_id)
    ]


def loose_of(book: Book, names: Names) -> list[KeyNode]:
    """The keys that belong to no project by now, by id. Pure."""
    placed = {key_id for key_id, had in book.members.items() if had and had[-1].project_id}
    return [_key(book, names, key_id) for key_id in sorted(set(book.keys) - placed)]


def balance(read: ReadSession, book: Book, account: str, currency: str, until_us: int) -> int:
    """What `account` holds of a currency at an instant, in pico: what movements left on it, and of
    a project minus what it used. An organization's account is what it gave to no project."""
    found = (one for one in standings(read, book, until_us) if one.account == account)
    return next((one.balance for one in found if one.currency == currency), 0)


def standings(read: ReadSession, book: Book, until_us: int) -> list[Standing]:
    """Every account of an organization or a project on which something moved or was used before
    `until_us`, by account and currency. Usage counts by when its request was accepted."""
    moved = {
        name: pico
        for name, pico in held(book.entries, from_us(until_us)).items()
        if name[0].startswith((PROJECT, ORGANIZATION))
    }
    costs: Costs = {}
    for part in _parts(read, book, until_us):
        _add(costs, part)
    took = {
        (PROJECT + project, currency): used
        for (project, currency), used in costs.items()
        if project is not None
    }
    names = {*moved, *(name for name, used in took.items() if used.pico)}
    names |= {name for name in took if not any(one[0] == name[0] for one in names)}
    return [
        Standing(
            account=account,
            currency=currency,
            moved=moved.get((account, currency or ""), 0),
            used=took.get((account, currency), Used()).pico,
            **_uncosted(used for name, used in took.items() if name[0] == account),
        )
        for account, currency in sorted(names, key=lambda name: (name[0], name[1] or ""))
    ]


def budgets(read: ReadSession, book: Book) -> list[BudgetLine]:
    """Every budget that is not zero, by month, project and currency, with what was used of it: what
    the bill of that month holds, with the corrections that landed there."""
    there: list[tuple[str, str, str, int]] = []
    for (account, currency), pico in held(book.entries).items():
        named = budget_of(account)
        if named is not None and pico:
            there.append((*named, currency, pico))
    costs: dict[str, Costs] = {}
    for month in {month for month, *_ in there}:
        costs[month] = {}
        _add(costs[month], month_lines(read, book, month, step="span"))
    return [
        BudgetLine(
            project_id=project_id,
            month=month,
            currency=currency,
            budget=pico,
            used=costs[month].get((project_id, currency), Used()).pico,
            open=standing_of(book.periods, month).state == "open",
            **_uncosted(used for name, used in costs[month].items() if name[0] == project_id),
        )
        for month, project_id, currency, pico in sorted(there)
    ]


def _parts(read: ReadSession, book: Book, until_us: int) -> Iterator[Iterable[Rated]]:
    """All usage before `until_us`, month by month, each as its bill has it."""
    first = read.value(select(func.min(tables.usage_hourly.c.hour_us)))
    if first is None:
        return
    month = month_of(first, book.rules.zone)
    while (frame := frame_of(book, month)).first_us < until_us:
        if frame.after_us <= until_us:
            yield month_lines(read, book, month, step="span")
        else:
            yield rated(read, frame.book, frame.first_us, until_us, step="span")
            extra = (one for one in adjustments(read, book, month) if one.start_us < until_us)
            yield (part for one in extra for part in split(one))
        month = next_month(month)


def _add(costs: Costs, lines: Iterable[Rated]) -> None:
    for one in lines:
        cost = cost_of_rated(one)
        tokens = dict(zip(BUCKETS, one.totals.tokens, strict=True))
        used = Used(
            pico=cost.pico or 0,
            unpriced=sum(tokens[bucket] for bucket in cost.unpriced),
            unknown=one.totals.requests if one.basis == "none" else 0,
        )
        name = one.project_id, cost.currency
        costs[name] = costs.get(name, Used()).plus(used)


def _uncosted(parts: Iterable[Used]) -> dict[str, int]:
    total = Used()
    for part in parts:
        total = total.plus(part)
    return {"unpriced": total.unpriced, "unknown": total.unknown}


def _key(book: Book, names: Names, key_id: str) -> KeyNode:
    had, key = book.members.get(key_id, ()), book.keys.get(key_id)
    fallback = SYSTEM_NAME if key_id == SYSTEM_KEY_ID else None
    return KeyNode(
        id=key_id,
        name=names.get("key", {}).get(key_id, fallback),
        tags=had[-1].tags if had else {},
        scope=key.scope if key else None,
        revoked=key is not None and key.revoked_at is not None,
    )
