"""The tables of tollbook.toml as types: every setting with its default, its limits, its meaning.

`tollbook init` and docs/configuration.md are written from these types and from nothing else. A
setting holds a reference to a secret (`env:NAME`, `file:PATH`), never the secret.
"""

import hashlib
from typing import Annotated, Final, Literal

import msgspec
from msgspec.structs import force_setattr

from gateway.setting_values import (
    GIB,
    KIB,
    MIB,
    SettingsError,
    check_bootstrap,
    check_ledger_url,
    check_models,
    check_name,
    check_reference,
    check_topic_prefix,
    normal_url,
    size_text,
)

SECONDS_MAX: Final = 86_400
"""A day: a longer timeout is a mistake of units, and `inf` is no timeout at all."""


def _is(about: str, kind: str) -> msgspec.Meta:
    """What stands in the documents about one setting; `kind` says how it is written."""
    return msgspec.Meta(description=about, extra={"kind": kind})


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The door itself: where it listens and what it lets in."""

    name: Annotated[
        str,
        _is(
            "Name of this gateway in every event that it writes. It outlives restarts; give each "
            "machine its own.",
            "name",
        ),
    ] = "gateway"
    host: Annotated[
        str,
        _is(
            "Address to listen on. 127.0.0.1 can be reached from this machine only, 0.0.0.0 from "
            "every network that this machine is on.",
            "text",
        ),
    ] = "127.0.0.1"
    port: Annotated[
        int, _is("Port to listen on; 0 takes a free one.", "integer"), msgspec.Meta(ge=0, le=65535)
    ] = 8080
    workers: Annotated[
        int,
        _is("Processes that serve; one per core is enough.", "integer"),
        msgspec.Meta(ge=1, le=256),
    ] = 1
    body_bytes_max: Annotated[
        int, _is("A larger request is refused with 413.", "size"), msgspec.Meta(ge=KIB, le=GIB)
    ] = 32 * MIB
    shutdown_seconds_max: Annotated[
        float,
        _is(
            "After SIGTERM, requests that run may go on for this long; then they are cut and "
            "billed for what was delivered.",
            "seconds",
        ),
        msgspec.Meta(ge=0, le=SECONDS_MAX),
    ] = 30.0
    models: Annotated[
        tuple[str, ...],
        _is(
            'Models that are served. Empty: what the backends list. ["*"]: any name is passed '
            "on, and the backend decides.",
            "list of names",
        ),
    ] = ()

    scrape_seconds: Annotated[
        float,
        _is(
            "How often the engines' own token counters are read from their /metrics, for tollbook "
            "reconcile to hold the ledger against; 0: never.",
            "seconds",
        ),
        msgspec.Meta(ge=0, le=SECONDS_MAX),
    ] = 15.0
    probe_seconds: Annotated[
        float,
        _is(
            "How often each backend is asked for one token of each model that it lists, as a "
            "request of the key key_system; 0: never, but for one whose requests failed or were "
            "left without a byte, until it has made a token.",
            "seconds",
        ),
        msgspec.Meta(ge=0, le=SECONDS_MAX),
    ] = 0.0
    drain_to_end: Annotated[
        tuple[str, ...],
        _is(
            "Models whose answer is read to its end when the client has left, so that its count is "
            'the engine\'s own; the server then works for nobody. ["*"]: every model. Empty: the '
            "server is stopped, and what it had produced is counted.",
            "list of names",
        ),
    ] = ()

    def __post_init__(self) -> None:
        check_name("name", self.name)
        check_models(self.models)
        check_models(self.drain_to_end)
        if not self.host:
            raise SettingsError("host is empty; write 127.0.0.1, or 0.0.0.0 for every network")


class BackendSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model server behind the door. `url` is held without `/v1` and without a slash at the end.

    `id` names it in events, metrics and headers; it is made from the address but never shows it.
    """

    url: Annotated[
        str,
        _is("Address of the server, with or without /v1: http://127.0.0.1:8000.", "http address"),
    ]
    name: Annotated[
        str | None,
        _is(
            "Name of the backend in events, metrics and headers. Not given: made from a hash of "
            "the address, so that no address is in an event.",
            "name",
        ),
    ] = None
    key: Annotated[
        str | None,
        _is(
            "Where the server's key is found: env:NAME (an environment variable) or file:PATH. "
            "The key itself does not belong in this file.",
            "env:NAME or file:PATH",
        ),
    ] = None
    engine: Annotated[
        Literal["auto", "vllm", "sglang", "llamacpp", "openai"],
        _is(
            "Which server it is; auto asks it. It decides how usage is asked for during a stream.",
            "choice",
        ),
    ] = "auto"
    models: Annotated[
        tuple[str, ...],
        _is("Models of this backend. Empty: what its /v1/models lists.", "list of names"),
    ] = ()

    def __post_init__(self) -> None:
        force_setattr(self, "url", normal_url(self.url))
        if self.name is not None:
            check_name("name", self.name)
        if self.key is not None:
            check_reference(self.key)
        check_models(self.models)

    @property
    def id(self) -> str:
        """The backend's id: its name, or `b-` and eight hex digits of its address's hash."""
        if self.name is not None:
            return self.name
        return "b-" + hashlib.sha256(self.url.encode()).hexdigest()[:8]


class RoutingSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a request goes, of the backends that serve its model and are fit.

    `explore_percent` is of the requests that a score decides on.
    """

    policy: Annotated[
        Literal["fewest_waiting", "round_robin", "weighted"],
        _is(
            "What decides: fewest_waiting (the fewest waiting requests, then the least use of KV "
            "memory), round_robin (turns) or weighted (weights alone).",
            "choice",
        ),
    ] = "fewest_waiting"
    explore_percent: Annotated[
        float,
        _is(
            "Requests that go to any backend that is fit, whatever its score, so that a signal "
            "that is wrong starves none.",
            "percent",
        ),
        msgspec.Meta(ge=0, le=50),
    ] = 1.0
    signal_seconds: Annotated[
        float,
        _is(
            "How often each serving process reads from each engine how busy it is (/metrics, and "
            "/slots of llama.cpp); 0: never, and only what it sent there itself is known.",
            "seconds",
        ),
        msgspec.Meta(ge=0, le=SECONDS_MAX),
    ] = 2.0


class PolicySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What decides for one model, where it is not as `[routing]` says."""

    model: Annotated[str, _is("Name of the model.", "name of a model")]
    policy: Annotated[
        Literal["fewest_waiting", "round_robin", "weighted"],
        _is("What decides for its requests, as in [routing].", "choice"),
    ] = "fewest_waiting"
    explore_percent: Annotated[
        float,
        _is("As in [routing], for this model.", "percent"),
        msgspec.Meta(ge=0, le=50),
    ] = 1.0

    def __post_init__(self) -> None:
        check_models((self.model,))


class FallbackSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who answers for a model of which no backend is fit: all are down or being drained, not merely
    busy. The answer says so, and it is billed as the model that answered.

    A key may forbid it (`tollbook keys create --no-fallback`), and never gets a model that it may
    not call itself.
    """

    model: Annotated[str, _is("Name of the model that was asked for.", "name of a model")]
    to: Annotated[
        tuple[str, ...],
        _is("Models that answer in its place, the first one that is fit.", "list of names"),
    ]

    def __post_init__(self) -> None:
        check_models((self.model,))
        check_models(self.to)
        if "*" in (self.model, *self.to):
            raise SettingsError("a fallback is from one model to others by their names, not to *")
        if not self.to or self.model in self.to:
            raise SettingsError(f"the fallback of {self.model} must name other models in `to`")


class TimeoutSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long a backend may take. What runs out of time is billed for what was delivered."""

    connect_seconds: Annotated[
        float,
        _is("To open a connection to a backend.", "seconds"),
        msgspec.Meta(gt=0, le=SECONDS_MAX),
    ] = 5.0
    first_byte_seconds: Annotated[
        float,
        _is(
            "From the request to the first byte of the answer; a plain answer comes whole, so "
            "this must cover all of its generation.",
            "seconds",
        ),
        msgspec.Meta(gt=0, le=SECONDS_MAX),
    ] = 300.0
    body_seconds: Annotated[
        float,
        _is("For a request to arrive whole, from its head on; then it is refused.", "seconds"),
        msgspec.Meta(gt=0, le=SECONDS_MAX),
    ] = 60.0
    between_chunks_seconds: Annotated[
        float,
        _is("Silence within a stream.", "seconds"),
        msgspec.Meta(gt=0, le=SECONDS_MAX),
    ] = 60.0
    total_seconds: Annotated[
        float,
        _is("A whole request.", "seconds"),
        msgspec.Meta(gt=0, le=SECONDS_MAX),
    ] = 1800.0


class SpoolSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The spool: what was served is on disk before the ledger has it."""

    durability: Annotated[
        Literal["process", "power"],
        _is(
            "What a write survives: process (kill -9 of any process) or power (also a power cut; "
            "each request waits for fsync).",
            "choice",
        ),
    ] = "process"
    limit_bytes: Annotated[
        int,
        _is(
            "Spool that the ledger has not taken yet. Near it new requests are refused with 503: "
            "nothing is served that could not be billed.",
            "size",
        ),
        msgspec.Meta(ge=MIB),
    ] = GIB
    reserve_bytes: Annotated[
        int,
        _is(
            "Disk space kept back so that open requests can be ended when the disk is full.", "size"
        ),
        msgspec.Meta(ge=64 * KIB),
    ] = 4 * MIB
    keep_bytes: Annotated[
        int,
        _is("Spool that is kept after the ledger has taken it, for audits.", "size"),
        msgspec.Meta(ge=0),
    ] = 256 * MIB
    flush_milliseconds: Annotated[
        int,
        _is(
            "How often running totals of a stream are written: after a kill, a stream's bill is "
            "short by at most this long.",
            "milliseconds",
        ),
        msgspec.Meta(ge=10, le=60_000),
    ] = 250

    def __post_init__(self) -> None:
        if 2 * self.reserve_bytes > self.limit_bytes:
            raise SettingsError(
                f"reserve_bytes ({size_text(self.reserve_bytes)}) is more than half of limit_bytes "
                f"({size_text(self.limit_bytes)}), so hardly a request could be accepted; "
                "raise the limit or lower the reserve"
            )


class LedgerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the books are kept. Left empty they are a SQLite file in the data directory."""

    url: Annotated[
        str | None,
        _is(
            "Address of the Postgres ledger, or where it is found: env:NAME, file:PATH, or "
            "postgresql+psycopg://USER@HOST/DATABASE without a password. TLS is set in it: "
            "?sslmode=verify-full&sslrootcert=PATH. Not given: ledger.db in the data directory.",
            "address or env:NAME or file:PATH",
        ),
    ] = None

    def __post_init__(self) -> None:
        if self.url is not None:
            check_ledger_url(self.url)


class KafkaSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Kafka, for several machines with one ledger. This one table is for the relay, the writer, the
    workers, the gateways and the commands alike."""

    bootstrap: Annotated[
        tuple[str, ...],
        _is(
            "Addresses of brokers, as HOST:PORT. Empty: no Kafka, and everything stays on this "
            "machine.",
            "list of names",
        ),
    ] = ()
    security: Annotated[
        Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"],
        _is("How brokers are spoken to, by the names of Kafka's listeners.", "choice"),
    ] = "plaintext"
    ca_file: Annotated[
        str | None,
        _is("Certificates that brokers are checked against. Not given: the system's.", "path"),
    ] = None
    cert_file: Annotated[
        str | None, _is("This client's own certificate, where brokers ask for one.", "path")
    ] = None
    key_file: Annotated[str | None, _is("The key of that certificate.", "path")] = None
    sasl_mechanism: Annotated[
        Literal["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"],
        _is("How this client proves who it is, if security is one of sasl.", "choice"),
    ] = "SCRAM-SHA-512"
    sasl_username: Annotated[str | None, _is("User name for SASL.", "text")] = None
    sasl_password: Annotated[
        str | None,
        _is("Where the password for SASL is found.", "env:NAME or file:PATH"),
    ] = None
    prefix: Annotated[
        str,
        _is("First part of the names of all topics and groups, before a dot.", "name"),
    ] = "tollbook"
    partitions: Annotated[
        int,
        _is(
            "Partitions of the topics that are split by key or backend. It can never be changed "
            "once the topics are there.",
            "integer",
        ),
        msgspec.Meta(ge=1, le=1000),
    ] = 6
    replication: Annotated[
        int,
        _is("Copies of each partition: 3 in production, 1 on one broker.", "integer"),
        msgspec.Meta(ge=1, le=9),
    ] = 3

    def __post_init__(self) -> None:
        for address in self.bootstrap:
            check_bootstrap(address)
        check_topic_prefix(self.prefix)
        if self.sasl_password is not None:
            check_reference(self.sasl_password, "the password for Kafka")
        if self.bootstrap and self.security.startswith("sasl"):
            missing = [n for n in ("sasl_username", "sasl_password") if getattr(self, n) is None]
            if missing:
                raise SettingsError(f"security is {self.security}, so {missing[0]} must be given")
        if (self.cert_file is None) != (self.key_file is None):
            raise SettingsError("cert_file and key_file belong together; give both or none")
