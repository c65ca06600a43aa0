"""A broker and a database in one folder, with the settings that everything else finds them by."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from gateway.dev.broker import Broker
from gateway.dev.postgres import Postgres

DATABASE: Final = "tollbook"
PARTITIONS: Final = 2

Tell = Callable[[str], None]
"""Told, before each step, what it is."""

_SETTINGS: Final = """\
# Written by `tollbook dev`, anew at every start.

[ledger]
url = "{ledger}"

[kafka]
bootstrap = ["{bootstrap}"]
partitions = {partitions}
replication = 1
"""


class World(msgspec.Struct, frozen=True):
    """What was started: addresses, and the configuration file that names them."""

    kafka: str
    ledger: str
    config: Path


@contextmanager
def world(folder: Path, cache: Path, tell: Tell) -> Iterator[World]:
    """Kafka and Postgres for the length of the block; their data stays in `folder`.

    Raises `WardFailed` with words.
    """
    broker = Broker(folder / "kafka", cache)
    database = Postgres(folder / "postgres")
    try:
        tell("starting Kafka (the first time its jars are fetched, 43 MB)")
        broker.start()
        tell("starting Postgres")
        database.start()
        if not database.has_database(DATABASE):
            database.create_database(DATABASE)
        ledger = database.url_of(DATABASE)
        config = folder / "tollbook.toml"
        config.write_text(
            _SETTINGS.format(ledger=ledger, bootstrap=broker.address, partitions=PARTITIONS)
        )
        yield World(broker.address, ledger, config)
    finally:
        # The database first: it is quick, and a second Ctrl-C must not leave it.
        try:
            database.stop()
        finally:
            broker.stop()
