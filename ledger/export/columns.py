"""The columns that leave the ledger, with their Arrow types: one list for exports and queries.

Token counts are 64-bit integers, money is an exact decimal, instants are UTC in microseconds. A
float never stands for either; `assert_exact` holds every schema to that.
"""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa

from ledger.events import BUCKETS

COUNT = pa.int64()
TEXT = pa.string()
FLAG = pa.bool_()
LIST = pa.list_(pa.string())
INSTANT = pa.timestamp("us", tz="UTC")
MONEY = pa.decimal128(38, 12)
"""A cost is a whole number of 10^-12 of the currency; 26 digits stand before the point."""

Values = Mapping[str, Sequence[Any]]
"""Column name to one value a row: everything here moves by columns, which is ten times cheaper."""


class Column(msgspec.Struct, frozen=True):
    """One column: its name, its Arrow type, what it means, and where the value comes from.

    `source` is the column of the SQL table, where the row is one of a table; null for a value that
    is looked up elsewhere. Every
    integer and every amount has a `unit`; one that is `NUMBER` names or orders something, and
    adding it up says nothing.
    """

    name: str
    type: Any
    meaning: str
    source: str | None = None
    unit: str | None = None


NUMBER = "number"
MICROSECONDS = "microseconds"
OF_CURRENCY = "of the currency"


def _same(name: str, kind: Any, meaning: str, unit: str | None = None) -> Column:
    return Column(name, kind, meaning, name, unit)


def _buckets(meaning: str) -> tuple[Column, ...]:
    return tuple(_same(name, COUNT, f"{name}: {meaning}", "tokens") for name in BUCKETS)


KEY_NAME = Column("key", TEXT, "the key's name; null once it was erased")
KEY_ID = _same("key_id", TEXT, "API key")
PROJECT_ID = Column("project_id", TEXT, "the project that the key belonged to then; null: none")
MODEL = _same("model", TEXT, "model")
BILLED_MODEL = _same(
    "model", TEXT, "the model that is billed: the one that answered, or was asked last"
)
HOUR = Column("hour", INSTANT, "start of the UTC hour of acceptance", "hour_us")
BASIS = _same("basis", TEXT, "how the counts were obtained")
TOKENS = _buckets("tokens; null is unknown")
ENDED_REQUESTS = _same("requests", COUNT, "requests with an end", "requests")
PRICE_ID = _same("price_id", TEXT, "price")
PRICE_VERSION = _same("version", COUNT, "number within the model's prices", NUMBER)
EFFECTIVE_FROM = Column("effective_from", INSTANT, "from when on it holds", "effective_us")
CURRENCY = _same("currency", TEXT, "currency")
COST_CURRENCY = Column("currency", TEXT, "currency of the cost")
ENDED_EVENT = Column("ended_event", TEXT, "the event that ended it, as source:sequence")

REQUEST_COLUMNS = (
    _same("request_id", TEXT, "the id in the x-request-id header"),
    _same("state", TEXT, "open, finished, or abandoned by a gateway that died"),
    _same("source", TEXT, "the gateway that accepted it"),
    _same("key_id", TEXT, "the API key it came with"),
    BILLED_MODEL,
    _same("endpoint", TEXT, "which endpoint was called"),
    _same("stream", FLAG, "whether the answer was streamed"),
    Column("accepted_at", INSTANT, "when it was accepted: its date on a bill", "accepted_us"),
    _same("backend_id", TEXT, "the backend of the last attempt"),
    _same("attempts", COUNT, "backends tried", "calls"),
    _same("chunks", COUNT, "chunks with content that went to the client", "chunks"),
    BASIS,
    *TOKENS,
    _same("outcome", TEXT, "how it ended"),
    _same("status", COUNT, "HTTP status of the answer", NUMBER),
    _same("reason", TEXT, "why it ended so, where there is more to say"),
    _same("first_token_us", COUNT, "microseconds to the first chunk", MICROSECONDS),
    _same("duration_us", COUNT, "microseconds to its end", MICROSECONDS),
    _same("overhead_us", COUNT, "microseconds of that in the gateway itself", MICROSECONDS),
    _same("client_request", TEXT, "keyed hash of the id that the client gave"),
    _same(
        "client_retry", COUNT, "how often the client says that it had tried this before", "retries"
    ),
)

