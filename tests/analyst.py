"""Writes docs/analyst.md with the real output of every question: `python -m tests.analyst`.

The ledger behind it is made from a fixed seed through the real writer, so the page is the same on
every machine and a test compares it.
"""

import contextlib
import io
import os
import random
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb

from gateway.cli.output import Column, Table, table_text
from gateway.cli.query import NUMBERS, plain
from ledger.events import (
    CreditPosted,
    Draft,
    KeyAssigned,
    OrganizationSet,
    PriceListed,
    ProjectSet,
    Usage,
)
from ledger.events.money import Band, Posting, PriceEntry
from ledger.export.month import export_month
from ledger.export.query import run_query, save_views
from ledger.sql.names import set_name
from ledger.sql.session import open_ledger
from tests.support.books import Books
from tests.support.events import corrected, finished, key_issued

FIRST = datetime(2026, 11, 1, tzinfo=UTC)
KEYS = {"key-ada": "ada", "key-bot": "bot", "key-cleo": "cleo"}
PROJECTS = {"proj-chat": "chat", "proj-search": "search"}
HOMES = {"key-ada": "proj-chat", "key-bot": "proj-search", "key-cleo": "proj-search"}
MODELS = ("gemma-3-27b", "gemma-3-27b", "qwen3-8b", "experiment")
WIDTH = 96

_HOW = "<!-- Written by `python -m tests.analyst`; change the questions there, then run it. -->"

_BEGIN = f"""\
# The analyst's page

{_HOW}

Questions that finance and teams ask, and what a ledger answers. Each is put by `tollbook query`,
or in a notebook; the output below is that of a run over a month of two projects that is not closed
yet. [Views](views.md) has every view with its columns, grain and units.
"""

_NOTEBOOK = """\
import duckdb
from decimal import Decimal

books = duckdb.connect("books.duckdb", read_only=True)
books.sql("SET TimeZone = 'UTC'")
days = books.sql(
    "SELECT day, sum(cost) FROM bill WHERE currency = 'USD' GROUP BY day ORDER BY day"
).fetchall()
total = sum((cost for _, cost in days), Decimal(0))
dearest = max(days, key=lambda row: row[1])
print(f"{len(days)} days, {total} USD; the dearest was {dearest[0]} with {dearest[1]}")
"""

