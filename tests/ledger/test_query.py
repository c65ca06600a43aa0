"""A person's SQL: what it sees, that it is exact, and what it may not do."""

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ledger.audit import audit
from ledger.errors import ExportFailed, QueryRefused
from ledger.events import BUCKETS
from ledger.export import formats as formats_module
from ledger.export import query as query_module
from ledger.export import rows as rows_module
from ledger.export.columns import REQUEST_COLUMNS
from ledger.export.manifest import exports
from ledger.export.month import export_month
from ledger.export.query import Result, run_query
from ledger.export.rows import FILE_COLUMNS
from ledger.export.views import VIEWS, View
from tests.support.books import Books
from tests.support.events import (
    SOURCE,
    START,
    abandoned,
    accepted,
    after,
    attempted,
    counted,
    finished,
    key_issued,
    life,
    mark,
    price,
    tokens,
)

PRICES = {"uncached_in": "0.5", "cached_in": "0.05", "other_out": "1.25"}
DECEMBER = datetime(2026, 12, 5, tzinfo=UTC)


@pytest.fixture
def books(books: Books) -> Books:
    books.add(key_issued("key-1"), key_issued("key-2"), price("p-1", PRICES))
    books.add(*life("r-1"), *life("r-2", after(60), "key-2"), accepted("r-3"))
    books.add(*life("r-4", DECEMBER), mark("/gateway/test/a", 1, START, {}))
    books.add(counted("b-1", 1, START, {"vllm:prompt_tokens_total": 24}))
    books.name("key-1", "ada")
    return books


def ask(books: Books, sql: str) -> Result:
    return run_query(books.ledger, books.exports, sql)


def rows(books: Books, sql: str) -> list[tuple[Any, ...]]:
    return ask(books, sql).rows


def test_sums_are_those_of_the_bill(books: Books) -> None:
    found = rows(books, "SELECT key_id, sum(other_out) FROM requests GROUP BY ALL ORDER BY ALL")
    assert found == [("key-1", 8), ("key-2", 4)]
    billed = rows(books, "SELECT key_id, sum(other_out) FROM bill GROUP BY ALL ORDER BY ALL")
    hourly = rows(books, "SELECT key_id, sum(other_out) FROM usage_hourly GROUP BY ALL ORDER BY 1")
    assert billed == hourly == found


def test_the_bill_has_a_line_a_day_of_every_month_and_exact_costs(books: Books) -> None:
    found = rows(books, "SELECT day, key, requests, cost, unpriced FROM bill ORDER BY ALL")
    cost = Decimal("0.000011")
    assert found == [
        (date(2026, 11, 3), "ada", 1, cost, []),
        (date(2026, 11, 3), None, 1, cost, []),
        (date(2026, 12, 5), "ada", 1, cost, []),
    ]
    (total,) = rows(books, "SELECT sum(cost) FROM bill")
    assert total == (Decimal("0.000033"),)


def test_a_failed_attempt_is_seen_and_costs_nothing_and_the_last_what_its_request_costs(
    books: Books,
) -> None:
    """So the attempts of priced requests add up to the bill."""
    books.add(
        accepted("r-5"),
        attempted("r-5", 1),
        attempted("r-5", 2, after(1), backend_id="b-2", after="connect refused"),
        finished("r-5", attempts=2, backend_id="b-2"),
        accepted("r-6"),
        attempted("r-6", 1),
        attempted("r-6", 2, after(1), after="slow"),
    )
    cost = Decimal("0.000011")
    found = rows(
        books,
        "SELECT attempt, last, key, backend_id, started_at, failed, outcome, status, cost, currency"
        " FROM attempts WHERE request_id IN ('r-5', 'r-6') ORDER BY request_id, attempt",
    )
    later = after(1)
    assert found == [
        (1, False, "ada", "b-1", START, "connect refused", None, None, 0, None),
        (2, True, "ada", "b-2", later, None, "completed", 200, cost, "USD"),
        (1, False, "ada", "b-1", START, "slow", None, None, 0, None),
        (2, True, "ada", "b-1", later, None, None, None, None, None),
    ]
    assert rows(books, "SELECT sum(cost) FROM attempts") == rows(
        books, "SELECT sum(cost) FROM bill"
    )


