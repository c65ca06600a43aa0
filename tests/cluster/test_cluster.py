"""The short forms: ledger = distinct events = what clients saw, and usage-by-key = ledger."""

import random
from pathlib import Path

import pytest

from gateway.dev.broker import Broker
from gateway.dev.postgres import Postgres
from streams.kafka.access import KafkaAccess
from tests.cluster.scenarios import killed, members_change, replayed, servers_away
from tests.cluster.world import Cluster
from tests.kill.world import Fleet
from tests.support.kafka import access_to

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(280)]


def test_everything_is_killed_under_load(
    ships: Fleet, kafka: KafkaAccess, postgres_url: str, tmp_path: Path, seed: int
) -> None:
    print(f"seed: {seed}")
    ships.reset()
    with Cluster(ships, tmp_path, kafka, postgres_url) as cluster:
        print(killed(cluster, random.Random(seed), rounds=2).words())


def test_kafka_and_postgres_go_away_and_come_back(
    ships: Fleet, own_broker: Broker, own_postgres: Postgres, tmp_path: Path, seed: int
) -> None:
    print(f"seed: {seed}")
    ships.reset()
    access, url = access_to(own_broker), own_postgres.create_database("away")
    with Cluster(ships, tmp_path, access, url) as cluster:
        print(servers_away(cluster, random.Random(seed), own_broker, own_postgres).words())


def test_a_second_writer_and_worker_join_and_leave(
    ships: Fleet, kafka: KafkaAccess, postgres_url: str, tmp_path: Path, seed: int
) -> None:
    print(f"seed: {seed}")
    ships.reset()
    with Cluster(ships, tmp_path, kafka, postgres_url) as cluster:
        print(members_change(cluster, random.Random(seed)).words())


def test_all_that_was_sent_is_sent_again_beside_live_traffic(
    ships: Fleet, kafka: KafkaAccess, postgres_url: str, tmp_path: Path, seed: int
) -> None:
    print(f"seed: {seed}")
    ships.reset()
    with Cluster(ships, tmp_path, kafka, postgres_url) as cluster:
        print(replayed(cluster, random.Random(seed)).words())
