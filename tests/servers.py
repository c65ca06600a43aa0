"""Fixtures of the real broker and the real Postgres; `tests/support/kafka.py` says what each is."""

from collections.abc import Iterator

import pytest

from gateway.dev.broker import Broker
from gateway.dev.postgres import Postgres
from streams.kafka.access import KafkaAccess
from tests.support.kafka import (
    Certificates,
    access_to,
    make_certificates,
    new_name,
    running_broker,
    running_postgres,
    secure_access_to,
)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def broker(no_stray_processes_at_the_end: None, certificates: Certificates) -> Iterator[Broker]:
    with running_broker(certificates.tls(), quick=True) as running:
        yield running


@pytest.fixture
def kafka(broker: Broker) -> KafkaAccess:
    return access_to(broker)


@pytest.fixture
def secure_kafka(broker: Broker, certificates: Certificates) -> KafkaAccess:
    return secure_access_to(broker, certificates.authority)


@pytest.fixture
def own_broker(no_stray_processes: None) -> Iterator[Broker]:
    with running_broker(quick=True) as running:
        yield running


@pytest.fixture(scope="session")
def postgres(no_stray_processes_at_the_end: None) -> Iterator[Postgres]:
    with running_postgres() as running:
        yield running


@pytest.fixture
def postgres_url(postgres: Postgres) -> Iterator[str]:
    name = new_name("d")
    url = postgres.create_database(name)
    yield url
    postgres.drop_database(name)


@pytest.fixture
def own_postgres(no_stray_processes: None) -> Iterator[Postgres]:
    with running_postgres() as running:
        yield running