QUESTIONS = (
    (
        "What does each project owe this month?",
        "`bill` has what the bill says. A null cost is not zero: those requests ran on a model\n"
        "without a price, or nobody knows what they used. They stand on a line of their own.",
        "SELECT month, project, currency, sum(requests) AS requests, sum(cost) AS cost\n"
        "FROM bill GROUP BY ALL ORDER BY ALL",
    ),
    (
        "Who lacks a price?",
        "`unpriced` names the buckets that hold tokens and have none.",
        "SELECT model, key, unpriced, sum(requests) AS requests, sum(uncached_in) AS uncached_in\n"
        "FROM bill WHERE len(unpriced) > 0 GROUP BY ALL ORDER BY ALL",
    ),
    (
        "Which buckets make the cost?",
        "`charges` has one row for each price: quantity times unit price is the cost, exactly.",
        "SELECT model, bucket, sum(quantity) AS tokens, sum(cost) AS cost\n"
        "FROM charges WHERE cost IS NOT NULL GROUP BY ALL ORDER BY cost DESC LIMIT 6",
    ),
    (
        "What did the cheaper nights save?",
        "Every charge keeps the band that it was priced in, and `rates` has what it would have\n"
        "been outside of it.",
        "SELECT c.model, sum(c.cost) AS paid, sum(c.quantity * r.unit_price) AS by_day\n"
        "FROM charges c JOIN rates r ON r.price_id = c.price_id AND r.bucket = c.bucket\n"
        "  AND r.band IS NULL\n"
        "WHERE c.band = 'night' GROUP BY ALL ORDER BY ALL",
    ),
    (
        "How well are caches hit?",
        "Tokens add up, shares do not: sum first and divide last.",
        "SELECT key, sum(cached_in) AS cached, sum(uncached_in) AS uncached,\n"
        "  round(100 * sum(cached_in) / sum(cached_in + uncached_in), 1) AS percent\n"
        "FROM usage_hourly GROUP BY ALL ORDER BY ALL",
    ),
    (
        "When is it busy?",
        "Instants are UTC. Another zone is a matter of the question.",
        "SELECT hour(accepted_at AT TIME ZONE 'Europe/Zurich') // 6 * 6 AS from_hour,\n"
        "  count(*) AS requests, quantile_disc(duration_us, 0.95) // 1000 AS p95_ms\n"
        "FROM requests GROUP BY ALL ORDER BY ALL",
    ),
    (
        "How is prepaid credit doing?",
        "`credits` has every movement of money; its rows of one entry add up to zero.",
        "SELECT account, currency, sum(amount) AS amount FROM credits GROUP BY ALL ORDER BY ALL",
    ),
    (
        "What was corrected, and what came of it?",
        "A correction is a line of its own that names the event it corrects.",
        "SELECT kind, count(*) AS charges, sum(quantity) AS tokens, sum(cost) AS cost\n"
        "FROM charges WHERE cost IS NOT NULL GROUP BY ALL ORDER BY kind DESC",
    ),
    (
        "The same in FOCUS",
        "Once a month was exported by `tollbook export --format focus-1.3`, questions written for\n"
        "FOCUS work on it. What has no price is not there: FOCUS has no word for it.",
        "SELECT SubAccountId, SkuMeter, sum(ConsumedQuantity) AS quantity,\n"
        "  sum(EffectiveCost) AS cost, BillingCurrency\n"
        "FROM focus_1_3 WHERE ChargePeriodStart < TIMESTAMPTZ '2026-11-15 00:00:00+00'\n"
        "GROUP BY ALL ORDER BY cost DESC LIMIT 4",
    ),
)
"""Heading, explanation and SQL of each question."""


def registry() -> Iterator[Draft]:
    """Two projects of one organization, three keys, prices with cheaper nights."""
    before = FIRST - timedelta(days=2)
    night = Band(
        name="night",
        days=[1, 2, 3, 4, 5, 6, 7],
        start=0,
        end=6 * 60,
        per_unit={"uncached_in": "0.10", "cached_in": "0.01", "other_out": "0.40"},
    )
    large = {"uncached_in": "0.20", "cached_in": "0.02", "other_out": "0.80"}
    small = {"uncached_in": "0.05", "cached_in": "0.005", "other_out": "0.15"}
    entries = [
        PriceEntry(
            price_id="price-large",
            model="gemma-3-27b",
            currency="USD",
            effective_from=before,
            per_unit=large,
            zone="Europe/Zurich",
            bands=[night],
        ),
        PriceEntry(
            price_id="price-small",
            model="qwen3*",
            currency="USD",
            effective_from=before,
            per_unit=small,
        ),
    ]
    listed = PriceListed(base=0, entries=entries, rerate="the first prices")
    yield Draft("prices/1", "prices", before, listed)
    organization = OrganizationSet(organization_id="org-1", base=0, version=1)
    yield Draft("org-1/1", "org-1", before, organization)
    for project_id in PROJECTS:
        project = ProjectSet(project_id=project_id, organization_id="org-1", base=0, version=1)
        yield Draft(f"{project_id}/1", project_id, before, project)
    for key_id, project_id in HOMES.items():
        yield key_issued(key_id)
        moved = KeyAssigned(key_id=key_id, project_id=project_id, base=0, version=1)
        yield Draft(f"{key_id}/assigned/1", key_id, before, moved)
    paid = CreditPosted(
        entry_id="entry-1",
        kind="top_up",
        postings=[
            Posting(account="project/proj-chat", currency="USD", amount="25.00"),
            Posting(account="cash", currency="USD", amount="-25.00"),
        ],
        reason="invoice 7 was paid",
        effective_from=FIRST,
    )
    yield Draft("entry-1", "entry-1", FIRST, paid)


