"""The real broker and Postgres that other tests stand on: they start, die and come back."""

import asyncio

import psycopg
import pytest

from gateway.dev.broker import Broker
from gateway.dev.postgres import Postgres
from streams.kafka.access import KafkaAccess
from streams.kafka.admin import check_topics, create_topics
from tests.support.kafka import access_to

pytestmark = pytest.mark.e2e


def plain(url: str) -> str:
    """A SQLAlchemy address as psycopg reads it."""
    return url.replace("+psycopg", "")


def test_a_broker_keeps_its_topics_over_kill_and_restart(own_broker: Broker) -> None:
    access = access_to(own_broker)
    before = own_broker.address
    own_broker.kill()
    own_broker.start()
    own_broker.restart()
    assert own_broker.address == before
    assert asyncio.run(create_topics(access)) == []


async def test_each_test_has_topics_of_its_own(kafka: KafkaAccess) -> None:
    await check_topics(kafka)


async def test_the_secure_listener_wants_the_password(secure_kafka: KafkaAccess) -> None:
    await check_topics(secure_kafka)
    assert secure_kafka.password is not None and secure_kafka.password not in repr(secure_kafka)


def rows(url: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        done = connection.execute(statement.encode())
        return done.fetchall() if done.description is not None else []


def test_a_database_is_fresh(postgres_url: str) -> None:
    assert (
        rows(plain(postgres_url), "SELECT tablename FROM pg_tables WHERE schemaname='public'") == []
    )


def test_postgres_keeps_what_was_committed_over_a_kill(own_postgres: Postgres) -> None:
    url = plain(own_postgres.create_database("kept"))
    rows(url, "CREATE TABLE a AS SELECT 7 AS seven")
    own_postgres.kill()
    own_postgres.start()
    assert rows(url, "SELECT seven FROM a") == [(7,)]
