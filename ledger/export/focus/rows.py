"""The rows of FOCUS CostAndUsage: one for each bucket, hour, key, model and price of a month.

The same lines that make the bill, so no number is made twice. What has no price or is not known has
no row: FOCUS has no word for a cost that nobody knows, and zero would be another statement.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, Final

import msgspec
import pyarrow as pa

from ledger.clock import from_us
from ledger.events import BUCKETS
from ledger.export.columns import MONEY, assert_exact, schema_of
from ledger.export.facts import Span
from ledger.export.focus.columns import OURS, file_columns
from ledger.export.sums import BATCH_ROWS
from ledger.folds.book import Book
from ledger.folds.money import Project, project_at
from ledger.sql.charges import Charge

HOUR_US: Final = 3_600_000_000
PICO: Final = 10**12

NOBODY: Final = "unassigned"
"""The billing account of keys that belong to no project: FOCUS lets it not be null."""

ISSUER: Final = "Tollbook"
"""Who issues and provides, until `tollbook books set --issuer` says so."""

METERS: Final = {
    "uncached_in": "Input Tokens",
    "cached_in": "Cached Input Tokens",
    "cache_write_in": "Cache Write Input Tokens",
    "reasoning_out": "Reasoning Output Tokens",
    "other_out": "Output Tokens",
    "request": "Requests",
    "gpu_second": "GPU Seconds",
    "failed_attempt": "Failed Attempts",
}

_MICROSECONDS: Final = 1_000_000
"""In a second: that charge is counted and priced by the microsecond."""


class Setting(msgspec.Struct, frozen=True):
    """What all rows of a file share: the billing period, who the accounts are, and the root."""

    span: Span
    book: Book
    root: str | None


def focus_batches(
    charges: Iterable[Charge], setting: Setting, version: str
) -> Iterator[pa.RecordBatch]:
    """`charges`, all of them priced, in the columns of FOCUS `version` and in their order."""
    columns = file_columns(version)
    schema = schema_of(columns)
    assert_exact(schema)
    makers = _makers(setting)
    there = iter(charges)
    while part := list(islice(there, BATCH_ROWS)):
        arrays = []
        for column in columns:
            maker = makers.get(column.name)
            if maker is None:
                arrays.append(pa.nulls(len(part), column.type))
            elif column.type == MONEY:
                arrays.append(money_array([maker(charge) for charge in part]))
            else:
                arrays.append(pa.array([maker(charge) for charge in part], column.type))
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def money_array(pico: Sequence[int | None]) -> pa.Array:
    """Amounts in 10^-12 as exact decimals: their digits, without a way through text."""
    cells = b"".join((value or 0).to_bytes(16, "little", signed=True) for value in pico)
    known = pa.array([value is not None for value in pico], pa.bool_())
    validity = None if None not in pico else known.buffers()[1]
    return pa.Array.from_buffers(MONEY, len(pico), [validity, pa.py_buffer(cells)])


def _makers(setting: Setting) -> Mapping[str, Callable[[Charge], Any]]:
    """Column name to what a charge says there. A column that is not here is null in every row."""
    issuer = setting.book.rules.issuer or ISSUER
    start, end = (from_us(edge) for edge in setting.span)
    accounts = _Accounts(setting.book)

    def always(value: Any) -> Callable[[Charge], Any]:
        return lambda charge: value

    def project(charge: Charge) -> str | None:
        return charge.project_id

    def currency(charge: Charge) -> str | None:
        return charge.currency

    def cost(charge: Charge) -> int | None:
        return charge.cost_pico

    return {
        "BilledCost": cost,
        "BillingAccountId": accounts.payer,
        "BillingAccountName": accounts.payer,
        "BillingAccountType": always("Organization"),
        "BillingCurrency": currency,
        "BillingPeriodEnd": always(end),
        "BillingPeriodStart": always(start),
        "ChargeCategory": always("Usage"),
        "ChargeClass": lambda charge: "Correction" if _earlier(charge, setting.span) else None,
        "ChargeDescription": _description,
        "ChargeFrequency": always("Usage-Based"),
        "ChargePeriodEnd": lambda charge: _hour(charge, setting.span)[1],
        "ChargePeriodStart": lambda charge: _hour(charge, setting.span)[0],
        "ConsumedQuantity": _consumed,
        "ConsumedUnit": _unit,
        "ContractedCost": cost,
        "ContractedUnitPrice": lambda charge: _priced_unit(charge, charge.unit_pico),
        "EffectiveCost": cost,
        "HostProviderName": always(issuer),
        "InvoiceIssuerName": always(issuer),
        "ListCost": _list_cost,
        "ListUnitPrice": lambda charge: _priced_unit(charge, charge.list_pico),
        "PricingCategory": always("Standard"),
        "PricingCurrency": currency,
        "PricingCurrencyContractedUnitPrice": lambda charge: _priced_unit(charge, charge.unit_pico),
        "PricingCurrencyEffectiveCost": cost,
        "PricingCurrencyListUnitPrice": lambda charge: _priced_unit(charge, charge.list_pico),
        "PricingQuantity": lambda charge: charge.quantity * PICO // _per(charge),
        "PricingUnit": _pricing_unit,
        "ProviderName": always(issuer),
        "PublisherName": always(issuer),
        "ResourceId": lambda charge: charge.key_id,
        "ResourceType": always("API Key"),
        "ServiceCategory": always("AI and Machine Learning"),
        "ServiceName": always("Tollbook"),
        "ServiceProviderName": always(issuer),
        "ServiceSubcategory": always("Generative AI"),
        "SkuId": _sku,
        "SkuMeter": lambda charge: METERS[charge.bucket],
        "SkuPriceDetails": _details,
        "SkuPriceId": lambda charge: _sku(charge) + (f"/{charge.band}" if charge.band else ""),
        "SubAccountId": project,
        "SubAccountName": project,
        "SubAccountType": lambda charge: None if charge.project_id is None else "Project",
        "Tags": accounts.tags,
        **dict(zip((column.name for column in OURS), _ours(setting), strict=True)),
    }


def _ours(setting: Setting) -> Sequence[Callable[[Charge], Any]]:
    return (
        lambda charge: charge.key_id,
        lambda charge: charge.model,
        lambda charge: charge.bucket,
        lambda charge: charge.basis,
        lambda charge: charge.requests,
        lambda charge: charge.price_id,
        lambda charge: charge.price_version,
        lambda charge: charge.band,
        lambda charge: charge.discount_id,
        lambda charge: charge.corrects,
        lambda charge: setting.root,
    )


class _Accounts:
    """Who pays for a charge, and with which tags: ids and tags only, so that erasing a name leaves
    every file as it is."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._tags: dict[tuple[str, str | None, int], str | None] = {}

    def payer(self, charge: Charge) -> str:
        project = self._project(charge.project_id)
        return NOBODY if project is None else project.organization_id

    def tags(self, charge: Charge) -> str | None:
        """The project's tags and, before them, those of the key at that hour, as JSON."""
        asked = (charge.key_id, charge.project_id, charge.start_us)
        if asked not in self._tags:
            if len(self._tags) > BATCH_ROWS:
                self._tags.clear()
            self._tags[asked] = self._tags_of(charge)
        return self._tags[asked]

    def _tags_of(self, charge: Charge) -> str | None:
        project = self._project(charge.project_id)
        tags = dict(project.tags) if project is not None else {}
        moment = from_us(charge.start_us)
        members = [m for m in self._book.members.get(charge.key_id, ()) if m.since <= moment]
        if members and project_at(members, moment) == charge.project_id:
            tags.update(members[-1].tags)
        return _json(tags) if tags else None

    def _project(self, project_id: str | None) -> Project | None:
        return None if project_id is None else self._book.projects.get(project_id)


