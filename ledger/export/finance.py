"""Views of what finance asks: charges, rates, accounts, movements of money, months, corrections.

All but the charges are folded from the registry, so they are small. Names stand beside ids here,
and in no exported file.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from typing import Any, Final

import msgspec
import pyarrow as pa

from ledger.amounts import decimal_text
from ledger.clock import from_us
from ledger.events import BUCKETS
from ledger.export.bill import billed_months
from ledger.export.columns import (
    BASIS,
    COUNT,
    CURRENCY,
    EFFECTIVE_FROM,
    FLAG,
    INSTANT,
    KEY_ID,
    KEY_NAME,
    LIST,
    MICROSECONDS,
    MODEL,
    MONEY,
    NUMBER,
    OF_CURRENCY,
    PRICE_ID,
    PRICE_VERSION,
    PROJECT_ID,
    TEXT,
    Column,
    batch_of,
    schema_of,
    with_key,
)
from ledger.export.columns import BILL_COLUMNS as FILED
from ledger.export.sums import BATCH_ROWS
from ledger.folds.book import Book
from ledger.folds.prices import Price
from ledger.sql.charges import Charge, charges
from ledger.sql.names import key_names, names_of
from ledger.sql.replay import load_book
from ledger.sql.session import ReadSession

PROJECT_NAME: Final = Column("project", TEXT, "the project's name; null once it was erased")

TAGS: Final = Column("tags", TEXT, "tags, a JSON object; tags->>'$.NAME' reads one")

UNITS: Final[Mapping[str, str]] = {
    "request": "requests",
    "failed_attempt": "calls",
    "gpu_second": MICROSECONDS,
}
"""What a quantity counts; of every other bucket it is tokens."""

BUCKET: Final = Column("bucket", TEXT, "token bucket, or request, failed_attempt, gpu_second")
REASON: Final = Column("reason", TEXT, "why")
MONTH: Final = Column("month", TEXT, "month of the books whose bill it is on")


def with_project(columns: Sequence[Column]) -> tuple[Column, ...]:
    """`columns` with the project's name after its id."""
    place = next(n for n, column in enumerate(columns) if column.name == "project_id") + 1
    return (*columns[:place], PROJECT_NAME, *columns[place:])


BILL_COLUMNS = (MONTH, *with_project(with_key(FILED)))

CHARGE_COLUMNS = (
    MONTH,
    Column("hour", INSTANT, "start of the UTC hour of acceptance, or of the month in that hour"),
    PROJECT_ID,
    PROJECT_NAME,
    KEY_ID,
    MODEL,
    BUCKET,
    BASIS,
    Column("requests", COUNT, "requests that the quantity is of", unit="requests"),
    Column("quantity", COUNT, "how much, in quantity_unit; below zero: a correction", unit="its"),
    Column("quantity_unit", TEXT, "tokens, requests, calls or microseconds"),
    Column("list_unit_price", MONEY, "of one, before a discount", unit="of the currency for one"),
    Column("unit_price", MONEY, "of one; null: no price", unit="of the currency for one"),
    Column("cost", MONEY, "quantity times unit price, exactly", unit=OF_CURRENCY),
    Column("currency", TEXT, "currency; null: no price"),
    Column("price_id", TEXT, "the price that holds"),
    Column("price_version", COUNT, "its number within its model's prices", unit=NUMBER),
    Column("band", TEXT, "the band of the week in which it holds; null: the usual one"),
    Column("discount_id", TEXT, "the discount taken off; null: none"),
    Column("kind", TEXT, "usage; late or corrected: it corrects what an earlier bill said"),
    Column("corrects", TEXT, "the event whose line it corrects, as source:sequence"),
)

RATE_COLUMNS = (
    PRICE_ID,
    Column("model", TEXT, "model, or a pattern that ends with *"),
    PRICE_VERSION,
    Column("scope", TEXT, "key/ID or project/ID that it is for; null: everybody"),
    EFFECTIVE_FROM,
    Column("band", TEXT, "band of the week; null: whenever no band holds"),
    Column("days", TEXT, "weekdays of the band, 1 is Monday, such as 1,2,3"),
    Column("starts", TEXT, "local time at which the band begins, such as 22:00"),
    Column("ends", TEXT, "local time before which it ends"),
    Column("zone", TEXT, "the time zone of the bands"),
    BUCKET,
    Column(
        "unit_price",
        MONEY,
        "of one token, request or call, or of a microsecond; null: a discount",
        unit="of the currency for one",
    ),
    CURRENCY,
    Column("discount_percent", MONEY, "off the price that would hold without it", unit="percent"),
)

