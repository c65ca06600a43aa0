"""On Postgres requests, their attempts and the hourly roll-up are kept by month.

A request's month is that of its id, whose first digits are the time at which it was made; what has
another kind of id, and what is outside of the months here, is in the default part. What counts is
the same in any part. SQLite has no parts, so nothing changes there.
Frozen in time: it imports nothing of ours, so that it means the same for ever.
"""

from datetime import UTC, datetime
from itertools import pairwise

import sqlalchemy as sa
from alembic import op

revision = "20261202_months"
down_revision = "20261201_finance"
branch_labels = None
depends_on = None

FIRST, MONTHS = (2026, 11), 50
"""November 2026 to December 2030; a later version adds more."""

PARTED = {
    "requests": ("request_id", "request_id"),
    "attempts": ("request_id", "request_id, attempt"),
    "usage_hourly": ("hour_us", "hour_us, key_id, model, basis"),
}
"""By which column a table is parted, and its primary key."""


def upgrade() -> None:
    if op.get_bind().dialect.name != "postgresql":
        return
    for table, (column, key) in PARTED.items():
        make_anew(table, key, f"PARTITION BY RANGE ({column})")
        make_parts(table, column)
        fill(table, key)
    make_indexes()


def downgrade() -> None:
    if op.get_bind().dialect.name != "postgresql":
        return
    for table, (_, key) in PARTED.items():
        make_anew(table, key, "")
        fill(table, key)
    make_indexes()


def make_anew(table: str, key: str, how: str) -> None:
    """An empty table of the same columns beside the old one, which is called `old_…` for now."""
    op.execute(f"ALTER TABLE {table} RENAME TO old_{table}")
    op.execute(f"ALTER TABLE old_{table} RENAME CONSTRAINT {table}_pkey TO old_{table}_pkey")
    # Not its indexes: they are made once the rows are there, under names that must be free.
    op.execute(f"CREATE TABLE {table} (LIKE old_{table} INCLUDING COMMENTS) {how}")


def make_parts(table: str, column: str) -> None:
    year, number = FIRST
    starts = [
        datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC)
        for month in range(number - 1, number + MONTHS)
    ]
    for start, end in pairwise(starts):
        op.execute(
            f"CREATE TABLE {table}_{start:%Y_%m} PARTITION OF {table}"
            f" FOR VALUES FROM ({edge(column, start)}) TO ({edge(column, end)})"
        )
    op.execute(f"CREATE TABLE {table}_others PARTITION OF {table} DEFAULT")


def edge(column: str, start: datetime) -> str:
    """The first value of a month that begins at `start`."""
    ms = round(start.timestamp()) * 1000
    return str(ms * 1000) if column == "hour_us" else f"'req_{ms:012x}'"


def fill(table: str, key: str) -> None:
    op.execute(f"INSERT INTO {table} SELECT * FROM old_{table}")
    op.execute(f"DROP TABLE old_{table}")
    op.execute(f"ALTER TABLE {table} ADD CONSTRAINT {table}_pkey PRIMARY KEY ({key})")


def make_indexes() -> None:
    client: sa.ColumnClause[str] = sa.column("client_request")
    op.create_index("ix_requests_accepted_us", "requests", ["accepted_us"])
    op.create_index("requests_source_state", "requests", ["source", "state"])
    op.create_index(
        "requests_client_request",
        "requests",
        ["client_request"],
        postgresql_where=client.is_not(None),
    )
