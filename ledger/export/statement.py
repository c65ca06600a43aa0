"""What a project owes for a month, as values: lines, their exact sum, and one rounding of it.

It adds up what `ledger.sql.charges` tells and changes nothing of it; drawing it is another's part.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

import msgspec

from ledger.amounts import decimal_text, money_text, rounded
from ledger.clock import from_us
from ledger.events import BUCKETS
from ledger.folds.book import Book
from ledger.folds.months import State, standing_of
from ledger.sql.charges import Charge, charges
from ledger.sql.rated import frame_of
from ledger.sql.session import ReadSession
from ledger.zones import local_day


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One line. `quantity` counts tokens, requests, attempts, or microseconds of `gpu_second`;
    `unit_price` is the exact decimal for `unit` of them (of a second: for one second). `cost` is
    an exact decimal, null if there is no price. `corrects` names the event that it corrects."""

    model: str
    bucket: str
    basis: str
    quantity: int
    unit: int
    unit_price: str | None
    list_price: str | None
    price_id: str | None
    price_version: int | None
    band: str | None
    cost: str | None
    kind: str
    corrects: str | None


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """The month of one project in one currency (null: of what has no price).

    `exact` is the sum of all lines, `total` what is to be paid after the one rounding, `remainder`
    is total - exact. `days` maps each local day of the month that has any to its exact cost.
    `tokens_unpriced` have no price and are in no sum. `period` says whether the month is open;
    `root` is of a closed one, `settled_with` names the closed month that this one was settled with.
    Instants are UTC, `days` and `month` are of `zone`.
    """

    month: str
    zone: str
    start: str
    end: str
    period: State
    root: str | None
    settled_with: str | None
    issuer: str | None
    project_id: str | None
    project: str | None
    organization_id: str | None
    organization: str | None
    currency: str | None
    lines: list[Line]
    exact: str
    total: str | None
    remainder: str | None
    rounding: str
    days: dict[str, str]
    tokens_unpriced: int

    @property
    def is_open(self) -> bool:
        """True if the month may still change."""
        return self.period == "open"


def statements(
    read: ReadSession,
    book: Book,
    month: str,
    named: Mapping[str, Mapping[str, str]],
    project_ids: frozenset[str | None] | None = None,
) -> Iterator[Statement]:
    """The statements of `month`, by project and currency; those of `project_ids`, or all (null).

    `named` gives names by kind (`project`, `organization`) and id. Raises `BadQuery` for a month
    that is none.
    """
    by: dict[tuple[str | None, str | None], list[Charge]] = {}
    for one in charges(read, book, month, step="day"):
        if project_ids is None or one.project_id in project_ids:
            by.setdefault((one.project_id, one.currency), []).append(one)
    for (project_id, currency), found in sorted(by.items(), key=lambda item: _text(item[0])):
        yield _statement(book, month, project_id, currency, found, named)


def _statement(
    book: Book,
    month: str,
    project_id: str | None,
    currency: str | None,
    found: list[Charge],
    named: Mapping[str, Mapping[str, str]],
) -> Statement:
    standing = standing_of(book.periods, month)
    frame = frame_of(book, month)
    zone, rules = frame.zone, frame.book.rules
    project = None if project_id is None else book.projects.get(project_id)
    organization_id = None if project is None else project.organization_id
    exact = sum(one.cost_pico or 0 for one in found)
    days: dict[str, int] = {}
    for one in found:
        day = local_day(one.start_us, zone)
        days[day] = days.get(day, 0) + (one.cost_pico or 0)
    paid = None if currency is None else rounded(exact, currency, rules.rounding)
    return Statement(
        month=month,
        zone=zone,
        start=from_us(frame.first_us).isoformat().replace("+00:00", "Z"),
        end=from_us(frame.after_us).isoformat().replace("+00:00", "Z"),
        period=standing.state,
        root=None if standing.own is None else standing.own.root,
        settled_with=standing.settled_with,
        issuer=rules.issuer,
        project_id=project_id,
        project=named.get("project", {}).get(project_id or ""),
        organization_id=organization_id,
        organization=named.get("organization", {}).get(organization_id or ""),
        currency=currency,
        lines=list(_lines(found)),
        exact=decimal_text(exact),
        total=None if paid is None or currency is None else money_text(paid, currency),
        remainder=None if paid is None else decimal_text(paid - exact),
        rounding=rules.rounding,
        days={day: decimal_text(pico) for day, pico in sorted(days.items())},
        tokens_unpriced=sum(one.quantity for one in found if one.cost_pico is None),
    )


_Same = tuple[str | None, ...]


def _lines(found: Iterable[Charge]) -> Iterator[Line]:
    """Charges of different days and keys at one price are one line."""
    for _same, group in groupby(sorted(found, key=_same_line), key=_same_line):
        many = list(group)
        first = many[0]
        known = [one.cost_pico for one in many if one.cost_pico is not None]
        yield Line(
            model=first.model,
            bucket=first.bucket,
            basis=first.basis,
            quantity=sum(one.quantity for one in many),
            unit=first.unit,
            unit_price=_per_unit(first.unit_pico, first),
            list_price=_per_unit(first.list_pico, first),
            price_id=first.price_id,
            price_version=first.price_version,
            band=first.band,
            cost=decimal_text(sum(known)) if len(known) == len(many) else None,
            kind=first.kind,
            corrects=first.corrects,
        )


def _same_line(one: Charge) -> _Same:
    order = BUCKETS.index(one.bucket) if one.bucket in BUCKETS else len(BUCKETS)
    price = (one.price_id, one.band, one.discount_id)
    parts = (one.kind, one.model, str(order), one.bucket, *price, one.basis, one.corrects)
    return tuple(part or "" for part in (*parts, str(one.cost_pico is None)))


def _per_unit(pico: int | None, one: Charge) -> str | None:
    if pico is None:
        return None
    return decimal_text(pico * (1_000_000 if one.bucket == "gpu_second" else one.unit))


def _text(key: tuple[str | None, str | None]) -> tuple[str, str]:
    return key[0] or "", key[1] or ""