PROJECT_COLUMNS = (
    Column("project_id", TEXT, "project"),
    PROJECT_NAME,
    Column("organization_id", TEXT, "who pays"),
    Column("organization", TEXT, "the organization's name; null once it was erased"),
    Column("closed", FLAG, "whether nothing new may belong to it"),
    TAGS,
)

MEMBERSHIP_COLUMNS = (
    KEY_ID,
    Column("project_id", TEXT, "the project it belongs to; null: to none"),
    PROJECT_NAME,
    Column("since", INSTANT, "from when on"),
    Column("until", INSTANT, "until when; null: still"),
    TAGS,
)

ENTRY_COLUMNS = (
    Column("entry_id", TEXT, "movement of money; its rows of one currency add up to zero"),
    Column("kind", TEXT, "grant, top_up, adjustment, budget"),
    Column("account", TEXT, "account: project/ID, organization/ID, budget/MONTH/ID or a source"),
    Column("amount", MONEY, "what the account gets; below zero: what it gives", unit=OF_CURRENCY),
    CURRENCY,
    Column("effective_from", INSTANT, "when it takes effect"),
    Column("posted_at", INSTANT, "when it was recorded"),
    REASON,
)

PERIOD_COLUMNS = (
    Column("month", TEXT, "the closed month"),
    Column("zone", TEXT, "the time zone it was closed in"),
    Column("starts", INSTANT, "its first instant"),
    Column("ends", INSTANT, "the first instant after it"),
    Column("closed_at", INSTANT, "when it was closed"),
    Column("requests", COUNT, "requests on its bill", unit="requests"),
    Column("open", COUNT, "requests that had no end when it was closed", unit="requests"),
    Column("unpriced", COUNT, "requests that have tokens without a price", unit="requests"),
    Column("prices", COUNT, "prices that the registry had then", unit="prices"),
    Column("totals", TEXT, "exact cost by currency, a JSON object"),
    Column("lines", TEXT, "hash of its lines"),
    Column("root", TEXT, "hash over all sources' chains at the cut"),
    Column("without", LIST, "sources that it was closed without, with the reason"),
)

CORRECTION_COLUMNS = (
    Column("correction_id", TEXT, "correction by a person"),
    Column("request_id", TEXT, "the request"),
    Column("number", COUNT, "which correction of that request", unit=NUMBER),
    Column("original", TEXT, "the event that ended it, as source:sequence"),
    Column("voided", FLAG, "whether it counts as nothing now"),
    *(Column(name, COUNT, f"{name}: tokens that it counts now", unit="tokens") for name in BUCKETS),
    Column("made_at", INSTANT, "when"),
    REASON,
)


def of_month(month: str, batch: pa.RecordBatch) -> pa.RecordBatch:
    """`batch` of lines of a bill, which say the day of acceptance, with the month they are on."""
    months = pa.array([month] * batch.num_rows, MONTH.type)
    schema = schema_of(BILL_COLUMNS)
    return pa.RecordBatch.from_arrays([months, *batch.columns], schema=schema)


def charge_batches(read: ReadSession) -> Iterator[pa.RecordBatch]:
    """The charges of every month, a row for each hour, project, key, model, bucket and price."""
    book, keys, projects = load_book(read), key_names(read), names_of(read, "project")
    for month in billed_months(read):
        found = charges(read, book, month, step="hour")
        while part := list(islice(found, BATCH_ROWS)):
            yield _charges(month, part, keys, projects)


def _charges(
    month: str, part: Sequence[Charge], keys: Mapping[str, str], projects: Mapping[str, str]
) -> pa.RecordBatch:
    same = (
        *("project_id", "key_id", "model", "bucket", "basis", "requests", "quantity", "currency"),
        *("price_id", "price_version", "band", "discount_id", "kind", "corrects"),
    )
    values: dict[str, Sequence[Any]] = {n: [getattr(one, n) for one in part] for n in same}
    values["month"] = [month] * len(part)
    values["hour"] = [from_us(one.start_us) for one in part]
    values["quantity_unit"] = [UNITS.get(one.bucket, "tokens") for one in part]
    values["list_unit_price"] = [_text(one.list_pico) for one in part]
    values["unit_price"] = [_text(one.unit_pico) for one in part]
    values["cost"] = [_text(one.cost_pico) for one in part]
    values[KEY_NAME.name] = [keys.get(one.key_id) for one in part]
    values[PROJECT_NAME.name] = [projects.get(one.project_id or "") for one in part]
    return batch_of(with_key(CHARGE_COLUMNS), values)


def rate_batches(read: ReadSession) -> Iterator[pa.RecordBatch]:
    """Every price ever set, a row for each bucket of each of its bands; a discount has one."""
    rows = [row for price in load_book(read).prices for row in _rates(price)]
    yield _batch(RATE_COLUMNS, rows)