ATTEMPT_COLUMNS = (
    Column("request_id", TEXT, "the request it was made for"),
    Column("attempt", COUNT, "its number, from 1", unit=NUMBER),
    Column("last", FLAG, "whether no other was made after it"),
    Column("backend_id", TEXT, "the backend that was called"),
    Column("started_at", INSTANT, "when the call began"),
    Column("failed", TEXT, "why another one was made; null for the last"),
    Column("outcome", TEXT, "of the last: how the request ended"),
    Column("status", COUNT, "of the last: HTTP status of the answer", unit=NUMBER),
    Column("key_id", TEXT, "the API key of the request"),
    BILLED_MODEL,
    Column(
        "cost", MONEY, "of the last what the request costs, of every other zero", unit=OF_CURRENCY
    ),
    COST_CURRENCY,
)

COUNTER_COLUMNS = (
    _same("backend_id", TEXT, "the backend that was read"),
    Column("read_at", INSTANT, "when its counters were read", "at_us"),
    _same("source", TEXT, "the gateway that read them, and its incarnation"),
    _same("gateway", TEXT, "its name"),
    _same("engine", TEXT, "the engine behind the backend"),
    _same("counters", TEXT, "counters by the engine's names as JSON; counters->>'$.NAME'"),
    Column(
        "process_started_at", INSTANT, "when the engine began, if it says", "process_started_us"
    ),
    _same("running", COUNT, "requests that it worked on then", "requests"),
    _same("waiting", COUNT, "requests that waited there then", "requests"),
    _same("fault", TEXT, "why there are no counters"),
)

CONSERVATION_COLUMNS = (
    Column("source", TEXT, "the gateway, and its incarnation"),
    HOUR,
    Column("accepted", COUNT, "requests that were accepted, counted from events", unit="requests"),
    Column("finished", COUNT, "of those, by their rows: finished", unit="requests"),
    Column("abandoned", COUNT, "abandoned by a gateway that died", unit="requests"),
    Column("open", COUNT, "without an end yet", unit="requests"),
    Column("difference", COUNT, "accepted, less the other three; zero", unit="requests"),
)

HOURLY_COLUMNS = (
    HOUR,
    KEY_ID,
    MODEL,
    BASIS,
    ENDED_REQUESTS,
    *_buckets("sum of tokens over the rows that knew it"),
    *(_same(f"{name}_known", COUNT, f"rows that knew {name}", "requests") for name in BUCKETS),
    _same("failed_attempts", COUNT, "their calls of backends that failed", "calls"),
    _same("busy_us", COUNT, "sum of their time with a backend, where it is known", MICROSECONDS),
    _same("busy_known", COUNT, "rows that knew it", "requests"),
)

EVENT_COLUMNS = (
    _same("source", TEXT, "who wrote it: a name and an incarnation"),
    _same("topic", TEXT, "which of the source's logs"),
    _same("sequence", COUNT, "its number in that log, from 1", NUMBER),
    _same("id", TEXT, "names the fact"),
    _same("type", TEXT, "what happened, and the version of the wording"),
    _same("subject", TEXT, "whom it is about"),
    Column("time", INSTANT, "when it happened", "time_us"),
    Column("recorded", INSTANT, "when the log took it", "recorded_us"),
    _same("data", TEXT, "the payload as JSON; data->>'$.model' reads a field"),
)

KEY_COLUMNS = (
    KEY_ID,
    _same("version", COUNT, "how often it was written", NUMBER),
    Column("issued_at", INSTANT, "when it was made", "issued_us"),
    Column("revoked_at", INSTANT, "when it was revoked; null: it works", "revoked_us"),
    _same("models", TEXT, "models it may call, a JSON list; null: every model"),
)

PRICE_COLUMNS = (
    PRICE_ID,
    _same("model", TEXT, "model; * for every model without a price of its own"),
    PRICE_VERSION,
    CURRENCY,
    EFFECTIVE_FROM,
    *(
        Column(
            name,
            MONEY,
            f"price of a million tokens of {name}; null: none",
            f"{name}_per_million",
            "of the currency per million tokens",
        )
        for name in BUCKETS
    ),
)

