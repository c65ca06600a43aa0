"""Attempts beneath requests, readings of engines' counters, and what a client says of its retries.

Attempts of requests that are there already are read out of their events.
Frozen in time: it imports nothing of ours, so that it means the same for ever.
"""

import sqlalchemy as sa
from alembic import op

revision = "20261130_attempts_counters"
down_revision = "20261129_first_ledger"
branch_labels = None
depends_on = None

ORDERED = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("requests", sa.Column("client_retry", sa.BigInteger))
    client: sa.ColumnClause[str] = sa.column("client_request")
    if op.get_bind().dialect.name == "postgresql":
        op.alter_column("requests", "client_request", type_=ORDERED)
    op.create_index(
        "requests_client_request",
        "requests",
        ["client_request"],
        sqlite_where=client.is_not(None),
        postgresql_where=client.is_not(None),
    )
    op.create_table(
        "attempts",
        sa.Column("request_id", ORDERED, primary_key=True),
        sa.Column("attempt", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("backend_id", sa.Text),
        sa.Column("started_us", sa.BigInteger),
        sa.Column("failed", sa.Text, comment="why another one was made; null for the last"),
    )
    op.create_table(
        "counters",
        sa.Column("backend_id", ORDERED, primary_key=True),
        sa.Column("at_us", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("source", ORDERED, primary_key=True),
        sa.Column("gateway", sa.Text, nullable=False),
        sa.Column("engine", sa.Text, nullable=False),
        sa.Column("counters", sa.Text, nullable=False, comment="a JSON object: name to count"),
        sa.Column("process_started_us", sa.BigInteger),
        sa.Column("running", sa.BigInteger),
        sa.Column("waiting", sa.BigInteger),
        sa.Column("fault", sa.Text),
    )
    fill_attempts()
    op.execute(
        "UPDATE requests SET reason = 'the gateway that served it died' WHERE state = 'abandoned'"
    )


def fill_attempts() -> None:
    """Tell of the attempts of old requests what their events told."""
    sqlite = op.get_bind().dialect.name == "sqlite"
    field = "json_extract(e.data, '$.{}')" if sqlite else "(e.data::json ->> '{}')"
    request, backend, after = (field.format(n) for n in ("request_id", "backend_id", "after"))
    attempt = f"CAST({field.format('attempt')} AS BIGINT)"
    op.execute(
        f"""
        INSERT INTO attempts (request_id, attempt, backend_id, started_us, failed)
        SELECT request_id, attempt, max(backend_id), max(started_us), max(failed) FROM (
            SELECT {request} AS request_id, {attempt} AS attempt, {backend} AS backend_id,
                e.time_us AS started_us, NULL AS failed
            FROM events e WHERE e.type = 'tollbook.request.attempted.v1'
            UNION ALL
            SELECT {request}, {attempt} - 1, NULL, NULL, {after}
            FROM events e WHERE e.type = 'tollbook.request.attempted.v1'
                AND {attempt} > 1 AND {after} IS NOT NULL
        ) told GROUP BY request_id, attempt
        """
    )


def downgrade() -> None:
    op.drop_table("counters")
    op.drop_table("attempts")
    op.drop_index("requests_client_request", "requests")
    if op.get_bind().dialect.name == "postgresql":
        op.alter_column("requests", "client_request", type_=sa.Text)
    op.drop_column("requests", "client_retry")
