"""The main queries, caught as they run, and the plans that a database makes of them."""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from sqlalchemy import event, text

from ledger.clock import from_us
from ledger.export.facts import month_in
from ledger.export.rows import request_batches
from ledger.sql.bill import bill
from ledger.sql.charges import charges
from ledger.sql.close import foresee
from ledger.sql.replay import load_book
from ledger.sql.session import ReadSession
from ledger.sql.usage import UsageAsk, usage
from tests.growth.traffic import Month

LARGE = ("events", "requests", "attempts", "usage_hourly")
"""The tables that grow with every request."""


def plans(read: ReadSession, month: Month) -> dict[str, list[str]]:
    """The plans of every statement of the main queries about `month`, the first that is not closed,
    in lines, by the name of what asks."""
    book = load_book(read)
    hours = UsageAsk(
        first_us=month.first_us, after_us=month.after_us, step="hour", by=frozenset({"key"})
    )
    minutes = UsageAsk(
        first_us=month.first_us, after_us=month.first_us + 3_600_000_000, step="minute"
    )
    end = from_us(month.after_us) + timedelta(hours=1)
    asked: dict[str, Callable[[], object]] = {
        "bill": lambda: bill(read, month.name, ("key", "model")),
        "bill by day": lambda: bill(read, month.name, ("project", "key", "model", "day")),
        "charges": lambda: list(charges(read, book, month.name)),
        "export": lambda: list(request_batches(read, month_in(read, month.name), {})),
        "usage by hour": lambda: usage(read, book.members, hours),
        "usage by minute": lambda: usage(read, book.members, minutes),
        "close": lambda: foresee(read, book, month.name, end),
    }
    return {name: planned(read, ask) for name, ask in asked.items()}


def planned(read: ReadSession, ask: Callable[[], object]) -> list[str]:
    """The plan of every statement that `ask` sends, each after its own text."""
    with _caught(read) as statements:
        ask()
    explain = "EXPLAIN QUERY PLAN " if read.dialect == "sqlite" else "EXPLAIN (COSTS OFF) "
    lines = []
    for statement, parameters in statements:
        lines.append(" ".join(statement.split())[:300])
        found = read._connection.exec_driver_sql(explain + statement, parameters).all()
        lines += [f"    {row[-1]}" for row in found]
    return lines


def whole_scans(lines: Iterable[str]) -> list[str]:
    """The lines of a plan that go through the whole of a large table, or of a part of one."""
    return [line.strip() for line in lines if _WHOLE.search(line)]


_WHOLE = re.compile(rf"^ .*\b(Seq Scan on|SCAN) ({'|'.join(LARGE)})")


def parts(lines: Iterable[str], table: str) -> set[str]:
    """The parts of `table` whose rows a plan of Postgres gathers: `2026_12`.

    To ask an index for its first or last entry gathers nothing.
    """
    named = re.compile(rf"\bon {table}_(\d{{4}}_\d\d|others)\b")
    found: set[str] = set()
    gathers = True
    for line in lines:
        if not line.startswith(" "):
            gathers = not line.startswith(("SELECT min(", "SELECT max("))
        elif gathers:
            found |= set(named.findall(line))
    return found


def as_if_large(read: ReadSession) -> None:
    """Let Postgres plan for small tables as for large ones: by an index where one serves."""
    if read.dialect == "postgresql":
        read._connection.execute(text("SET LOCAL enable_seqscan = off"))


@contextmanager
def _caught(read: ReadSession) -> Iterator[list[tuple[str, Any]]]:
    statements: list[tuple[str, Any]] = []

    def seen(_: Any, __: Any, statement: str, parameters: Any, ___: Any, ____: bool) -> None:
        statements.append((statement, parameters))

    connection = read._connection
    event.listen(connection, "before_cursor_execute", seen)
    try:
        yield statements
    finally:
        event.remove(connection, "before_cursor_execute", seen)