SOURCE_COLUMNS = (
    _same("source", TEXT, "a gateway, runner or command, and its incarnation"),
    Column("first_at", INSTANT, "its first event", "first_us"),
    Column("last_mark_at", INSTANT, "its last sign of life", "last_mark_us"),
    Column("closed_at", INSTANT, "when it was closed; null: at work", "closed_us"),
    _same("closed_by", TEXT, "itself, or who adopted its spool"),
)

NAME_COLUMNS = (
    _same("kind", TEXT, "what is named"),
    _same("id", TEXT, "its id"),
    _same("name", TEXT, "its name; may be erased"),
)

BILL_COLUMNS = (
    Column("day", pa.date32(), "day of acceptance in the zone of the books"),
    PROJECT_ID,
    KEY_ID,
    MODEL,
    BASIS,
    ENDED_REQUESTS,
    *TOKENS,
    Column(
        "cost", MONEY, "exact cost; null if tokens have no price or are not known", unit=OF_CURRENCY
    ),
    COST_CURRENCY,
    Column("unpriced", LIST, "buckets with tokens and without a price"),
    Column("price_id", TEXT, "the price that it was rated by"),
    Column("price_version", COUNT, "number of that price within its model's prices", unit=NUMBER),
    Column("band", TEXT, "the band of that price by weekday and hour; null: none"),
    Column("discount_id", TEXT, "the discount that was taken off; null: none"),
    Column(
        "requests_charged", COUNT, "requests that a price for each was charged for", unit="requests"
    ),
    Column(
        "failed_attempts_charged", COUNT, "calls that failed and were charged for", unit="calls"
    ),
    Column(
        "gpu_us_charged",
        COUNT,
        "microseconds with a backend that were charged for",
        unit=MICROSECONDS,
    ),
    Column("kind", TEXT, "usage; late or corrected: a line that corrects an earlier one"),
    Column("corrects", TEXT, "of such a line: the event it corrects, as source:sequence"),
)

EXPORT_COLUMNS = (
    Column("month", TEXT, "month of the export"),
    Column("kind", TEXT, "its format: parquet, csv, focus-1.2 and so on, or archive"),
    Column("period", TEXT, "open, closed or settled, when it was exported"),
    Column("root", TEXT, "of a closed month: hash over all sources' chains at the cut"),
    Column("file", TEXT, "file name"),
    Column("rows", COUNT, "rows in it", unit="rows"),
    Column("bytes", COUNT, "its size", unit="bytes"),
    Column("sha256", TEXT, "its hash"),
)


def with_key(columns: Sequence[Column]) -> tuple[Column, ...]:
    """`columns` with the key's name after its id."""
    place = next(n for n, column in enumerate(columns) if column.name == "key_id") + 1
    return (*columns[:place], KEY_NAME, *columns[place:])


def schema_of(columns: Sequence[Column]) -> pa.Schema:
    """The Arrow schema of `columns`."""
    return pa.schema([pa.field(column.name, column.type) for column in columns])


def duckdb_type(column: Column) -> str:
    """How DuckDB names the type of `column`, after a way through Parquet."""
    names: dict[Any, str] = {
        COUNT: "BIGINT",
        TEXT: "VARCHAR",
        FLAG: "BOOLEAN",
        LIST: "VARCHAR[]",
        INSTANT: "TIMESTAMP WITH TIME ZONE",
        MONEY: "DECIMAL(38,12)",
        pa.date32(): "DATE",
    }
    return names[column.type]


def assert_exact(schema: pa.Schema) -> None:
    """A float column in what leaves the ledger is a fault of the program."""
    for field in schema:
        assert not pa.types.is_floating(field.type), (
            f"{field.name} is {field.type}; tokens and money are integers or exact decimals"
        )


def batch_of(columns: Sequence[Column], values: Values) -> pa.RecordBatch:
    """`values` as one Arrow batch. Money may come as exact decimal text."""
    schema = schema_of(columns)
    assert_exact(schema)
    arrays = [_array(column, values[column.name]) for column in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(column: Column, values: Sequence[Any]) -> pa.Array:
    if column.type == MONEY:
        values = [None if value is None else Decimal(value) for value in values]
    return pa.array(values, type=column.type)
