"""The ledger writer while the broker or Postgres is away, and killed at any moment."""

import asyncio
import random
import urllib.request
from pathlib import Path

import pytest

from gateway.dev.broker import Broker
from gateway.dev.postgres import Postgres
from ledger.events import Event
from streams.kafka.access import KafkaAccess
from tests.streams.test_kafka_writer import a_day, told_directly
from tests.streams.topics_house import Books, produce, settings_file, until, writing
from tests.support.kafka import access_to
from tests.support.processes import CLI, Process, free_port

pytestmark = pytest.mark.e2e


async def test_postgres_away_is_waited_for(
    kafka: KafkaAccess, own_postgres: Postgres, tmp_path: Path
) -> None:
    books = Books(own_postgres.create_database("ledger"))
    events = a_day(40)
    async with writing(kafka, books.target) as running:
        await produce(kafka, events[:60])
        await books.until_taken(events[:60])
        await asyncio.to_thread(own_postgres.kill)
        await produce(kafka, events[60:])
        await until(lambda: "batch" in running.writer.waiting, "it waits for Postgres")
        await asyncio.to_thread(own_postgres.start)
        await books.until_taken(events)
        await until(lambda: not running.writer.waiting, "it goes on")
    assert books.hashes() == told_directly(tmp_path, events)
    assert "trying again, nothing is lost" in running.said[0]
    assert "going on" in running.said and len(running.said) < 10


async def test_the_end_does_not_wait_for_postgres(
    kafka: KafkaAccess, own_postgres: Postgres
) -> None:
    books = Books(own_postgres.create_database("ledger"))
    async with writing(kafka, books.target) as running:
        await until(lambda: bool(running.writer.views), "it has partitions")
        await asyncio.to_thread(own_postgres.stop)
        await produce(kafka, a_day(2))
        await until(lambda: "batch" in running.writer.waiting, "it waits for Postgres")


async def test_a_broker_that_is_killed_and_comes_back(own_broker: Broker, tmp_path: Path) -> None:
    access = await asyncio.to_thread(access_to, own_broker)
    books = Books(tmp_path / "ledger.db")
    events = a_day(40)
    async with writing(access, books.target) as running:
        await produce(access, events[:60])
        await books.until_taken(events[:60])
        await asyncio.to_thread(own_broker.kill)
        await asyncio.to_thread(own_broker.start)
        await produce(access, events[60:])
        await books.until_taken(events)
    assert books.hashes() == told_directly(tmp_path, events)
    assert running.stalls == []


async def test_killed_again_and_again(
    kafka: KafkaAccess, postgres_url: str, tmp_path: Path, seed: int
) -> None:
    """Two processes `tollbook write`, of which one dies at a random moment, several times."""
    chance = random.Random(seed)
    books = Books(postgres_url)
    config = settings_file(tmp_path, kafka, postgres_url)
    events: list[Event] = []
    stays = Process([*CLI, "write", "--config", str(config)], tmp_path / "stays.log")
    try:
        for round_ in range(3):
            dies = Process([*CLI, "write", "--config", str(config)], tmp_path / "dies.log")
            try:
                for part in range(4):
                    more = a_day(20, f"/gateway/test/{round_}{part}", f"r{round_}-{part}-")
                    events += more
                    await produce(kafka, more)
                    await asyncio.sleep(chance.uniform(0, 0.7))
            finally:
                dies.kill()
        await books.until_taken(events)
        assert await asyncio.to_thread(stays.terminate) == 0, stays.output()
    finally:
        stays.kill()
    assert books.hashes() == told_directly(tmp_path, events)


async def test_metrics_and_an_orderly_end(kafka: KafkaAccess, tmp_path: Path) -> None:
    books = Books(tmp_path / "ledger.db")
    port = free_port()
    config = settings_file(tmp_path, kafka, None)
    line = ["write", "--config", str(config), "--data", str(tmp_path), "--metrics-port", str(port)]
    program = Process([*CLI, *line], tmp_path / "write.log")
    try:
        events = a_day(5)
        await produce(kafka, events)
        await books.until_taken(events)

        def shown() -> bool:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                text = answer.read().decode()
            return (
                f'tollbook_writer_events{{result="inserted"}} {books.events()}.0' in text
                and 'tollbook_writer_lag_records{partition="0",topic="sources"} 0.0' in text
            )

        await until(lambda: asyncio.to_thread(shown), "metrics show it")
        assert await asyncio.to_thread(program.terminate) == 0, program.output()
    finally:
        program.kill()
