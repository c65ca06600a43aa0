"""Books with all that a FOCUS file can tell: projects, tags, bands, discounts, charges beside
tokens, two currencies, use without a price, use that nobody knows, a closed month, corrections."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ledger.events import (
    Band,
    BooksSet,
    Draft,
    Event,
    KeyAssigned,
    OrganizationSet,
    Payload,
    PriceEntry,
    PriceListed,
    ProjectSet,
    Usage,
)
from ledger.export.focus.columns import VERSIONS
from ledger.export.month import export_month
from ledger.sql.close import draft, foresee
from ledger.sql.replay import load_book
from ledger.sql.session import Ledger
from tests.support.books import Books
from tests.support.events import SOURCE, Scribe, abandoned, accepted, finished, key_issued, life

MONTH, NEXT = "2026-11", "2026-12"
ZONE = "Europe/Berlin"
FIRST = datetime(2026, 10, 31, 23, 0, tzinfo=UTC)
"""The first instant of the month in that zone."""

PRICED = {
    "uncached_in": "0.5",
    "cached_in": "0.05",
    "other_out": "1.250001",
    "request": "0.01",
    "gpu_second": "0.002",
    "failed_attempt": "0.0005",
}
EVERY_DAY = [1, 2, 3, 4, 5, 6, 7]


def at(hours: float) -> datetime:
    """So many hours after the month began."""
    return FIRST + timedelta(hours=hours)


def told(payload: Payload, name: str, when: datetime) -> Draft:
    return Draft(name, name, when, payload)


def registry() -> list[Draft]:
    """Two keys in two projects of one organization, one in none, and a price book."""
    early = FIRST - timedelta(days=1)
    drafts = [told(BooksSet(base=0, version=1, zone=ZONE, issuer="Lab GmbH"), "books", early)]
    tags = {"cost centre": "4711"}
    organization = OrganizationSet(organization_id="org-1", base=0, version=1, tags=tags)
    drafts.append(told(organization, "org-1", early))
    for number in (1, 2):
        project = ProjectSet(
            project_id=f"proj-{number}",
            organization_id="org-1",
            base=0,
            version=1,
            tags={"team": f"team, {number}", "env": "lab"},
        )
        drafts.append(told(project, f"proj-{number}", early))
        member = KeyAssigned(
            key_id=f"key-{number}",
            project_id=f"proj-{number}",
            base=0,
            version=1,
            tags={"env": "prod"} if number == 1 else {},
        )
        drafts += [key_issued(f"key-{number}"), told(member, f"key-{number}/1", early)]
    return [*drafts, key_issued("key-3"), prices(early)]


def prices(early: datetime) -> Draft:
    night = Band(name="night", days=EVERY_DAY, start=0, end=360, per_unit={"other_out": "0.9"})
    entries = [
        PriceEntry(
            price_id="price-m",
            model="m",
            currency="EUR",
            effective_from=early,
            per_unit=PRICED,
            zone=ZONE,
            bands=[night],
        ),
        # From the middle of an hour on, so that an hour is cut.
        PriceEntry(
            price_id="price-m-2",
            model="m",
            currency="EUR",
            effective_from=at(100.5),
            per_unit=PRICED | {"uncached_in": "0.7"},
            unit=1_000_000,
        ),
        PriceEntry(
            price_id="off-2",
            model="m",
            currency="EUR",
            scope="project/proj-2",
            effective_from=early,
            discount="12.34",
        ),
        PriceEntry(
            price_id="price-k",
            model="k*",
            currency="USD",
            effective_from=early,
            unit=1000,
            per_unit={"uncached_in": "0.002", "other_out": "0.003"},
        ),
        PriceEntry(
            price_id="price-h",
            model="half",
            currency="EUR",
            effective_from=early,
            per_unit={"uncached_in": "1"},
        ),
    ]
    listed = PriceListed(base=0, entries=entries, rerate="the first price book")
    return told(listed, "prices", early)


NOTHING = Usage(
    uncached_in=None, cached_in=None, cache_write_in=None, reasoning_out=None, other_out=None
)


def usage(last: str = SOURCE) -> list[Draft]:
    """A month of requests, not all of which have a price or a known use. `last` is the gateway that
    accepts the last of them, one of which it never ends."""
    drafts: list[Draft] = []
    for n in range(60):
        key = f"key-{n % 3 + 1}"
        model = ("m", "m", "k2", "half", "m")[n % 5]
        used = Usage(
            uncached_in=1000 + n, cached_in=n * 7, cache_write_in=0, reasoning_out=0, other_out=n
        )
        busy = {"duration_us": 1_500_000 + n, "overhead_us": 1000, "attempts": 1 + n % 2}
        when = at(2.5 * n + n / 60)
        drafts += life(f"r-{n:02}", when, key, model=model, usage=used, **busy)
    drafts += life("r-none", at(200), "key-1", usage=NOTHING, basis="none")
    drafts += life("r-free", at(201), "key-1", model="without a price")
    # Accepted and not yet ended; and given up, whose gateway comes back after the month was closed.
    drafts += [accepted("r-late", at(300), "key-2"), accepted("r-back", at(301), "key-1")]
    drafts.append(abandoned("r-back", at(301), "key-1", chunks=3, source=last))
    return drafts


def fill(books: Books) -> None:
    """The registry and the month's use, from one source."""
    books.add(*registry(), *usage())


def close(books: Books, month: str = MONTH) -> None:
    """Close `month` as `tollbook close` does, without waiting for the gateway's next mark."""
    books.add(closing(books.ledger, [SOURCE], month))


def closing(ledger: Ledger, sources: Sequence[str], month: str = MONTH) -> Draft:
    """The event that closes `month`, whatever `sources` may still hold."""
    now = datetime(2027, 2, 1, tzinfo=UTC)
    with ledger.read() as read:
        book = load_book(read)
        without = dict.fromkeys(sources, "the test has no marks")
        return draft(foresee(read, book, month, now, without), book, now, "one")


def come_late() -> list[Event]:
    """What a gateway that was thought dead tells after the month was closed."""
    gone = Scribe("/gateway/gone/0193a0000000700080000000000000b2")
    return gone.write_all(
        finished("r-late", at(300), "key-2", attempts=1, duration_us=9_000_000, overhead_us=0),
        finished("r-back", at(301), "key-1", duration_us=2_000_000, overhead_us=0),
    )


def exports_of(directory: Path) -> Path:
    """FOCUS files of every version, of the closed month and of the open one with what came late."""
    books = Books(directory)
    fill(books)
    close(books)
    books.write(come_late())
    for version in VERSIONS:
        for month in (MONTH, NEXT):
            export_month(books.ledger, month, books.exports, kind=f"focus-{version}")
    books.ledger.close()
    return books.exports