def requests() -> Iterator[Draft]:
    """A month of requests from one seed."""
    chance = random.Random(11)
    for number in range(600):
        at = FIRST + timedelta(seconds=chance.randrange(29 * 86_400))
        key_id = chance.choice([*KEYS, "key-bot"])
        known = chance.random() > 0.02
        usage = Usage(
            uncached_in=chance.randrange(50, 4000),
            cached_in=chance.randrange(3000) if key_id != "key-cleo" else 0,
            cache_write_in=0,
            reasoning_out=0,
            other_out=chance.randrange(10, 900),
        )
        yield finished(
            f"r-{number:04}",
            at,
            key_id,
            chance.choice(MODELS),
            usage=usage if known else Usage(),
            basis="reported" if known else "none",
            duration_us=chance.randrange(200_000, 9_000_000),
            overhead_us=900,
        )


def fill(books: Books) -> None:
    events = books.add(*registry(), *requests())
    first = next(event for event in events if event.id == "r-0000/finished")
    usage = Usage(uncached_in=10, cached_in=0, cache_write_in=0, reasoning_out=0, other_out=5)
    original = f"{first.source}:{first.sequence}"
    books.add(corrected("r-0000", usage, original, FIRST + timedelta(days=29)))
    with books.ledger.write() as tx:
        for key_id, name in KEYS.items():
            set_name(tx, "key", key_id, name)
        for project_id, name in PROJECTS.items():
            set_name(tx, "project", project_id, name)


def answer(books: Books, sql: str) -> str:
    """What `tollbook query` draws for `sql`."""
    found = run_query(books.ledger, books.exports, sql)
    columns = tuple(
        Column(name, number=kind.startswith(NUMBERS))
        for name, kind in zip(found.columns, found.types, strict=True)
    )
    rows = tuple(tuple(plain(cell) for cell in row) for row in found.rows)
    drawn = table_text(Table(columns, rows), WIDTH)
    return "\n".join(line.rstrip() for line in drawn.splitlines()).strip("\n")


def in_notebook(books: Books, directory: Path) -> str:
    """What the lines of the notebook print, run as they stand."""
    save_views(books.ledger, books.exports, directory / "books.duckdb")
    out, here = io.StringIO(), Path.cwd()
    os.chdir(directory)
    try:
        with contextlib.redirect_stdout(out):
            exec(compile(_NOTEBOOK, "notebook", "exec"), {"duckdb": duckdb})
    finally:
        os.chdir(here)
    return out.getvalue().strip()


def page() -> str:
    """docs/analyst.md, as text."""
    with tempfile.TemporaryDirectory(prefix="tollbook-analyst-") as name:
        directory = Path(name)
        with open_ledger(directory / "ledger.db") as ledger:
            books = Books(directory, ledger)
            fill(books)
            export_month(ledger, "2026-11", books.exports, kind="focus-1.3")
            parts = [_BEGIN]
            for heading, words, sql in QUESTIONS:
                drawn = answer(books, sql)
                parts.append(
                    f"## {heading}\n\n{words}\n\n```sql\n{sql}\n```\n\n```\n{drawn}\n```\n"
                )
            printed = in_notebook(books, directory)
    parts.append(
        "## In a notebook\n\n"
        "`tollbook query --save books.duckdb` writes the views of the ledger into a file that\n"
        "DuckDB opens anywhere. Money stays exact: it comes as `Decimal`.\n\n"
        f"```python\n{_NOTEBOOK}```\n\n```\n{printed}\n```\n"
    )
    return "\n".join(parts)


if __name__ == "__main__":
    (Path(__file__).parents[1] / "docs" / "analyst.md").write_text(page(), encoding="utf-8")
