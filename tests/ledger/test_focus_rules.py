"""Our own check of FOCUS files finds each rule broken, and the public validator's word on 1.2."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ledger.export.focus.columns import VERSIONS
from ledger.export.focus.rules import RULES, check_focus
from ledger.export.manifest import FOCUS, place_of
from tests.ledger.focus_world import FIRST, MONTH, NEXT, exports_of
from tests.support.focus_validator import UNAVOIDABLE, validate

CSV = Path(FOCUS).with_suffix(".csv").name
Change = dict[str, Any]

BREAKS: tuple[tuple[str, Change, str], ...] = (
    ("1.2", {"ListCost": Decimal("1")}, "ListUnitPrice: product"),
    ("1.2", {"ContractedCost": Decimal("0.000000000001")}, "ContractedUnitPrice: product"),
    ("1.2", {"BilledCost": None}, "BilledCost: null"),
    ("1.2", {"BillingAccountId": None, "BillingAccountType": None}, "BillingAccountId: null"),
    ("1.2", {"BillingAccountType": None}, "BillingAccountType-C-004"),
    ("1.2", {"BillingCurrency": "XYZ"}, "CurrencyFormat-A-001: BillingCurrency"),
    ("1.2", {"PricingCurrency": "Tokens"}, "CurrencyFormat-A-001: PricingCurrency"),
    ("1.2", {"ChargeCategory": "Use"}, "ChargeCategory-C-003"),
    ("1.2", {"ChargeCategory": "Tax"}, "SkuId-C-004"),
    ("1.2", {"ChargeCategory": "Purchase"}, "ChargeFrequency-C-004"),
    ("1.2", {"ChargeCategory": "Purchase"}, "ConsumedQuantity-C-004"),
    ("1.2", {"ChargeClass": "Fix"}, "ChargeClass-C-005"),
    ("1.2", {"ChargeFrequency": "Often"}, "ChargeFrequency-C-003"),
    ("1.2", {"ChargePeriodStart": FIRST.replace(year=2025)}, "ChargePeriodStart: within"),
    ("1.2", {"ChargePeriodEnd": FIRST.replace(year=2025)}, "ChargePeriodEnd-C-004"),
    ("1.2", {"BillingPeriodEnd": FIRST.replace(year=2025)}, "BillingPeriodEnd-C-004"),
    ("1.2", {"ChargePeriodStart": FIRST.replace(microsecond=5)}, "DateTimeFormat-A-003"),
    ("1.2", {"ConsumedQuantity": None, "ConsumedUnit": None}, "ConsumedQuantity-C-006"),
    ("1.2", {"ConsumedUnit": None}, "ConsumedUnit-C-005"),
    ("1.2", {"PricingUnit": None}, "PricingUnit-C-005"),
    ("1.2", {"PricingQuantity": None, "PricingUnit": None}, "PricingQuantity-C-005"),
    ("1.2", {"ListUnitPrice": Decimal("-1")}, "ListUnitPrice: sign"),
    ("1.2", {"ListUnitPrice": None}, "ListUnitPrice: Usage"),
    ("1.2", {"PricingCategory": "Cheap"}, "PricingCategory-C-007"),
    ("1.2", {"PricingCategory": None}, "PricingCategory-C-004"),
    ("1.2", {"PricingCurrencyEffectiveCost": Decimal("9")}, "PricingCurrency: same"),
    ("1.2", {"ServiceCategory": "Cooking"}, "ServiceCategory-C-003"),
    ("1.2", {"ServiceSubcategory": "Databases"}, "ServiceSubcategory-C-004"),
    ("1.2", {"ServiceName": "  "}, "StringHandling-A-007: ServiceName"),
    ("1.2", {"SkuId": None, "SkuMeter": None}, "SkuId-C-005"),
    ("1.2", {"SkuId": "another"}, "SkuPriceId-C-008"),
    ("1.2", {"SkuPriceId": None}, "SkuPriceDetails-C-004"),
    ("1.3", {"SkuPriceId": None}, "CAU-PricingQuantity: without a SKU price"),
    ("1.4", {"ContractedUnitPrice": None}, "CAU-ContractedUnitPrice: with a SKU price"),
    ("1.4", {"EffectiveCost": Decimal("2"), "ChargeCategory": "Tax"}, "CAU-EffectiveCost-C-017"),
    ("1.4", {"InvoiceDetailId": "1"}, "InvoiceDetailId: invoice"),
    ("1.3", {"ServiceProviderName": None}, "ServiceProviderName: null"),
    ("1.3", {"AllocatedTags": "{}"}, "AllocatedTags: resource"),
    ("1.2", {"SubAccountName": None}, "SubAccountName-C-004"),
    ("1.2", {"RegionName": "here"}, "RegionName-C-004"),
    ("1.2", {"ResourceType": None}, "ResourceType-C-004"),
    ("1.2", {"ResourceId": None, "ResourceType": None, "ResourceName": "x"}, "ResourceName-C-004"),
    ("1.2", {"CommitmentDiscountName": "x"}, "CommitmentDiscountName-C-004"),
    ("1.2", {"CapacityReservationStatus": "Used"}, "CapacityReservationStatus-C-003"),
    ("1.2", {"Tags": "team"}, "KeyValueFormat: Tags is no JSON"),
    ("1.2", {"Tags": "[1]"}, "KeyValueFormat: Tags is no JSON object"),
    ("1.2", {"Tags": '{"a": [1]}'}, "KeyValueFormat: Tags holds more"),
    ("1.2", {"Tags": '{"a": "1", "a": "2"}'}, "KeyValueFormat: Tags names a key twice"),
    ("1.2", {"SkuPriceDetails": '{"Cores": 1}'}, "KeyValueFormat: SkuPriceDetails has a key"),
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exports_of(tmp_path_factory.mktemp("focus"))


@pytest.mark.parametrize(("version", "change", "rule"), BREAKS)
def test_our_own_check_finds_each_break(
    files: Path, tmp_path: Path, version: str, change: Change, rule: str
) -> None:
    made = pq.read_table(place_of(files, f"focus-{version}", MONTH) / FOCUS)
    lines = made.to_pylist()
    # The first is of a key with a project and of a price with a band.
    assert lines[0]["SubAccountId"] is not None
    path = tmp_path / "changed.parquet"
    pq.write_table(pa.Table.from_pylist([lines[0] | change, *lines[1:]], made.schema), path)
    found = check_focus(path, version)
    assert any(one.startswith(rule) for one in found), found


def test_what_we_wrote_passes_and_rules_are_named_once(files: Path) -> None:
    for version in VERSIONS:
        for month in (MONTH, NEXT):
            for name in (FOCUS, CSV):
                path = place_of(files, f"focus-{version}", month) / name
                assert check_focus(path, version) == []
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)


def test_other_columns_types_and_orders_are_found(files: Path, tmp_path: Path) -> None:
    made = pq.read_table(place_of(files, "focus-1.4", MONTH) / FOCUS)
    path = tmp_path / "changed.parquet"

    def found(table: pa.Table, version: str = "1.4") -> list[str]:
        pq.write_table(table, path)
        return check_focus(path, version)

    assert found(made) == []
    assert "column Tags is missing" in found(made.drop_columns(["Tags"]))[0]
    place = made.column_names.index("BilledCost")
    floats = made.set_column(place, "BilledCost", made["BilledCost"].cast(pa.float64()))
    assert found(floats) == ["column BilledCost is double, and has to be decimal128(38, 12)"]
    assert found(made.select(made.column_names[::-1])) == ["the columns stand in another order"]
    assert "column x does not belong here" in found(
        made.append_column("x", pa.nulls(made.num_rows, pa.string()))
    )
    assert any("ProviderName" in one for one in found(made, "1.2"))
    text = tmp_path / "changed.csv"
    whole = (place_of(files, "focus-1.4", MONTH) / CSV).read_text()
    text.write_text(whole.replace("0.0005", "five", 1))
    assert "cannot" in check_focus(text, "1.4")[0]
    path.write_bytes(b"PAR1")
    assert "cannot be read" in check_focus(path, "1.4")[0]
    with pytest.raises(OSError, match="No such file"):
        check_focus(tmp_path / "none.parquet", "1.4")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("month", "name"), [(MONTH, FOCUS), (NEXT, FOCUS), (MONTH, CSV)])
def test_the_public_validator_finds_one_rule_that_contradicts_another(
    files: Path, tmp_path: Path, month: str, name: str
) -> None:
    validated = validate(place_of(files, "focus-1.2", month) / name, tmp_path)
    assert validated.failed == (UNAVOIDABLE,)
    assert validated.ran > 500 and validated.ran - validated.skipped > 280


@pytest.mark.timeout(600)
def test_the_public_validator_would_find_more(files: Path, tmp_path: Path) -> None:
    made = pq.read_table(place_of(files, "focus-1.2", MONTH) / FOCUS)
    lines = made.to_pylist()
    lines[0] |= {"SubAccountName": None}
    path = tmp_path / "changed.parquet"
    pq.write_table(pa.Table.from_pylist(lines, made.schema), path)
    work = tmp_path / "work"
    work.mkdir()
    assert {UNAVOIDABLE, "SubAccountName-C-005-C"} < set(validate(path, work).failed)