def test_what_was_accepted_is_finished_abandoned_or_open(books: Books) -> None:
    books.add(accepted("r-5", after(3000)), abandoned("r-5", after(3000)))
    found = rows(books, "SELECT * FROM conservation ORDER BY hour")
    assert found == [
        (SOURCE, START.replace(minute=0), 3, 2, 0, 1, 0),
        (SOURCE, START.replace(hour=11, minute=0), 1, 0, 1, 0, 0),
        (SOURCE, DECEMBER, 1, 1, 0, 0, 0),
    ]
    books.add(finished("r-6"))
    (one,) = rows(
        books, "SELECT accepted, finished, difference FROM conservation ORDER BY hour LIMIT 1"
    )
    assert one == (3, 3, -1)


def test_counters_are_read_by_their_json(books: Books) -> None:
    sql = "SELECT read_at, (counters->>'vllm:prompt_tokens_total')::BIGINT FROM counters"
    assert rows(books, sql) == [(START, 24)]


def test_instants_are_utc(books: Books) -> None:
    ((moment, day),) = rows(
        books, "SELECT accepted_at, accepted_at::DATE FROM requests WHERE request_id = 'r-1'"
    )
    assert (moment, moment.tzinfo, day) == (START, UTC, START.date())


def test_open_requests_are_seen(books: Books) -> None:
    assert rows(books, "SELECT state FROM requests WHERE request_id = 'r-3'") == [("open",)]


def test_events_are_read_by_their_json(books: Books) -> None:
    found = rows(
        books,
        "SELECT data->>'$.usage.other_out' FROM events "
        "WHERE type = 'tollbook.request.finished.v1' AND subject = 'key-2'",
    )
    assert found == [("4",)]


def test_sums_beyond_64_bits_are_whole(books: Books) -> None:
    assert rows(books, "SELECT sum(9223372036854775807::BIGINT) FROM requests") == [
        (4 * 9223372036854775807,)
    ]


def test_exports_are_seen_beside_the_ledger(books: Books) -> None:
    assert rows(books, "FROM exported_requests") == []
    for month in ("2026-11", "2026-12"):
        export_month(books.ledger, month, books.exports)
    sums = ", ".join(f"sum({name})::HUGEINT" for name in BUCKETS)
    exported = rows(books, f"SELECT month, {sums} FROM exported_requests GROUP BY 1 ORDER BY 1")
    live = rows(
        books,
        f"SELECT strftime(accepted_at, '%Y-%m') AS month, {sums} FROM requests "
        "WHERE state <> 'open' GROUP BY 1 ORDER BY 1",
    )
    assert exported == live
    assert rows(books, "SELECT count(*), count(DISTINCT sha256) FROM exports") == [(4, 4)]
    assert rows(books, "SELECT sum(cost) FROM exported_bill") == [(Decimal("0.000033"),)]


