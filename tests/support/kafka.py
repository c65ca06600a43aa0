"""The real broker and the real Postgres of the tests. `tests/conftest.py` makes fixtures of them.

broker          one broker for the whole session; each test has topics of its own on it
kafka           `KafkaAccess` with a fresh prefix; 2 partitions, topics made
secure_kafka    the same by TLS and SASL, by the broker's other listener
own_broker      a broker for one test, which may stop, kill and restart it
postgres        one server for the whole session
postgres_url    the address of a fresh, empty database on it
own_postgres    a server for one test, which may stop, kill and restart it
secure_postgres a server that takes TLS only, and the file of its authority
"""

import asyncio
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from gateway.dev.broker import Broker, Tls
from gateway.dev.postgres import Postgres
from gateway.settings import cache_folder
from gateway.wards.errors import WardFailed
from streams.kafka.access import KafkaAccess
from streams.kafka.admin import create_topics

PARTITIONS = 2
USER, PASSWORD = "alice", "kafka-secret-of-alice"
_numbers = itertools.count(1)


class Certificates(msgspec.Struct, frozen=True):
    """Files in PEM: the authority, and a certificate for localhost with its key in PKCS 8."""

    authority: Path
    certificate: Path
    key: Path

    def tls(self) -> Tls:
        return Tls(self.certificate.read_text(), self.key.read_text(), {USER: PASSWORD})


def make_certificates(folder: Path) -> Certificates:
    """A new authority and a certificate of its for localhost."""
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    made = Certificates(folder / "ca.pem", folder / "cert.pem", folder / "key.pem")
    authority.cert_pem.write_to_path(str(made.authority))
    made.certificate.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
    made.key.touch(mode=0o600)
    made.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return made


def new_name(first: str) -> str:
    """A name that nothing else of this session has: a topic prefix, a database."""
    return f"{first}{next(_numbers)}"


def access_to(
    broker: Broker, prefix: str | None = None, partitions: int = PARTITIONS, *, topics: bool = True
) -> KafkaAccess:
    """Access to `broker`, with a fresh prefix if none is given; its topics are made unless told
    otherwise. Not within an event loop."""
    access = KafkaAccess(
        bootstrap=(broker.address,),
        prefix=prefix or new_name("t"),
        partitions=partitions,
        replication=1,
    )
    if topics:
        asyncio.run(create_topics(access))
    return access


def settings_file(folder: Path, access: KafkaAccess, ledger_url: str | None = None) -> Path:
    """A tollbook.toml in `folder` that names the brokers of `access` and a ledger: for --config."""
    kafka: dict[str, object] = {
        "bootstrap": list(access.bootstrap),
        "security": access.security,
        "ca_file": access.ca_file,
        "sasl_username": access.username,
        "prefix": access.prefix,
        "partitions": access.partitions,
        "replication": access.replication,
    }
    if access.password is not None:
        secret = folder / "kafka-password"
        secret.write_text(access.password)
        kafka["sasl_password"] = f"file:{secret}"
    tables: dict[str, dict[str, object]] = {"kafka": kafka, "ledger": {"url": ledger_url}}
    lines: list[str] = []
    for table, values in tables.items():
        lines.append(f"[{table}]")
        # JSON's strings, numbers and lists are TOML's.
        lines += [f"{name} = {json.dumps(value)}" for name, value in values.items() if value]
    file = folder / "tollbook.toml"
    file.write_text("\n".join([*lines, ""]))
    return file


def named_places(folder: Path, text: str, *names: str) -> list[tuple[str, str]]:
    """The options that name a configuration file for the gateway of each of `names`: the settings
    `text` with that name."""
    places = []
    for name in names:
        config = folder / f"{name}.toml"
        config.write_text(f'[gateway]\nname = "{name}"\n{text}')
        places.append(("--config", str(config)))
    return places


def secure_access_to(broker: Broker, authority: Path) -> KafkaAccess:
    """The same by the secure listener."""
    access = KafkaAccess(
        bootstrap=(broker.secure_address,),
        security="sasl_ssl",
        ca_file=str(authority),
        username=USER,
        password=PASSWORD,
        prefix=new_name("t"),
        partitions=PARTITIONS,
        replication=1,
    )
    asyncio.run(create_topics(access))
    return access


@contextmanager
def server_folder() -> Iterator[Path]:
    """A folder that a server's own user can reach, as pytest's own folders cannot be."""
    folder = Path(tempfile.mkdtemp(prefix="tollbook-test-server-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def start_or_skip(name: str, start: Callable[[], None]) -> None:
    """Start a server. If that cannot be, the test fails in CI and is skipped by name elsewhere."""
    try:
        start()
    except WardFailed as wrong:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"NOT TESTED without {name}: {wrong}")


@contextmanager
def running_broker(tls: Tls | None = None, *, quick: bool = False) -> Iterator[Broker]:
    """A broker for the length of the block. Tests want one that is `quick` to start."""
    with server_folder() as folder:
        broker = Broker(folder / "kafka", cache_folder(), tls, quick=quick)
        start_or_skip("Kafka", broker.start)
        try:
            yield broker
        finally:
            broker.stop()


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """A Postgres for the length of the block."""
    with server_folder() as folder:
        server = Postgres(folder / "postgres")
        start_or_skip("Postgres", server.start)
        try:
            yield server
        finally:
            server.stop()
