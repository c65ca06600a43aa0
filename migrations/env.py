"""How Alembic runs the ledger's migrations. It knows the tables and nothing else of ours.

The ledger hands its own connection over, inside one transaction that it began and will commit, so
that a schema is either whole or untouched and two processes cannot migrate at once. For developers
(`alembic -x url=sqlite+pysqlite:///… revision --autogenerate`) a URL does as well.
"""

from alembic import context
from sqlalchemy import Connection, create_engine

from ledger.sql.tables import is_part, metadata


def migrate(connection: Connection) -> None:
    """Run what was asked for on `connection`, inside its transaction."""
    # Batch mode: SQLite can change few things of a table in place, so Alembic copies it.
    context.configure(
        connection=connection,
        target_metadata=metadata,
        render_as_batch=connection.dialect.name == "sqlite",
        transaction_per_migration=False,
        include_name=lambda name, kind, _: kind != "table" or not is_part(name or ""),
    )
    with context.begin_transaction():
        context.run_migrations()


given: Connection | None = context.config.attributes.get("connection")
if given is not None:
    migrate(given)
else:
    engine = create_engine(context.get_x_argument(as_dictionary=True)["url"])
    with engine.begin() as own:
        migrate(own)
    engine.dispose()
