"""The same events through the embedded runner and through Kafka give the same books."""

import hashlib
import shutil
import sqlite3
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest

from ledger.clock import SystemClock
from ledger.sql.chain import root_at
from ledger.sql.cuts import whole
from ledger.sql.session import open_ledger
from streams.kafka.access import KafkaAccess
from streams.local.layout import Layout
from streams.log.registry import read_registry
from tests.kill import disk
from tests.kill.client import Crowd, Mix
from tests.kill.place import Place
from tests.kill.world import MODELS, Fleet
from tests.streams.topics_house import produce
from tests.support.kafka import settings_file
from tests.support.processes import CLI, Process, tollbook, wait_until

MIX = Mix(streams=8, plains=4, models=MODELS)
TABLES = ("events", "requests", "usage_hourly", "keys", "prices", "sources", "source_topics")


@pytest.mark.e2e
@pytest.mark.timeout(280)
async def test_embedded_and_kafka_modes_give_the_same_rows_and_the_same_export(
    ships: Fleet, kafka: KafkaAccess, postgres_url: str, tmp_path: Path, seed: int
) -> None:
    print(f"seed: {seed}")
    ships.reset()
    place = Place(ships, tmp_path / "embedded", seed)
    with place.world() as world:
        world.start()
        with Crowd(world.url, world.keys, MIX, Random(seed), "same"):
            wait_until("some spools", lambda: len(list(disk.spools(world.data))) > 0)
            world.kill()
            world.start()
            wait_until("the dead spool is adopted", lambda: _adopted(world.data))
        assert world.stop() == 0
        world.settle()
        # As every command it takes in what the last runner may have left.
        assert world.audit()[0] == 0
        other = _as_if_not_taken(world.data, tmp_path / "other")
        config = settings_file(tmp_path, kafka, postgres_url)
        await produce(kafka, read_registry(Layout(world.data).registry_log, 0).events)
        wanted = _sqlite(world.data / "ledger.db")
        _through_kafka(other, config, postgres_url, wanted)
        for kind in ("parquet", "csv", "focus-1.2", "focus-1.4"):
            one = _export(world.data, tmp_path / "one", kind)
            assert one and one == _export(other, tmp_path / "two", kind, "--config", str(config))
        assert _root(world.data / "ledger.db") == _root(postgres_url)


def _adopted(data: Path) -> bool:
    return any((spool / "adopted").exists() for spool in disk.spools(data))


def _as_if_not_taken(data: Path, target: Path) -> Path:
    """A copy of the spools of `data` of which nobody has taken anything yet."""
    shutil.copytree(data / "spool", target / "spool")
    shutil.copytree(data / "secrets", target / "secrets")
    for spool in disk.spools(target):
        (spool / "consumed").write_bytes(bytes(8))
    return target


def _through_kafka(data: Path, config: Path, url: str, wanted: dict[str, Any]) -> None:
    """Relay and writer take `data` into Postgres until it holds what is `wanted`, and no more."""
    options = ("--config", str(config), "--data", str(data))
    running = [Process((*CLI, verb, *options), data / f"{verb}.log") for verb in ("relay", "write")]
    found: dict[str, Any] = {}

    def same() -> bool:
        found.update(_postgres(url))
        return found == wanted

    try:
        wait_until("both ledgers hold the same rows", same, 90.0)
    except AssertionError as late:
        for name in TABLES:
            _tell_difference(name, wanted[name], found.get(name, []))
        for process in running:
            print(process.output()[-2000:])
        raise AssertionError(str(late)) from late
    finally:
        for process in running:
            process.stop()


def _tell_difference(name: str, one: list[Any], other: list[Any]) -> None:
    for where, here, there in (("embedded", one, other), ("Kafka", other, one)):
        only = [row for row in here if row not in there]
        print(f"{name}: {len(here)} rows {where}, {len(only)} only there: {only[:3]}")


def _sqlite(path: Path) -> dict[str, Any]:
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return {name: _rows(db.execute(f"SELECT * FROM {name}")) for name in TABLES}
    finally:
        db.close()


def _postgres(url: str) -> dict[str, Any]:
    with psycopg.connect(url.replace("+psycopg", "")) as db:
        if db.execute("SELECT to_regclass('requests')").fetchone() == (None,):
            return {}
        return {name: _rows(db.execute(f"SELECT * FROM {name}".encode())) for name in TABLES}


def _rows(cursor: Any) -> list[Any]:
    """Rows by column name, sorted; an offset in a log is nobody's business."""
    names = [column[0] for column in cursor.description]
    return sorted(
        (dict(zip(names, (_plain(value) for value in row), strict=True)) for row in cursor),
        key=repr,
    )


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, bool) else value


def _root(ledger: Path | str) -> str:
    """The root of all chains, as far as nothing is missing."""
    with open_ledger(ledger) as opened, opened.read() as read:
        return root_at(read, whole(read))


def _export(data: Path, target: Path, kind: str, *options: str) -> dict[str, str]:
    """The files of this month's exports so far by name, as hashes."""
    month = f"{SystemClock().now():%Y-%m}"
    which = ("--month", month, "--format", kind, "--out", str(target))
    tollbook(data, "export", *which, *options)
    return {
        str(path.relative_to(target)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(target.rglob("*"))
        if path.is_file()
    }
