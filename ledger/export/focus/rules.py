"""Our own check of a FOCUS file: columns, types, nulls and the specification's rules, exactly.

Written from the specification's texts of 1.2, 1.3 and 1.4, each rule with its name there. Products
are compared as decimals, digit by digit, which the public validator does in floats. The rules are
SQL, and the file is read as it stands on the disk by another library than the one that wrote it.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import duckdb
import msgspec
import pyarrow as pa

from ledger.export.duck import in_thread
from ledger.export.focus.columns import VERSIONS, FocusColumn, Version, file_columns, profile
from ledger.export.focus.currencies import CURRENCIES
from ledger.export.opened import Opened, types_in

_LATER: Final[tuple[Version, ...]] = ("1.3", "1.4")


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as it stands in the text, a key twice included; other than a list."""


class Rule(msgspec.Struct, frozen=True):
    """A rule of the specification. `broken` is SQL that is true of a row which breaks it."""

    name: str
    text: str
    broken: str
    versions: tuple[Version, ...] = VERSIONS


_CHARGED: Final = "ChargeCategory IN ('Usage', 'Purchase')"
_CORRECTION: Final = "coalesce(ChargeClass = 'Correction', false)"

_SERVICES: Final = (
    "AI and Machine Learning",
    "Analytics",
    "Business Applications",
    "Compute",
    "Databases",
    "Developer Tools",
    "Identity",
    "Integration",
    "Internet of Things",
    "Management and Governance",
    "Media",
    "Migration",
    "Mobile",
    "Multicloud",
    "Networking",
    "Security",
    "Storage",
    "Web",
    "Other",
)
_OF_AI: Final = (
    "AI Platforms",
    "Bots",
    "Generative AI",
    "Machine Learning",
    "Natural Language Processing",
    "Other (AI and Machine Learning)",
)


def _among(name: str, column: str, allowed: Sequence[str]) -> Rule:
    there = ", ".join(f"'{one}'" for one in allowed)
    return Rule(name, f"{column} is one of the allowed values", f"{column} NOT IN ({there})")


def _together(name: str, column: str, other: str) -> Rule:
    return Rule(
        name,
        f"{column} is null exactly when {other} is",
        f"({column} IS NULL) <> ({other} IS NULL)",
    )


def _null_without(
    name: str, column: str, other: str, versions: tuple[Version, ...] = VERSIONS
) -> Rule:
    return Rule(
        name,
        f"{column} is null when {other} is",
        f"{column} IS NOT NULL AND {other} IS NULL",
        versions,
    )


def _no_tax(name: str, column: str) -> Rule:
    return Rule(
        name,
        f"{column} is null when ChargeCategory is Tax",
        f"{column} IS NOT NULL AND ChargeCategory = 'Tax'",
    )


def _always_charged(name: str, column: str) -> Rule:
    return Rule(
        name,
        f"{column} is not null when ChargeCategory is Usage or Purchase and no Correction",
        f"{column} IS NULL AND {_CHARGED} AND NOT {_CORRECTION}",
    )


def _price(column: str, cost: str) -> tuple[Rule, ...]:
    return (
        _no_tax(f"{column}: Tax", column),
        _always_charged(f"{column}: Usage", column),
        Rule(f"{column}: sign", f"{column} is not below zero", f"{column} < 0"),
        Rule(
            f"{column}: product",
            f"{column} times PricingQuantity is {cost}, to the last digit",
            f"{column} * PricingQuantity <> {cost}",
        ),
    )


