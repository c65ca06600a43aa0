"""The ledger's tables, as SQLAlchemy Core metadata. Which of them can be rebuilt is said here.

Times are microseconds since 1970 UTC (`*_us`), so that no database's idea of a zone or a float
comes near them. Token counts are 64-bit integers; null is unknown, zero is zero. Prices are exact
decimals in text, because SQLite keeps no decimals. `migrations/` makes these tables; a test holds
the two together.
"""

import re

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    LargeBinary,
    MetaData,
    Table,
    Text,
)

from ledger.events import BUCKETS

metadata = MetaData()

TEXT = Text()
"""Text that is only stored and shown."""

ORDERED = Text().with_variant(Text(collation="C"), "postgresql")
"""Text that keys and orders rows: by bytes in every database, so that hashes do not differ."""


def _key(name: str) -> Column[str]:
    return Column(name, ORDERED, primary_key=True)


def _buckets(suffix: str = "", *, nullable: bool) -> list[Column[int]]:
    return [Column(f"{name}{suffix}", BigInteger, nullable=nullable) for name in BUCKETS]


events = Table(
    "events",
    metadata,
    _key("source"),
    _key("topic"),
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("id", ORDERED, nullable=False, unique=True),
    Column("type", TEXT, nullable=False),
    Column("subject", TEXT, nullable=False),
    Column("time_us", BigInteger, nullable=False),
    Column("recorded_us", BigInteger, nullable=False),
    Column("place", BigInteger, comment="place in the one order of the registry; else null"),
    Column("data", TEXT, nullable=False),
)
"""The book of record: every event of a topic that the ledger keeps, its data byte for byte."""

Index(
    "events_place",
    events.c.place,
    unique=True,
    sqlite_where=events.c.place.is_not(None),
    postgresql_where=events.c.place.is_not(None),
)

requests = Table(
    "requests",
    metadata,
    _key("request_id"),
    Column("state", TEXT, nullable=False),
    Column("source", ORDERED),
    Column("key_id", ORDERED),
    Column("model", ORDERED),
    Column("endpoint", TEXT),
    Column("stream", Boolean(create_constraint=False)),
    Column("accepted_us", BigInteger, index=True),
    Column("backend_id", TEXT),
    Column("attempts", BigInteger, nullable=False),
    Column("chunks", BigInteger, nullable=False),
    Column("basis", ORDERED, nullable=False),
    *_buckets(nullable=True),
    Column("outcome", TEXT),
    Column("status", BigInteger),
    Column("reason", TEXT),
    Column("first_token_us", BigInteger),
    Column("duration_us", BigInteger),
    Column("overhead_us", BigInteger),
    Column("client_request", ORDERED),
    Column("client_retry", BigInteger),
)
"""Projection: one row per accepted request, `ledger.folds.requests.RequestRow`."""

Index("requests_source_state", requests.c.source, requests.c.state)
Index(
    "requests_client_request",
    requests.c.client_request,
    sqlite_where=requests.c.client_request.is_not(None),
    postgresql_where=requests.c.client_request.is_not(None),
)

attempts = Table(
    "attempts",
    metadata,
    _key("request_id"),
    Column("attempt", BigInteger, primary_key=True, autoincrement=False),
    Column("backend_id", TEXT),
    Column("started_us", BigInteger),
    Column("failed", TEXT, comment="why another one was made; null for the last"),
)
"""Projection: one row per backend that was called for a request, `ledger.folds.attempts`."""

counters = Table(
    "counters",
    metadata,
    _key("backend_id"),
    Column("at_us", BigInteger, primary_key=True, autoincrement=False),
    _key("source"),
    Column("gateway", TEXT, nullable=False),
    Column("engine", TEXT, nullable=False),
    Column("counters", TEXT, nullable=False, comment="a JSON object: name to count"),
    Column("process_started_us", BigInteger),
    Column("running", BigInteger),
    Column("waiting", BigInteger),
    Column("fault", TEXT),
)
"""Projection: each reading of an engine's own counters, by the gateway that read them."""

usage_hourly = Table(
    "usage_hourly",
    metadata,
    Column("hour_us", BigInteger, primary_key=True, autoincrement=False),
    _key("key_id"),
    _key("model"),
    _key("basis"),
    Column("requests", BigInteger, nullable=False),
    *_buckets(nullable=False),
    *_buckets("_known", nullable=False),
    Column("failed_attempts", BigInteger, nullable=False),
    Column("busy_us", BigInteger, nullable=False),
    Column("busy_known", BigInteger, nullable=False),
)
"""Projection: billed usage by UTC hour of acceptance; `*_known` counts rows that knew a bucket, or
how long the request was with a backend."""

