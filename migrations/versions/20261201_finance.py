"""Price lists, late requests of closed months, and the heads of the chains.

Frozen in time: it imports nothing of ours, so that it means the same for ever.
"""

import sqlalchemy as sa
from alembic import op

revision = "20261201_finance"
down_revision = "20261130_attempts_counters"
branch_labels = None
depends_on = None

ORDERED = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column(
        "prices",
        sa.Column(
            "terms",
            sa.Text,
            comment="a JSON object: what a price list says beyond these; null: none",
        ),
    )
    op.create_table(
        "late",
        sa.Column("request_id", ORDERED, primary_key=True),
        sa.Column("month", ORDERED, nullable=False),
        sa.Column("source", ORDERED, nullable=False, comment="of the event that ended it"),
        sa.Column("sequence", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_late_month", "late", ["month"])
    op.create_table(
        "chain_heads",
        sa.Column("source", ORDERED, primary_key=True),
        sa.Column("topic", ORDERED, primary_key=True),
        sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("head", sa.Text, nullable=False, comment="64 hex digits, `ledger.chain`"),
    )


def downgrade() -> None:
    op.drop_table("chain_heads")
    op.drop_table("late")
    op.drop_column("prices", "terms")
