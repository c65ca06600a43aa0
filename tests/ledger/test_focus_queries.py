"""Queries as FinOps people write them for FOCUS, on our files: they run and give the right sums."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest

from ledger.export.month import export_month
from ledger.sql.charges import Charge, charges
from ledger.sql.replay import load_book
from tests.ledger.focus_world import FIRST, MONTH, NEXT, close, come_late, fill
from tests.support.books import Books

Expected = dict[Any, Any]


class World:
    """Every month's charges by the ledger itself, and the files below one directory."""

    def __init__(self, directory: Path) -> None:
        books = Books(directory)
        fill(books)
        close(books)
        books.write(come_late())
        self.charges: dict[str, list[Charge]] = {}
        with books.ledger.read() as read:
            for month in (MONTH, NEXT):
                there = charges(read, load_book(read), month)
                self.charges[month] = [one for one in there if one.cost_pico is not None]
        for kind in ("focus-1.2", "focus-1.3", "focus-1.4"):
            for month in (MONTH, NEXT):
                export_month(books.ledger, month, books.exports, kind=kind)
        self.exports = books.exports
        books.ledger.close()

    def ask(self, version: str, sql: str) -> list[tuple[Any, ...]]:
        files = self.exports / f"focus-{version}" / "*" / "*.parquet"
        with duckdb.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            connection.execute(
                "CREATE VIEW focus AS SELECT * FROM "
                f"read_parquet('{files}', hive_partitioning = true)"
            )
            return connection.execute(sql).fetchall()

    def sums(
        self, by: Callable[[Charge], Any], what: Callable[[Charge], int], month: str | None = MONTH
    ) -> Expected:
        found: defaultdict[Any, int] = defaultdict(int)
        for one, there in self.charges.items():
            if month in (None, one):
                for charge in there:
                    found[by(charge)] += what(charge)
        return {key: Decimal(pico).scaleb(-12) for key, pico in found.items()}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    yield World(tmp_path_factory.mktemp("queries"))


def cost(charge: Charge) -> int:
    assert charge.cost_pico is not None
    return charge.cost_pico


versions = pytest.mark.parametrize("version", ["1.2", "1.3", "1.4"])


@versions
def test_cost_by_service_and_billing_period(world: World, version: str) -> None:
    found = world.ask(
        version,
        """
        SELECT BillingPeriodStart, ServiceCategory, ServiceName, BillingCurrency,
               SUM(BilledCost) AS TotalBilledCost, SUM(EffectiveCost) AS TotalEffectiveCost
        FROM focus
        WHERE ChargePeriodStart >= TIMESTAMPTZ '2026-10-31 23:00:00Z'
          AND BillingPeriodStart < TIMESTAMPTZ '2026-11-30 23:00:00Z'
        GROUP BY ALL ORDER BY BillingCurrency
        """,
    )
    expected = world.sums(lambda charge: charge.currency, cost)
    assert found == [
        (FIRST, "AI and Machine Learning", "Tollbook", currency, total, total)
        for currency, total in sorted(expected.items())
    ]


@versions
def test_cost_by_sub_account_in_one_partition(world: World, version: str) -> None:
    found = world.ask(
        version,
        """
        SELECT SubAccountId, SubAccountName, SUM(BilledCost)
        FROM focus WHERE billing_period = '2026-11' AND BillingCurrency = 'EUR'
        GROUP BY ALL
        """,
    )
    expected = world.sums(
        lambda charge: charge.project_id,
        lambda charge: cost(charge) if charge.currency == "EUR" else 0,
    )
    assert {(one, one, total) for one, total in expected.items()} == set(found)
    assert len(found) == 3


@versions
def test_savings_by_negotiated_discounts(world: World, version: str) -> None:
    found = world.ask(
        version,
        """
        SELECT SkuMeter, SUM(ListCost) AS TotalListCost, SUM(ContractedCost) AS TotalContractedCost,
               SUM(ListCost) - SUM(ContractedCost) AS Savings
        FROM focus
        WHERE billing_period = '2026-11' AND ChargeCategory = 'Usage'
          AND ChargeClass IS DISTINCT FROM 'Correction' AND BillingCurrency = 'EUR'
        GROUP BY SkuMeter HAVING SUM(ListCost) > SUM(ContractedCost)
        """,
    )
    usual = world.sums(
        lambda charge: charge.bucket,
        lambda charge: (charge.list_pico or 0) * charge.quantity - cost(charge),
    )
    saved = {total for total in usual.values() if total}
    assert {row[3] for row in found} == saved and len(found) >= 4
    assert all(row[1] - row[2] == row[3] for row in found)


