"""The columns of FOCUS CostAndUsage in versions 1.2, 1.3 and 1.4, and ours behind them.

Names, types, levels and nullability are the specification's: of 1.2 its requirements model, of 1.3
and 1.4 its dataset tables. Every column stands in every file, null where there is nothing to say:
a reader that was written for the specification finds what it asks for.
"""

from typing import Final, Literal, get_args

import msgspec

from ledger.errors import BadQuery
from ledger.export.columns import COUNT, INSTANT, MONEY, TEXT, Column

Version = Literal["1.2", "1.3", "1.4"]
VERSIONS: Final[tuple[Version, ...]] = get_args(Version)

Kind = Literal["string", "decimal", "instant", "json"]
Level = Literal["mandatory", "recommended", "conditional"]

TYPES: Final = {"string": TEXT, "decimal": MONEY, "instant": INSTANT, "json": TEXT}
"""How a kind of FOCUS is written in Arrow. A decimal never goes through a float."""


class FocusColumn(msgspec.Struct, frozen=True):
    """One column: in which `versions` it stands, and whether the specification lets it be null."""

    name: str
    kind: Kind
    level: Level
    nullable: bool
    versions: tuple[Version, ...] = VERSIONS
    deprecated: tuple[Version, ...] = ()

    @property
    def column(self) -> Column:
        return Column(self.name, TYPES[self.kind], f"FOCUS {self.name}")


def _columns(kind: Kind, level: Level, nullable: bool, names: str) -> list[FocusColumn]:
    return [FocusColumn(name, kind, level, nullable) for name in names.split()]


_EVERYWHERE: Final = (
    *_columns(
        "string",
        "mandatory",
        False,
        "BillingAccountId BillingCurrency ChargeCategory InvoiceIssuerName ServiceCategory "
        "ServiceName",
    ),
    *_columns(
        "string",
        "mandatory",
        True,
        "BillingAccountName ChargeClass ChargeDescription PricingUnit",
    ),
    *_columns("string", "recommended", False, "ChargeFrequency ServiceSubcategory"),
    *_columns("string", "recommended", True, "AvailabilityZone"),
    *_columns("string", "conditional", False, "BillingAccountType PricingCurrency"),
    *_columns(
        "string",
        "conditional",
        True,
        "CapacityReservationId CapacityReservationStatus CommitmentDiscountCategory "
        "CommitmentDiscountId CommitmentDiscountName CommitmentDiscountStatus "
        "CommitmentDiscountType CommitmentDiscountUnit ConsumedUnit PricingCategory RegionId "
        "RegionName ResourceId ResourceName ResourceType SkuId SkuMeter SkuPriceId SubAccountId "
        "SubAccountName SubAccountType",
    ),
    *_columns("decimal", "mandatory", False, "BilledCost ContractedCost EffectiveCost ListCost"),
    *_columns("decimal", "mandatory", True, "PricingQuantity"),
    *_columns("decimal", "conditional", False, "PricingCurrencyEffectiveCost"),
    *_columns(
        "decimal",
        "conditional",
        True,
        "CommitmentDiscountQuantity ConsumedQuantity ContractedUnitPrice ListUnitPrice "
        "PricingCurrencyContractedUnitPrice PricingCurrencyListUnitPrice",
    ),
    *_columns(
        "instant",
        "mandatory",
        False,
        "BillingPeriodEnd BillingPeriodStart ChargePeriodEnd ChargePeriodStart",
    ),
    *_columns("json", "conditional", True, "SkuPriceDetails Tags"),
)

_OF_SOME: Final = (
    FocusColumn("InvoiceId", "string", "recommended", True, ("1.2", "1.3")),
    FocusColumn("InvoiceId", "string", "conditional", True, ("1.4",)),
    FocusColumn("InvoiceDetailId", "string", "conditional", True, ("1.4",)),
    FocusColumn("ProviderName", "string", "mandatory", False, ("1.2", "1.3"), ("1.3",)),
    FocusColumn("PublisherName", "string", "mandatory", False, ("1.2", "1.3"), ("1.3",)),
    FocusColumn("ServiceProviderName", "string", "mandatory", False, ("1.3", "1.4")),
    FocusColumn("HostProviderName", "string", "mandatory", True, ("1.3", "1.4")),
    FocusColumn("AllocatedMethodId", "string", "conditional", True, ("1.3", "1.4")),
    FocusColumn("AllocatedMethodDetails", "json", "recommended", True, ("1.3", "1.4")),
    FocusColumn("AllocatedResourceId", "string", "conditional", True, ("1.3", "1.4")),
    FocusColumn("AllocatedResourceName", "string", "conditional", True, ("1.3", "1.4")),
    FocusColumn("AllocatedTags", "json", "conditional", True, ("1.3", "1.4")),
    FocusColumn("ContractApplied", "json", "conditional", True, ("1.3", "1.4")),
    FocusColumn("CommitmentProgramEligibilityDetails", "json", "conditional", True, ("1.4",)),
)

OURS: Final = (
    Column("x_KeyId", TEXT, "the API key it was used with"),
    Column("x_Model", TEXT, "the model that is billed"),
    Column("x_TokenBucket", TEXT, "token bucket, or the charge beside tokens"),
    Column("x_UsageBasis", TEXT, "how the counts were obtained"),
    Column("x_EventCount", COUNT, "requests in it; each bucket of a request counts it"),
    Column("x_PriceId", TEXT, "the price it was rated by"),
    Column("x_PriceVersion", COUNT, "number of that price within its model's prices"),
    Column("x_PriceBand", TEXT, "the band of that price by weekday and hour; null: none"),
    Column("x_DiscountId", TEXT, "the discount that was taken off; null: none"),
    Column("x_CorrectsEvent", TEXT, "of a correction: the event it corrects, source:sequence"),
    Column("x_LedgerRoot", TEXT, "the closed month's root hash; null while it is open"),
)
"""Behind all of the specification's, each with the prefix that it asks for."""


def profile(version: str) -> tuple[FocusColumn, ...]:
    """The specification's columns of `version`, by name. Raises `BadQuery` for no version."""
    if version not in VERSIONS:
        raise BadQuery(f"there is no FOCUS {version} here; it is one of {', '.join(VERSIONS)}")
    found = [column for column in (*_EVERYWHERE, *_OF_SOME) if version in column.versions]
    return tuple(sorted(found, key=lambda column: column.name))


def file_columns(version: str) -> tuple[Column, ...]:
    """Every column of a file of `version`, in its order."""
    return (*(column.column for column in profile(version)), *OURS)
