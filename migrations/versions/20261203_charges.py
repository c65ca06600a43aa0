"""The hourly roll-up also counts what is charged for beside tokens and requests.

Calls that failed, and the time that requests were with a backend: filled from the requests that are
there, as the ledger's own writer adds them up.
Frozen in time: it imports nothing of ours, so that it means the same for ever.
"""

import sqlalchemy as sa
from alembic import op

revision = "20261203_charges"
down_revision = "20261202_months"
branch_labels = None
depends_on = None

ADDED = ("failed_attempts", "busy_us", "busy_known")

FILL = """
    UPDATE usage_hourly SET
        failed_attempts = told.failed_attempts,
        busy_us = told.busy_us,
        busy_known = told.busy_known
    FROM (
        SELECT
            accepted_us - accepted_us % 3600000000 AS hour_us,
            key_id,
            model,
            basis,
            sum(CASE WHEN attempts > 1 THEN attempts - 1 ELSE 0 END) AS failed_attempts,
            coalesce(sum(duration_us - overhead_us), 0) AS busy_us,
            count(duration_us - overhead_us) AS busy_known
        FROM requests
        WHERE state <> 'open'
        GROUP BY 1, 2, 3, 4
    ) AS told
    WHERE usage_hourly.hour_us = told.hour_us
        AND usage_hourly.key_id = told.key_id
        AND usage_hourly.model = told.model
        AND usage_hourly.basis = told.basis
"""


def upgrade() -> None:
    for name in ADDED:
        # The default is for the rows that are there: SQLite takes no such column without one.
        op.add_column(
            "usage_hourly", sa.Column(name, sa.BigInteger, nullable=False, server_default="0")
        )
    op.execute(FILL)


def downgrade() -> None:
    for name in ADDED:
        op.drop_column("usage_hourly", name)
