"""Which data directory a ledger at a URL belongs to, so that two do not write into one unawares.

Without Kafka each data directory has a registry of its own, with prices in an order of its own. Two
of them in one ledger would be two truths, and a bill would follow whichever came first.
"""

from sqlalchemy import insert, select

from ledger.errors import LedgerUnavailable
from ledger.sql import tables
from ledger.sql.session import Ledger

_KEY = "data_directory"


def claim(ledger: Ledger, directory_id: str) -> None:
    """Note that the data directory with that id writes into `ledger`. Safe to repeat.

    Raises `LedgerUnavailable` if another one does; then nothing was written.
    """
    table = tables.meta
    wanted = select(table.c.value).where(table.c.key == _KEY)
    with ledger.read() as read:
        found = read.value(wanted)
    if found is None:
        with ledger.write() as tx:
            # Another directory may have come first while this one waited.
            found = tx.value(wanted)
            if found is None:
                tx.execute(insert(table), {"key": _KEY, "value": directory_id})
                return
    if found != directory_id:
        raise LedgerUnavailable(
            f"the ledger {ledger.where} belongs to another data directory, with keys and prices of"
            " its own; give this one a database of its own, or set the same Kafka for both: then"
            " they share one registry and one ledger"
        )