RULES: Final = (
    _among(
        "ChargeCategory-C-003",
        "ChargeCategory",
        ("Usage", "Purchase", "Tax", "Credit", "Adjustment"),
    ),
    _among("ChargeClass-C-005", "ChargeClass", ("Correction",)),
    _among("ChargeFrequency-C-003", "ChargeFrequency", ("One-Time", "Recurring", "Usage-Based")),
    Rule(
        "ChargeFrequency-C-004",
        "ChargeFrequency is not Usage-Based when ChargeCategory is Purchase",
        "ChargeFrequency = 'Usage-Based' AND ChargeCategory = 'Purchase'",
    ),
    _among(
        "PricingCategory-C-007",
        "PricingCategory",
        ("Standard", "Committed", "Dynamic", "Other"),
    ),
    _no_tax("PricingCategory-C-003", "PricingCategory"),
    _always_charged("PricingCategory-C-004", "PricingCategory"),
    _among("ServiceCategory-C-003", "ServiceCategory", _SERVICES),
    Rule(
        "ServiceSubcategory-C-004",
        "ServiceSubcategory has the one parent ServiceCategory of the specification",
        "(ServiceCategory = 'AI and Machine Learning') <> (ServiceSubcategory IN ("
        + ", ".join(f"'{one}'" for one in _OF_AI)
        + "))",
    ),
    _among("CurrencyFormat-A-001: BillingCurrency", "BillingCurrency", CURRENCIES),
    _among("CurrencyFormat-A-001: PricingCurrency", "PricingCurrency", CURRENCIES),
    Rule(
        "BillingPeriodEnd-C-004",
        "BillingPeriodEnd is behind BillingPeriodStart",
        "BillingPeriodEnd <= BillingPeriodStart",
    ),
    Rule(
        "ChargePeriodEnd-C-004",
        "ChargePeriodEnd is behind ChargePeriodStart",
        "ChargePeriodEnd <= ChargePeriodStart",
    ),
    Rule(
        "ChargePeriodStart: within",
        "the charge period is within the billing period unless the row is a Correction",
        f"NOT {_CORRECTION} AND (ChargePeriodStart < BillingPeriodStart "
        "OR ChargePeriodEnd > BillingPeriodEnd)",
    ),
    Rule(
        "ConsumedQuantity-C-004",
        "ConsumedQuantity is null when ChargeCategory is not Usage",
        "ConsumedQuantity IS NOT NULL AND ChargeCategory <> 'Usage'",
    ),
    Rule(
        "ConsumedQuantity-C-006",
        "ConsumedQuantity is not null when ChargeCategory is Usage and no Correction",
        f"ConsumedQuantity IS NULL AND ChargeCategory = 'Usage' AND NOT {_CORRECTION}",
    ),
    _together("ConsumedUnit-C-005, -C-006", "ConsumedUnit", "ConsumedQuantity"),
    _no_tax("PricingQuantity-C-004", "PricingQuantity"),
    _always_charged("PricingQuantity-C-005", "PricingQuantity"),
    _together("PricingUnit-C-005, -C-006", "PricingUnit", "PricingQuantity"),
    *_price("ListUnitPrice", "ListCost"),
    *_price("ContractedUnitPrice", "ContractedCost"),
    *_price("PricingCurrencyListUnitPrice", "ListCost")[:3],
    *_price("PricingCurrencyContractedUnitPrice", "ContractedCost")[:3],
    Rule(
        "PricingCurrency: same",
        "where both currencies are one, so are prices and costs in them",
        "PricingCurrency = BillingCurrency AND (PricingCurrencyEffectiveCost <> EffectiveCost "
        "OR PricingCurrencyListUnitPrice IS DISTINCT FROM ListUnitPrice "
        "OR PricingCurrencyContractedUnitPrice IS DISTINCT FROM ContractedUnitPrice)",
    ),
    Rule(
        "ListCost-C-008",
        "ListCost without a ListUnitPrice is BilledCost, but of Tax",
        "ListUnitPrice IS NULL AND ChargeCategory <> 'Tax' AND ListCost <> BilledCost",
    ),
    Rule(
        "ContractedCost-C-008",
        "ContractedCost without a ContractedUnitPrice is BilledCost, but of Tax",
        "ContractedUnitPrice IS NULL AND ChargeCategory <> 'Tax' AND ContractedCost <> BilledCost",
    ),
    Rule(
        "EffectiveCost-C-010",
        "EffectiveCost of a Credit is BilledCost",
        "ChargeCategory = 'Credit' AND EffectiveCost <> BilledCost",
    ),
    Rule(
        "CAU-EffectiveCost-C-017",
        "EffectiveCost of a Tax is BilledCost",
        "ChargeCategory = 'Tax' AND EffectiveCost <> BilledCost",
        ("1.4",),
    ),
    _no_tax("SkuId-C-004", "SkuId"),
    _always_charged("SkuId-C-005", "SkuId"),
    _null_without("SkuMeter-C-004", "SkuMeter", "SkuId"),
    _no_tax("SkuPriceId-C-004", "SkuPriceId"),
    _always_charged("SkuPriceId-C-005", "SkuPriceId"),
    _null_without("SkuPriceDetails-C-004", "SkuPriceDetails", "SkuPriceId"),
    *(
        _null_without(f"CAU-{column}: without a SKU price", column, "SkuPriceId", _LATER)
        for column in (
            "ListUnitPrice",
            "ContractedUnitPrice",
            "PricingCurrencyListUnitPrice",
            "PricingCurrencyContractedUnitPrice",
            "PricingCategory",
            "PricingQuantity",
            "ConsumedQuantity",
            "CommitmentDiscountQuantity",
        )
    ),
    *(
        Rule(
            f"CAU-{column}: with a SKU price",
            f"{column} is not null when SkuPriceId is not",
            f"{column} IS NULL AND SkuPriceId IS NOT NULL",
            _LATER,
        )
        for column in ("ListUnitPrice", "ContractedUnitPrice")
    ),
    _together("BillingAccountType-C-004, -C-005", "BillingAccountType", "BillingAccountId"),
    _together("SubAccountName-C-004, -C-005", "SubAccountName", "SubAccountId"),
    _together("SubAccountType-C-004, -C-005", "SubAccountType", "SubAccountId"),
    _together("RegionName-C-004, -C-005", "RegionName", "RegionId"),
    _null_without("ResourceName-C-004", "ResourceName", "ResourceId"),
    _together("ResourceType-C-004, -C-005", "ResourceType", "ResourceId"),
    _together(
        "CommitmentDiscountCategory-C-003, -C-004",
        "CommitmentDiscountCategory",
        "CommitmentDiscountId",
    ),
    _null_without("CommitmentDiscountName-C-004", "CommitmentDiscountName", "CommitmentDiscountId"),
    _null_without(
        "CommitmentDiscountStatus-C-003", "CommitmentDiscountStatus", "CommitmentDiscountId"
    ),
    _together(
        "CommitmentDiscountType-C-004, -C-005", "CommitmentDiscountType", "CommitmentDiscountId"
    ),
    _together(
        "CommitmentDiscountUnit-C-005, -C-006",
        "CommitmentDiscountUnit",
        "CommitmentDiscountQuantity",
    ),
    _null_without(
        "CommitmentDiscountQuantity-C-007", "CommitmentDiscountQuantity", "CommitmentDiscountId"
    ),
    _null_without(
        "CapacityReservationStatus-C-003", "CapacityReservationStatus", "CapacityReservationId"
    ),
    _null_without(
        "AllocatedMethodDetails: method", "AllocatedMethodDetails", "AllocatedMethodId", _LATER
    ),
    _null_without(
        "AllocatedResourceName: resource", "AllocatedResourceName", "AllocatedResourceId", _LATER
    ),
    _null_without("AllocatedTags: resource", "AllocatedTags", "AllocatedResourceId", _LATER),
    Rule(
        "InvoiceDetailId: invoice",
        "InvoiceDetailId is null exactly when InvoiceId is",
        "(InvoiceDetailId IS NULL) <> (InvoiceId IS NULL)",
        ("1.4",),
    ),
)