keys = Table(
    "keys",
    metadata,
    _key("key_id"),
    Column("version", BigInteger, nullable=False),
    Column("hash", TEXT, nullable=False),
    Column("issued_us", BigInteger, nullable=False),
    Column("models", TEXT, comment="a JSON list; null: every model"),
    Column("revoked_us", BigInteger),
)
"""Projection: the keys of the registry as they stand now."""

prices = Table(
    "prices",
    metadata,
    _key("price_id"),
    Column("model", ORDERED, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("currency", TEXT, nullable=False),
    Column("effective_us", BigInteger, nullable=False),
    *[Column(f"{name}_per_million", TEXT) for name in BUCKETS],
    Column("terms", TEXT, comment="a JSON object: what a price list says beyond these; null: none"),
)
"""Projection: every price that the registry ever took; the exact decimal of a million tokens."""

sources = Table(
    "sources",
    metadata,
    _key("source"),
    Column("first_us", BigInteger),
    Column("last_mark_us", BigInteger),
    Column("closed_us", BigInteger),
    Column("closed_by", TEXT),
)
"""Projection: which sources were at work, and which will never write again."""

source_topics = Table(
    "source_topics",
    metadata,
    _key("source"),
    _key("topic"),
    Column("last_sequence", BigInteger, nullable=False),
    Column("received", BigInteger, comment="distinct sequences; null: the topic is not kept"),
)
"""Projection: how far each source is known; complete if `received` equals `last_sequence`."""

late = Table(
    "late",
    metadata,
    _key("request_id"),
    Column("month", ORDERED, nullable=False, index=True),
    Column("source", ORDERED, nullable=False, comment="of the event that ended it"),
    Column("sequence", BigInteger, nullable=False),
)
"""Projection: requests of closed months whose end is outside the cut; `month` is theirs."""

chain_heads = Table(
    "chain_heads",
    metadata,
    _key("source"),
    _key("topic"),
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("head", TEXT, nullable=False, comment="64 hex digits, `ledger.chain`"),
)
"""The chain of each source and topic at some sequences. It follows from the events alone, so a
rebuild leaves it."""

names = Table("names", metadata, _key("kind"), _key("id"), Column("name", TEXT, nullable=False))
"""The one table with names of people and things. Rows may be erased; no total depends on them."""

positions = Table(
    "positions", metadata, _key("log"), Column("next_offset", BigInteger, nullable=False)
)
"""How far each log was read; moved in the transaction that writes what was read."""

duplicates = Table(
    "duplicates",
    metadata,
    _key("source"),
    _key("topic"),
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("id", TEXT, nullable=False),
)
"""Sequences under which a fact came that the ledger already had under another name."""

conflicts = Table(
    "conflicts",
    metadata,
    _key("source"),
    _key("topic"),
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    _key("digest"),
    Column("id", TEXT, nullable=False),
    Column("reason", TEXT, nullable=False),
    Column("record", TEXT, nullable=False),
    Column("noticed_us", BigInteger, nullable=False),
)
"""Events set aside with a reason: same identity, other content; or data that its type forbids."""

poison = Table(
    "poison",
    metadata,
    _key("log"),
    Column("log_offset", BigInteger, primary_key=True, autoincrement=False),
    Column("reason", TEXT, nullable=False),
    Column("record", LargeBinary, nullable=False),
    Column("noticed_us", BigInteger, nullable=False),
)
"""Records of a log that are no events at all, set aside with a reason.

An empty record stands for bytes that could not be read; its row goes once they have been.
"""

meta = Table("meta", metadata, _key("key"), Column("value", TEXT, nullable=False))
"""Facts about this ledger itself."""

PROJECTIONS = (
    requests,
    usage_hourly,
    keys,
    prices,
    sources,
    source_topics,
    attempts,
    counters,
    late,
)
"""What `rebuild` drops and makes again from `events`; everything else is kept."""

PARTED = (requests, attempts, usage_hourly)
"""What Postgres keeps by month, one table `requests_2026_11` for each and `requests_others` for the
rest; migrations make them. Nobody but Postgres needs to know: rows go in and out by the whole."""


def is_part(name: str) -> bool:
    """True if a table of that name is a part of one in `PARTED`."""
    return _PART.fullmatch(name) is not None


_PART = re.compile(rf"({'|'.join(table.name for table in PARTED)})_(\d{{4}}_\d\d|others)")

NOT_KEPT_TOPICS = frozenset({"tokens"})
"""Topics folded into open requests but not stored: what they said is moot once a request ends."""

NOT_TAKEN_TOPICS = frozenset({"backends"})
"""Topics that are none of the ledger's business: what passes by there leaves no trace here."""
