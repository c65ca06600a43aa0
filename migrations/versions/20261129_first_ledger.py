"""The first ledger: the book of record, its projections, and what was set aside.

Frozen in time: it imports nothing of ours, so that it means the same for ever.
"""

import sqlalchemy as sa
from alembic import op

revision = "20261129_first_ledger"
down_revision = None
branch_labels = None
depends_on = None

BUCKETS = ("uncached_in", "cached_in", "cache_write_in", "reasoning_out", "other_out")
ORDERED = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    make_events()
    make_requests()
    make_registry()
    make_sources()
    make_bookkeeping()


def make_events() -> None:
    op.create_table(
        "events",
        sa.Column("source", ORDERED, primary_key=True),
        sa.Column("topic", ORDERED, primary_key=True),
        sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("id", ORDERED, nullable=False, unique=True),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("time_us", sa.BigInteger, nullable=False),
        sa.Column("recorded_us", sa.BigInteger, nullable=False),
        sa.Column(
            "place", sa.BigInteger, comment="place in the one order of the registry; else null"
        ),
        sa.Column("data", sa.Text, nullable=False),
    )
    place: sa.ColumnClause[int] = sa.column("place")
    op.create_index(
        "events_place",
        "events",
        ["place"],
        unique=True,
        sqlite_where=place.is_not(None),
        postgresql_where=place.is_not(None),
    )


def make_requests() -> None:
    op.create_table(
        "requests",
        sa.Column("request_id", ORDERED, primary_key=True),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("source", ORDERED),
        sa.Column("key_id", ORDERED),
        sa.Column("model", ORDERED),
        sa.Column("endpoint", sa.Text),
        sa.Column("stream", sa.Boolean(create_constraint=False)),
        sa.Column("accepted_us", sa.BigInteger, index=True),
        sa.Column("backend_id", sa.Text),
        sa.Column("attempts", sa.BigInteger, nullable=False),
        sa.Column("chunks", sa.BigInteger, nullable=False),
        sa.Column("basis", ORDERED, nullable=False),
        *[sa.Column(name, sa.BigInteger) for name in BUCKETS],
        sa.Column("outcome", sa.Text),
        sa.Column("status", sa.BigInteger),
        sa.Column("reason", sa.Text),
        sa.Column("first_token_us", sa.BigInteger),
        sa.Column("duration_us", sa.BigInteger),
        sa.Column("overhead_us", sa.BigInteger),
        sa.Column("client_request", sa.Text),
    )
    op.create_index("requests_source_state", "requests", ["source", "state"])
    op.create_table(
        "usage_hourly",
        sa.Column("hour_us", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("key_id", ORDERED, primary_key=True),
        sa.Column("model", ORDERED, primary_key=True),
        sa.Column("basis", ORDERED, primary_key=True),
        sa.Column("requests", sa.BigInteger, nullable=False),
        *[sa.Column(name, sa.BigInteger, nullable=False) for name in BUCKETS],
        *[sa.Column(f"{name}_known", sa.BigInteger, nullable=False) for name in BUCKETS],
    )


def make_registry() -> None:
    op.create_table(
        "keys",
        sa.Column("key_id", ORDERED, primary_key=True),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("hash", sa.Text, nullable=False),
        sa.Column("issued_us", sa.BigInteger, nullable=False),
        sa.Column("models", sa.Text, comment="a JSON list; null: every model"),
        sa.Column("revoked_us", sa.BigInteger),
    )
    op.create_table(
        "prices",
        sa.Column("price_id", ORDERED, primary_key=True),
        sa.Column("model", ORDERED, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("currency", sa.Text, nullable=False),
        sa.Column("effective_us", sa.BigInteger, nullable=False),
        *[sa.Column(f"{name}_per_million", sa.Text) for name in BUCKETS],
    )


def make_sources() -> None:
    op.create_table(
        "sources",
        sa.Column("source", ORDERED, primary_key=True),
        sa.Column("first_us", sa.BigInteger),
        sa.Column("last_mark_us", sa.BigInteger),
        sa.Column("closed_us", sa.BigInteger),
        sa.Column("closed_by", sa.Text),
    )
    op.create_table(
        "source_topics",
        sa.Column("source", ORDERED, primary_key=True),
        sa.Column("topic", ORDERED, primary_key=True),
        sa.Column("last_sequence", sa.BigInteger, nullable=False),
        sa.Column(
            "received", sa.BigInteger, comment="distinct sequences; null: the topic is not kept"
        ),
    )


def make_bookkeeping() -> None:
    op.create_table(
        "names",
        sa.Column("kind", ORDERED, primary_key=True),
        sa.Column("id", ORDERED, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
    )
    op.create_table(
        "positions",
        sa.Column("log", ORDERED, primary_key=True),
        sa.Column("next_offset", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "duplicates",
        sa.Column("source", ORDERED, primary_key=True),
        sa.Column("topic", ORDERED, primary_key=True),
        sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("id", sa.Text, nullable=False),
    )
    op.create_table(
        "conflicts",
        sa.Column("source", ORDERED, primary_key=True),
        sa.Column("topic", ORDERED, primary_key=True),
        sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("digest", ORDERED, primary_key=True),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("record", sa.Text, nullable=False),
        sa.Column("noticed_us", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "poison",
        sa.Column("log", ORDERED, primary_key=True),
        sa.Column("log_offset", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("record", sa.LargeBinary, nullable=False),
        sa.Column("noticed_us", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "meta",
        sa.Column("key", ORDERED, primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )


def downgrade() -> None:
    for name in (
        "meta",
        "poison",
        "conflicts",
        "duplicates",
        "positions",
        "names",
        "source_topics",
        "sources",
        "prices",
        "keys",
        "usage_hourly",
        "requests",
        "events",
    ):
        op.drop_table(name)
