"""Fills a ledger with months of traffic: what is many in bulk, what is few through the writer."""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Final

from sqlalchemy import Table

from ledger.clock import SystemClock, from_us
from ledger.events import (
    BUCKETS,
    BooksSet,
    Draft,
    Event,
    KeyAssigned,
    OrganizationSet,
    Payload,
    PriceListed,
    ProjectSet,
)
from ledger.events.money import Band, PriceEntry
from ledger.sql import tables
from ledger.sql.projections import MAIN, Reach, project_reach
from ledger.sql.session import Ledger, WriteSession
from ledger.sql.writer import Batch, LedgerWriter
from tests.growth.traffic import KEYS, MODELS, Cell, Made, Month, Traffic
from tests.support import events as say
from tests.support.events import Scribe

CHUNK = 20_000
"""Requests written in one transaction; about 30 MB in memory."""

REGISTRY_SOURCE = "/cli/growth/019bf5d0000070008000000000000001"
PROJECTS = ("proj_a", "proj_b", "proj_c", "proj_d")
RISE_DAY = 15
"""The day of the second month from which one model costs more."""

Progress = Callable[[int], None]
"""Told how many requests are there."""


def fill(
    ledger: Ledger,
    months: Sequence[Month],
    seed: int,
    progress: Progress = lambda done: None,
    filled: Callable[[Month], None] = lambda month: None,
    zone: str | None = None,
) -> None:
    """Put the requests of `months` into the empty `ledger`, as if its writer had taken them.

    `filled` is told each month when all of it is there, and nothing of the next. `zone` is that of
    the books and of the band; null: UTC, and Berlin's nights.
    """
    feed = _Feed(ledger)
    feed.write(registry_events(months, zone))
    done = 0
    for month in months:
        traffic = Traffic(month, seed)
        rolled: dict[Cell, list[int]] = {}
        rest = iter(traffic)
        while chunk := list(islice(rest, CHUNK)):
            with ledger.write() as tx:
                _put_requests(tx, chunk)
            _roll_up(rolled, chunk)
            done += len(chunk)
            progress(done)
        with ledger.write() as tx:
            _put(tx, tables.usage_hourly, [(*cell, *rolled[cell]) for cell in sorted(rolled)])
            sources = [*traffic.gateways, traffic.runner]
            said = {(s.name, "requests"): Reach(s.last, s.last) for s in sources if s.last}
            project_reach(tx, MAIN, said)
        feed.write(source_events(traffic))
        analyze(ledger)
        filled(month)


class _Feed:
    """Writes events through the ledger's own writer."""

    def __init__(self, ledger: Ledger) -> None:
        self._writer = LedgerWriter(ledger, SystemClock())
        self._offset = 0

    def write(self, events: Sequence[Event]) -> None:
        after = self._offset + len(events)
        self._writer.write(Batch("growth", self._offset, after, list(events)))
        self._offset = after


def _put_requests(tx: WriteSession, chunk: Sequence[Made]) -> None:
    _put(tx, tables.events, (row for made in chunk for row in made.events))
    _put(tx, tables.requests, (made.request for made in chunk))
    _put(tx, tables.attempts, (row for made in chunk for row in made.attempts))


def _put(tx: WriteSession, table: Table, rows: Iterable[tuple[object, ...]]) -> None:
    """Insert rows in column order, by what each database is fastest at."""
    names = ", ".join(column.name for column in table.columns)
    if tx.dialect == "sqlite":
        marks = ", ".join("?" for _ in table.columns)
        found = list(rows)
        if found:
            tx.connection.exec_driver_sql(
                f"INSERT INTO {table.name} ({names}) VALUES ({marks})", found
            )
        return
    driver = tx.connection.connection.driver_connection
    assert driver is not None, "a transaction has its connection"
    with driver.cursor() as cursor, cursor.copy(f"COPY {table.name} ({names}) FROM STDIN") as copy:
        # Lines of text of our own: the driver's rows take it twice as long as the server.
        copy.write("".join(map(_line, rows)))


def _line(row: tuple[object, ...]) -> str:
    return "\t".join(["\\N" if value is None else str(value) for value in row]) + "\n"