def _earlier(charge: Charge, span: Span) -> bool:
    """True of a correction to a month before. Within one month FOCUS has no class for it."""
    return charge.start_us < span[0]


def _hour(charge: Charge, span: Span) -> tuple[datetime, datetime]:
    """The UTC hour of the charge; where a month begins within one, the part inside the month."""
    start = charge.start_us - charge.start_us % HOUR_US
    end = start + HOUR_US
    if not _earlier(charge, span):
        start, end = max(start, span[0]), min(end, span[1])
    return from_us(start), from_us(end)


def _per(charge: Charge) -> int:
    """How many of what is counted make one of what is priced."""
    if charge.bucket in BUCKETS:
        return charge.unit
    return _MICROSECONDS if charge.bucket == "gpu_second" else 1


def _priced_unit(charge: Charge, pico: int | None) -> int | None:
    return None if pico is None else pico * _per(charge)


def _list_cost(charge: Charge) -> int | None:
    return None if charge.list_pico is None else charge.quantity * charge.list_pico


def _consumed(charge: Charge) -> int:
    counted = _MICROSECONDS if charge.bucket == "gpu_second" else 1
    return charge.quantity * PICO // counted


def _unit(charge: Charge) -> str:
    if charge.bucket in BUCKETS:
        return "Tokens"
    return {"request": "Requests", "gpu_second": "Seconds"}.get(charge.bucket, "Attempts")


def _pricing_unit(charge: Charge) -> str:
    tokens = charge.bucket in BUCKETS and charge.unit > 1
    return f"{charge.unit} {_unit(charge)}" if tokens else _unit(charge)


def _sku(charge: Charge) -> str:
    return f"{charge.model}/{charge.bucket}"


def _description(charge: Charge) -> str:
    what = f"{METERS[charge.bucket]} of {charge.model}"
    if charge.kind == "usage":
        return what
    told = "that came after its month was closed" if charge.kind == "late" else "as corrected"
    return f"{what}, {told}"


def _details(charge: Charge) -> str:
    details: dict[str, str] = {"x_TokenType": charge.bucket}
    if charge.band is not None:
        details["x_PriceBand"] = charge.band
    return _json(details)


def _json(pairs: Mapping[str, str]) -> str:
    return msgspec.json.encode(pairs, order="sorted").decode()