def _rates(price: Price) -> Iterator[dict[str, Any]]:
    plain: dict[str, Any] = {
        "price_id": price.price_id,
        "model": price.model,
        "version": price.version,
        "scope": price.scope,
        "effective_from": price.effective_from,
        "zone": price.zone if price.bands else None,
        "currency": price.currency,
    }
    if price.discount is not None:
        # Hundredths of a percent are whole numbers, so their text is exact.
        whole, part = divmod(price.discount, 100)
        yield plain | {"discount_percent": f"{whole}.{part:02d}"}
        return
    for name, pico in (*price.pico.items(), *price.charges.items()):
        yield plain | {"bucket": name, "unit_price": decimal_text(pico)}
    for band in price.bands:
        when = {
            "band": band.name,
            "days": ",".join(map(str, band.days)),
            "starts": _minute(band.start),
            "ends": _minute(band.end),
        }
        for name, pico in band.pico.items():
            yield plain | when | {"bucket": name, "unit_price": decimal_text(pico)}


def _minute(minute: int) -> str:
    return f"{minute // 60:02d}:{minute % 60:02d}"


def project_batches(read: ReadSession) -> Iterator[pa.RecordBatch]:
    """Every project with its organization."""
    projects, organizations = names_of(read, "project"), names_of(read, "organization")
    found = sorted(load_book(read).projects.values(), key=lambda one: one.project_id)
    yield _batch(
        PROJECT_COLUMNS,
        [
            {
                "project_id": one.project_id,
                "project": projects.get(one.project_id),
                "organization_id": one.organization_id,
                "organization": organizations.get(one.organization_id),
                "closed": one.closed,
                "tags": _json(one.tags),
            }
            for one in found
        ],
    )


def membership_batches(read: ReadSession) -> Iterator[pa.RecordBatch]:
    """Which project a key belonged to, and from when until when."""
    keys, projects = key_names(read), names_of(read, "project")
    rows = [
        {
            "key_id": key_id,
            "key": keys.get(key_id),
            "project_id": one.project_id,
            "project": projects.get(one.project_id or ""),
            "since": one.since,
            "until": None if following is None else following.since,
            "tags": _json(one.tags),
        }
        for key_id, had in sorted(load_book(read).members.items())
        for one, following in pairwise((*had, None))
        if one is not None
    ]
    yield _batch(with_key(MEMBERSHIP_COLUMNS), rows)


def entry_batches(read: ReadSession) -> Iterator[pa.RecordBatch]:
    """Every movement of money, a row for each account that it touches."""
    yield _batch(
        ENTRY_COLUMNS,
        [
            {
                "entry_id": entry.entry_id,
                "kind": entry.kind,
                "account": account,
                "amount": decimal_text(pico),
                "currency": currency,
                "effective_from": entry.effective_from,
                "posted_at": entry.posted_at,
                "reason": entry.reason,
            }
            for entry in load_book(read).entries
            for account, currency, pico in entry.postings
        ],
    )


def period_batches(read: ReadSession) -> Iterator[pa.RecordBatch]:
    """Every closed month as it was frozen."""
    same = ("month", "zone", "closed_at", "requests", "open", "unpriced", "prices", "lines", "root")
    yield _batch(
        PERIOD_COLUMNS,
        [
            {name: getattr(one, name) for name in same}
            | {
                "starts": one.start,
                "ends": one.end,
                "totals": _json(one.totals),
                "without": [f"{source}: {reason}" for source, reason in one.without],
            }
            for one in load_book(read).periods
        ],
    )


def correction_batches(read: ReadSession) -> Iterator[pa.RecordBatch]:
    """Every correction of a request by a person."""
    book: Book = load_book(read)
    same = ("correction_id", "request_id", "number", "original", "made_at", "reason")
    yield _batch(
        CORRECTION_COLUMNS,
        [
            {name: getattr(one, name) for name in same}
            | {"voided": one.usage is None}
            | ({} if one.usage is None else dict(zip(BUCKETS, one.usage.counts(), strict=True)))
            for one in book.corrections
        ],
    )


def _batch(columns: Sequence[Column], rows: Iterable[Mapping[str, Any]]) -> pa.RecordBatch:
    """`rows` in `columns`; what a row does not say is null."""
    held = list(rows)
    return batch_of(columns, {c.name: [row.get(c.name) for row in held] for c in columns})


def _text(pico: int | None) -> str | None:
    return None if pico is None else decimal_text(pico)


def _json(values: Mapping[str, str]) -> str:
    return msgspec.json.encode(values, order="sorted").decode()