def test_exports_of_before_a_column_was_added_are_read_beside_newer_ones(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the audit has nothing against them: their bytes are what their manifest says."""
    books.add(accepted("r-5", DECEMBER, client_retry=2), finished("r-5", DECEMBER))
    added = {"client_retry"}
    older = [c for c in FILE_COLUMNS if c.name not in added]
    with monkeypatch.context() as patched:
        patched.setattr(formats_module, "FILE_COLUMNS", tuple(older))
        patched.setattr(rows_module, "FILE_COLUMNS", tuple(older))
        export_month(books.ledger, "2026-11", books.exports)
    export_month(books.ledger, "2026-12", books.exports)
    found = ask(books, "SELECT * EXCLUDE (ended_event) FROM exported_requests ORDER BY request_id")
    assert found.columns == ("month", *(c.name for c in REQUEST_COLUMNS))
    assert [(row[0], row[-1]) for row in found.rows] == [
        ("2026-11", None),
        ("2026-11", None),
        ("2026-12", None),
        ("2026-12", 2),
    ]
    with books.ledger.read() as read:
        assert audit(read, exports=exports(books.exports)).clean


def test_only_named_views_are_filled(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    filled: list[str] = []

    def spy(view: View) -> View:
        def fill(*args: Any) -> None:
            filled.append(view.name)
            view.fill(*args)

        return msgspec.structs.replace(view, fill=fill)

    monkeypatch.setattr(query_module, "VIEWS", tuple(spy(view) for view in VIEWS))
    for sql, expected in (
        ("SELECT 1", []),
        ("SELECT count(*) FROM keys JOIN prices ON true", ["keys", "prices"]),
        ("WITH keys AS (SELECT 1 AS n) SELECT * FROM keys", []),
        ("SHOW TABLES", []),
    ):
        filled.clear()
        ask(books, sql)
        assert filled == expected, sql


def test_views_can_be_listed_and_described(books: Books) -> None:
    assert {name for (name,) in rows(books, "SHOW TABLES")} == {view.name for view in VIEWS}
    assert ("key", "VARCHAR") in [row[:2] for row in rows(books, "DESCRIBE requests")]


def test_names_of_keys_can_be_erased(books: Books) -> None:
    assert rows(books, "SELECT key FROM keys ORDER BY key_id") == [("ada",), (None,)]


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("", "no statement"),
        ("-- nothing", "no statement"),
        ("SELECT 1; SELECT 2", "one question at a time"),
        ("SELEC 1", "syntax error"),
        ("DELETE FROM requests", "DELETE is not a question"),
        ("DROP TABLE requests", "DROP is not a question"),
        ("SET threads = 1", "SET is not a question"),
        ("ATTACH 'other.db'", "ATTACH is not a question"),
        ("INSTALL httpfs", "is not a question"),
        ("COPY requests TO 'stolen.csv'", "COPY is not a question"),
        ("PIVOT requests ON basis USING count(*)", "name the values"),
        ("SELECT * FROM invoices", r"does not exist(.|\n)*The views are requests, attempts, bill"),
        ("SELECT nope FROM requests", '"nope" not found'),
        ("SELECT 1 / 'x'", "Could not convert"),
    ],
)
def test_what_is_no_question_is_refused_with_words(books: Books, sql: str, words: str) -> None:
    with pytest.raises(QueryRefused, match=words):
        ask(books, sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('{file}')",
        "SELECT * FROM '{file}'",
        "SELECT content FROM read_text('{file}')",
        "SELECT * FROM glob('{directory}/*')",
        "SELECT * FROM read_parquet('https://example.org/x.parquet')",
    ],
)
def test_no_other_file_and_no_network_is_reached(books: Books, tmp_path: Path, sql: str) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("a,b\n1,2\n")
    with pytest.raises(QueryRefused):
        ask(books, sql.format(file=secret, directory=tmp_path))


def test_python_variables_are_not_tables(books: Books) -> None:
    with pytest.raises(QueryRefused, match="does not exist"):
        ask(books, "SELECT * FROM read")


def test_a_question_larger_than_memory_leaves_nothing_in_the_working_directory(
    books: Books, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "here"
    place.mkdir()
    monkeypatch.chdir(place)
    assert rows(books, "SELECT count(DISTINCT hash(i)) > 0 FROM range(100000) t(i)") == [(True,)]
    assert list(place.iterdir()) == []


def test_a_broken_export_is_named_only_if_it_is_asked_for(books: Books) -> None:
    done = export_month(books.ledger, "2026-11", books.exports)
    (done.directory / "manifest.json").write_text("{")
    assert rows(books, "SELECT count(*) FROM requests") == [(4,)]
    with pytest.raises(ExportFailed, match=r"manifest\.json"):
        ask(books, "FROM exports")


def test_what_is_unknown_stays_null(books: Books) -> None:
    books.add(*life("r-5", usage=tokens(None, 2, None), basis="counted"))
    found = rows(books, "SELECT uncached_in, other_out FROM bill WHERE basis = 'counted'")
    assert found == [(None, 2)]
