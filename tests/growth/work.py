"""What is measured on a large ledger, each in a process of its own."""

import resource
import time
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import text

from ledger.export.month import export_month
from ledger.sql import tables
from ledger.sql.bill import bill
from ledger.sql.chain import advance
from ledger.sql.session import Ledger, open_ledger
from tests.ledger.closings import close

Figures = dict[str, object]
Step = Callable[[Ledger, str, Path], Figures]


def run(name: str, target: str, month: str, folder: Path) -> Figures:
    """Do one of `STEPS` on the ledger `target`. Its figures, and how many seconds it took, in how
    many of them this process worked (a database's server is another), and its most memory.
    """
    with open_ledger(target) as ledger:
        started, worked = time.monotonic(), time.process_time()
        figures = STEPS[name](ledger, month, folder)
        seconds, cpu = time.monotonic() - started, time.process_time() - worked
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return {"seconds": round(seconds, 2), "cpu": round(cpu, 2), "most_mib": most, **figures}


def size(ledger: Ledger, month: str, folder: Path) -> Figures:
    """Bytes on disk, by table with its indexes where the database says so."""
    with ledger.read() as read:
        rows = {
            table.name: int(read.value(text(f"SELECT count(*) FROM {table.name}")))
            for table in (tables.requests, tables.events, tables.usage_hourly)
        }
        if ledger.dialect == "sqlite":
            pages = read.value(text("PRAGMA page_count"))
            whole = int(pages) * int(read.value(text("PRAGMA page_size")))
            parts: dict[str, int] = {}
        else:
            whole = int(read.value(text("SELECT pg_database_size(current_database())")))
            parts = {name: int(size) for name, size in read.rows(text(_PARTS))}
    return {
        "bytes": whole,
        "bytes_per_million_requests": whole * 1_000_000 // max(rows["requests"], 1),
        "rows": rows,
        "parts": parts,
    }


_PARTS = """
    SELECT root, sum(pg_total_relation_size(relid))::bigint FROM (
        SELECT c.relname AS root, coalesce(t.relid, c.oid) AS relid
        FROM pg_class c LEFT JOIN LATERAL pg_partition_tree(c.oid) t ON c.relkind = 'p'
        WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p')
    ) told GROUP BY root ORDER BY 2 DESC LIMIT 5
"""


def month_bill(ledger: Ledger, month: str, folder: Path) -> Figures:
    """The bill of a month by key and model."""
    with ledger.read() as read:
        lines = bill(read, month, ("key", "model"))
    return {"lines": len(lines), "requests": sum(line.requests for line in lines)}


def month_close(ledger: Ledger, month: str, folder: Path) -> Figures:
    """The closing of a month, whose chains the ledger's writer has kept up with."""
    said = close(ledger, month)
    return {"requests": said.requests, "sources": len(said.cut), "totals": said.totals}


def month_chains(ledger: Ledger, month: str, folder: Path) -> Figures:
    """What the ledger's writer does on the side: heads of the chains, so that a closing has not to
    go through a whole month."""
    done = 0
    while more := advance(ledger, CHAIN_RUN):
        done += more
    return {"events": done}


CHAIN_RUN = 100_000


def _export(kind: str) -> Step:
    def month_export(ledger: Ledger, month: str, folder: Path) -> Figures:
        done = export_month(ledger, month, folder / "exports", kind=kind)
        return {
            "requests": done.manifest.requests,
            "period": done.manifest.period,
            "bytes": sum(file.bytes for file in done.manifest.files),
        }

    return month_export


STEPS: dict[str, Step] = {
    "size": size,
    "bill": month_bill,
    "export": _export("parquet"),
    "chains": month_chains,
    "close": month_close,
    "bill_closed": month_bill,
    "export_closed": _export("parquet"),
    "export_csv": _export("csv"),
    "export_focus": _export("focus-1.2"),
    "export_archive": _export("archive"),
}
"""In this order: each finds the ledger as the one before it left it."""