_ONE_EACH: Final = (
    ("SkuPriceId-C-008", "SkuPriceId", "SkuId"),
    ("ServiceName-C-005", "ServiceName", "ServiceCategory"),
    ("ServiceName-C-008", "ServiceName", "ServiceSubcategory"),
)
"""Rules by which the first column has one and only one of the second."""


def rules_of(version: str) -> tuple[Rule, ...]:
    """Every rule by which single rows of a file of `version` are held, those on nulls included."""
    found = [rule for rule in RULES if version in rule.versions]
    for column in profile(version):
        found += _of_column(column)
    return tuple(found)


def _of_column(column: FocusColumn) -> Iterator[Rule]:
    name = column.name
    if not column.nullable:
        yield Rule(f"{name}: null", f"{name} is not null", f"{name} IS NULL")
    if column.kind == "string":
        yield Rule(
            f"StringHandling-A-007: {name}",
            f"{name} is not empty and not of spaces alone",
            f"trim({name}) = ''",
        )
    if column.kind == "instant":
        yield Rule(
            f"DateTimeFormat-A-003: {name}",
            f"{name} is a whole second",
            f"date_trunc('second', {name}) <> {name}",
        )


def check_focus(
    path: Path, version: str, watch: Callable[[pa.RecordBatch], None] | None = None
) -> list[str]:
    """What the file at `path`, Parquet or CSV, breaks of FOCUS `version`, in words; empty: nothing.
    `watch` sees all rows once, unless the columns are others.

    Raises `BadQuery` for no version of ours, `OSError` if there is no such file.
    """
    path.stat()
    wanted = types_in(path, file_columns(version))
    try:
        file = Opened(path, wanted)
    except pa.ArrowException as wrong:
        return [f"{path.name} cannot be read as FOCUS {version}: {str(wrong).splitlines()[0]}"]
    if list(file.types.items()) != list(wanted.items()):
        return list(_strange(file.types, wanted))
    with duckdb.connect(":memory:") as connection:
        connection.execute("SET TimeZone = 'UTC'")
        try:
            return [
                *_broken(connection, file.reader(watch=watch), rules_of(version)),
                *_manifold(connection, file),
                *_ill_formed(connection, file, version),
            ]
        except (duckdb.Error, pa.ArrowException) as wrong:
            return [f"{path.name} cannot be computed exactly: {str(wrong).splitlines()[0]}"]


