"""The main queries, caught as they run, and the plans that a database makes of them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event

from ledger.export.facts import month_in
from ledger.export.rows import request_batches
from ledger.sql.bill import bill
from ledger.sql.session import ReadSession
from tests.growth.traffic import Month


def plans(read: ReadSession, month: Month) -> dict[str, list[str]]:
    """The plans of every statement of a month's bill and of the first rows of its export, in lines,
    by the name of what runs it."""
    return {
        "bill": planned(read, lambda: bill(read, month.name, ("key", "model"))),
        "export": planned(
            read, lambda: next(request_batches(read, month_in(read, month.name)), None)
        ),
    }


def planned(read: ReadSession, runs: Callable[[], object]) -> list[str]:
    """The plan of every statement that `runs` sends, each after its own text."""
    with _caught(read) as statements:
        runs()
    explain = "EXPLAIN QUERY PLAN " if read.dialect == "sqlite" else "EXPLAIN (COSTS OFF) "
    lines = []
    for statement, parameters in statements:
        if not statement.lstrip().upper().startswith(("SELECT", "WITH")):
            continue
        lines.append(" ".join(statement.split())[:300])
        found = read._connection.exec_driver_sql(explain + statement, parameters).all()
        lines += [f"    {row[-1]}" for row in found]
    return lines


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