@versions
def test_unit_cost_of_a_million_tokens(world: World, version: str) -> None:
    found = world.ask(
        version,
        """
        SELECT SkuId, SUM(ConsumedQuantity)::BIGINT AS Tokens,
               SUM(EffectiveCost) AS Cost
        FROM focus
        WHERE ConsumedUnit = 'Tokens' AND billing_period = '2026-11'
        GROUP BY SkuId ORDER BY Cost DESC
        """,
    )
    tokens: defaultdict[str, int] = defaultdict(int)
    for charge in world.charges[MONTH]:
        tokens[f"{charge.model}/{charge.bucket}"] += charge.quantity
    paid = world.sums(lambda charge: f"{charge.model}/{charge.bucket}", cost)
    assert {sku: (count, total) for sku, count, total in found} == {
        sku: (count, paid[sku])
        for sku, count in tokens.items()
        if sku.rpartition("/")[2] not in ("request", "gpu_second", "failed_attempt")
    }


@versions
def test_daily_trend_and_its_greatest_resources(world: World, version: str) -> None:
    found = world.ask(
        version,
        """
        SELECT date_trunc('day', ChargePeriodStart)::DATE AS Day, ResourceId, ResourceType,
               SUM(EffectiveCost) AS Cost
        FROM focus WHERE billing_period = '2026-11' AND BillingCurrency = 'EUR'
        GROUP BY Day, ResourceId, ResourceType
        QUALIFY row_number() OVER (PARTITION BY Day ORDER BY Cost DESC) = 1
        ORDER BY Day
        """,
    )
    by_day = world.sums(
        lambda charge: (charge.start_us // 86_400_000_000, charge.key_id),
        lambda charge: cost(charge) if charge.currency == "EUR" else 0,
    )
    best: dict[int, Decimal] = {}
    for (day, _), total in by_day.items():
        best[day] = max(total, best.get(day, total))
    assert [row[3] for row in found] == [best[day] for day in sorted(best) if best[day]]
    assert {row[2] for row in found} == {"API Key"}


@versions
def test_cost_by_a_tag(world: World, version: str) -> None:
    found = world.ask(
        version,
        """
        SELECT json_extract_string(Tags, '$.team') AS Team, SUM(BilledCost)
        FROM focus WHERE billing_period = '2026-11' AND Tags IS NOT NULL AND BillingCurrency = 'EUR'
        GROUP BY Team ORDER BY Team
        """,
    )
    expected = world.sums(
        lambda charge: charge.project_id,
        lambda charge: cost(charge) if charge.currency == "EUR" else 0,
    )
    assert found == [("team, 1", expected["proj-1"]), ("team, 2", expected["proj-2"])]


@versions
def test_corrections_of_earlier_billing_periods(world: World, version: str) -> None:
    found = world.ask(
        version,
        """
        SELECT billing_period, x_CorrectsEvent, SUM(BilledCost), min(ChargePeriodStart)
        FROM focus WHERE ChargeClass = 'Correction' GROUP BY ALL
        """,
    )
    expected = world.sums(lambda charge: charge.corrects, cost, NEXT)
    assert {(row[1], row[2]) for row in found} == set(expected.items())
    assert {row[0] for row in found} == {NEXT} and all(row[3] > FIRST for row in found)


def test_all_versions_hold_the_same_rows(world: World) -> None:
    columns = "x_KeyId, SkuPriceId, ChargePeriodStart, BilledCost, ListCost, x_CorrectsEvent"
    asked = f"SELECT {columns} FROM focus ORDER BY ALL"
    first, *others = (world.ask(version, asked) for version in ("1.2", "1.3", "1.4"))
    assert first and all(other == first for other in others)