def _ask(
    connection: duckdb.DuckDBPyConnection, sql: str, rows: pa.RecordBatchReader | None = None
) -> list[tuple[Any, ...]]:
    """What `sql` says of `rows`, which are `f` in it, or of tables that were made of them before.
    A reader goes by once, so each question gets one of its own."""
    if rows is not None:
        connection.register("f", rows)

    def answer() -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = connection.execute(sql).fetchall()
        return found

    return in_thread(connection, answer)


def _strange(found: dict[str, Any], wanted: dict[str, Any]) -> Iterator[str]:
    """In what way the columns that were found are not those wanted, or not in their order."""
    for name, kind in wanted.items():
        if found.get(name) != kind:
            yield f"column {name} is {found.get(name, 'missing')}, and has to be {kind}"
    for name in found:
        if name not in wanted:
            yield f"column {name} does not belong here"
    if set(found) == set(wanted) and list(found) != list(wanted):
        yield "the columns stand in another order"


def _broken(
    connection: duckdb.DuckDBPyConnection, rows: pa.RecordBatchReader, rules: Sequence[Rule]
) -> Iterator[str]:
    """The rules that rows break, all counted in one pass."""
    counts = ", ".join(f"count(*) FILTER (WHERE {rule.broken})" for rule in rules)
    (found,) = _ask(connection, f"SELECT {counts} FROM f", rows)
    for rule, count in zip(rules, found, strict=True):
        if count:
            yield f"{rule.name}: {rule.text}; {count} rows break it"


def _manifold(connection: duckdb.DuckDBPyConnection, file: Opened) -> Iterator[str]:
    names = sorted({name for _, *both in _ONE_EACH for name in both})
    _ask(
        connection,
        f"CREATE TABLE pairs AS SELECT DISTINCT {', '.join(names)} FROM f",
        file.reader(names),
    )
    for name, one, other in _ONE_EACH:
        for (broken,) in _ask(
            connection,
            f"SELECT {one} FROM pairs WHERE {one} IS NOT NULL GROUP BY {one} "
            f"HAVING count(DISTINCT {other}) <> 1 ORDER BY {one} LIMIT 1",
        ):
            yield f"{name}: {one} has one and only one {other}; {broken!r} has not"


def _ill_formed(connection: duckdb.DuckDBPyConnection, file: Opened, version: str) -> Iterator[str]:
    """JSON columns that hold something else than one flat object."""
    names = [column.name for column in profile(version) if column.kind == "json"]
    texts = ", ".join(f"list(DISTINCT {name}) FILTER ({name} IS NOT NULL)" for name in names)
    (found,) = _ask(connection, f"SELECT {texts} FROM f", file.reader(names))
    for name, different in zip(names, found, strict=True):
        for text in sorted(different or ()):
            if (wrong := _not_flat(text, own=name == "SkuPriceDetails")) is not None:
                yield f"KeyValueFormat: {name} {wrong}: {text}"
                break


def _not_flat(text: str, *, own: bool) -> str | None:
    """Why `text` is no flat JSON object; with `own`, keys have to be ours by their prefix."""
    try:
        pairs = json.loads(text, object_pairs_hook=_Pairs)
    except ValueError:
        return "is no JSON"
    if not isinstance(pairs, _Pairs):
        return "is no JSON object"
    keys = [key for key, _ in pairs]
    if len(set(keys)) < len(keys):
        return "names a key twice"
    if any(isinstance(value, list) for _, value in pairs):
        return "holds more than single values"
    if own and any(not key.startswith("x_") for key in keys):
        return "has a key without x_ that FOCUS does not define"
    return None