def _roll_up(rolled: dict[Cell, list[int]], chunk: Iterable[Made]) -> None:
    for made in chunk:
        cell = rolled.get(made.cell)
        if cell is None:
            cell = rolled[made.cell] = [0] * (4 + 2 * len(BUCKETS))
        cell[0] += 1
        for n, tokens in enumerate(made.tokens, 1):
            if tokens is not None:
                cell[n] += tokens
                cell[n + 5] += 1
        cell[11] += made.failed
        if made.busy_us is not None:
            cell[12] += made.busy_us
            cell[13] += 1


def analyze(ledger: Ledger) -> None:
    """What a server does by itself a minute after so many rows."""
    with ledger.write() as tx:
        tx.connection.exec_driver_sql("ANALYZE")


def registry_events(months: Sequence[Month], zone: str | None = None) -> list[Event]:
    """Keys, projects and prices: told before the first month, one price rises in the second."""
    before = from_us(months[0].first_us) - timedelta(days=1)
    drafts = [say.key_issued(key, before) for key in KEYS]
    drafts.append(
        _draft("org_1", before, OrganizationSet(organization_id="org_1", base=0, version=1))
    )
    for project in PROJECTS:
        payload = ProjectSet(project_id=project, organization_id="org_1", base=0, version=1)
        drafts.append(_draft(project, before, payload))
    for n, key in enumerate(KEYS):
        assigned = KeyAssigned(
            key_id=key, project_id=PROJECTS[n % len(PROJECTS)], base=0, version=1
        )
        drafts.append(_draft(f"{key}/assigned", before, assigned))
    if zone is not None:
        drafts.append(_draft("books", before, BooksSet(base=0, version=1, zone=zone)))
    entries = _entries(before, months, zone or "Europe/Berlin")
    drafts.append(
        _draft("prices", before, PriceListed(base=0, entries=entries, rerate="the first"))
    )
    return Scribe(REGISTRY_SOURCE).write_all(*drafts)


CHARGED: Final = {"gpu_second": "0.0004", "failed_attempt": "0.001", "request": "0.0001"}
"""What requests of one model are charged for beside their tokens."""


def _entries(before: datetime, months: Sequence[Month], zone: str) -> list[PriceEntry]:
    entries = [
        PriceEntry(
            price_id=f"price_{model}",
            model=model,
            currency="EUR",
            effective_from=before,
            per_unit={
                "uncached_in": f"0.{9 - n}0",
                "cached_in": f"0.0{9 - n}",
                "reasoning_out": f"{9 - n}",
                "other_out": f"{9 - n}.5",
                **(CHARGED if n == 1 else {}),
            },
        )
        for n, model in enumerate(MODELS)
    ]
    night = Band(
        name="night", days=[1, 2, 3, 4, 5], start=1320, end=1440, per_unit={"other_out": "0.5"}
    )
    banded = {"bands": [night], "zone": zone, "price_id": "price_night"}
    entries.append(_like(entries[2], before + timedelta(hours=1), **banded))
    rise = from_us(months[min(1, len(months) - 1)].first_us) + timedelta(days=RISE_DAY, minutes=17)
    entries.append(_like(entries[0], rise, price_id="price_risen"))
    return entries


def _like(entry: PriceEntry, start: datetime, **other: object) -> PriceEntry:
    given = {name: getattr(entry, name) for name in entry.__struct_fields__}
    return PriceEntry(**{**given, "effective_from": start, **other})


def source_events(traffic: Traffic) -> list[Event]:
    """What the sources of a month say of themselves: at the start, each day, and at their end."""
    month = traffic.month
    events: list[Event] = []
    days = [from_us(us) for us in range(month.first_us, month.after_us, 24 * 3_600_000_000)]
    end = from_us(month.after_us) + timedelta(minutes=5)
    for source in [*traffic.gateways, traffic.runner]:
        scribe = Scribe(source.name)
        # The rows of a month are made before its marks, so only the last of them can say a number.
        drafts = [say.mark(source.name, n, day, {}) for n, day in enumerate(days)]
        last = {"requests": source.last, "sources": len(days) + 1}
        drafts.append(say.mark(source.name, len(days), end, {"requests": source.last}))
        drafts.append(say.closed(source.name, end, last))
        events += scribe.write_all(*drafts)
    return events


def _draft(name: str, time: datetime, payload: Payload) -> Draft:
    return Draft(name, name, time, payload)
