"""What FOCUS wants told beside its rows: the schema, and from 1.3 on how complete the rows are.

Every date in it follows from the month's own facts, so that a second run gives the same bytes: of a
closed month when it was closed, of an open one the last hour that has a row.
"""

from typing import Any, Final

import msgspec
import pyarrow as pa

from ledger.clock import from_us
from ledger.export.columns import COUNT, INSTANT, MONEY
from ledger.export.facts import Month
from ledger.export.focus.columns import FocusColumn, file_columns, profile

METADATA: Final = "metadata.json"

SCHEMA_CREATED: Final = "2026-11-30T00:00:00Z"
"""When these columns were decided on; another date with the next change of them."""

GENERATOR_VERSION: Final = "1"
"""Raised when the same facts give other rows. It is not the version of Tollbook, whose every
release would change the bytes of closed months."""

_TYPES: Final = {
    "string": "STRING",
    "decimal": "DECIMAL",
    "instant": "DATETIME",
    "json": "JSON",
}


def metadata(month: Month, version: str, last_us: int | None) -> bytes:
    """The bytes of `metadata.json`. `last_us`: end of the last charge, if there is one."""
    known = {column.name: column for column in profile(version)}
    told: dict[str, Any] = {
        "DataGenerator": {"DataGenerator": "Tollbook"},
        "Schema": {
            "SchemaId": f"tollbook-focus-{version}-{GENERATOR_VERSION}",
            "FocusVersion": version,
            "DataGeneratorVersion": GENERATOR_VERSION,
            "CreationDate": SCHEMA_CREATED,
            "ColumnDefinition": [
                _definition(column.name, column.type, known.get(column.name), version)
                for column in file_columns(version)
            ],
        },
    }
    if version != "1.2":
        instance = f"{month.month}-{month.zone.replace('/', '-')}"
        told["DatasetInstance"] = {
            "DatasetInstanceId": instance,
            "DatasetInstanceName": f"Cost and usage of {month.month}",
            "FocusDatasetId": "CostAndUsage",
        }
        told["Recency"] = _recency(month, instance, last_us)
    return msgspec.json.format(msgspec.json.encode(told)) + b"\n"


def _definition(
    name: str, kind: pa.DataType, focus: FocusColumn | None, version: str
) -> dict[str, Any]:
    if focus is not None:
        type_name = _TYPES[focus.kind]
    else:
        type_name = "INTEGER" if kind == COUNT else "DATETIME" if kind == INSTANT else "STRING"
    said: dict[str, Any] = {"ColumnName": name, "DataType": type_name}
    if kind == MONEY:
        said |= {"NumericPrecision": kind.precision, "NumberScale": kind.scale}
    elif type_name == "STRING":
        said["StringEncoding"] = "UTF-8"
    if focus is not None and version in focus.deprecated:
        said["Deprecated"] = True
    return said


def _recency(month: Month, instance: str, last_us: int | None) -> dict[str, Any]:
    """Until when the rows are known, and that they change no more once the month is closed, or
    settled with the first that was."""
    held = month.standing.period
    closed = held is not None
    if held is not None:
        updated = held.closed_at
    else:
        updated = from_us(month.span[0] if last_us is None else last_us)
    at = f"{updated:%Y-%m-%dT%H:%M:%SZ}"
    return {
        "DatasetInstanceId": instance,
        "RecencyLastUpdated": at,
        "DatasetInstanceLastUpdated": at,
        "DatasetInstanceComplete": closed,
        "TimeSectors": [
            {
                "TimeSectorStart": month.start,
                "TimeSectorEnd": month.end,
                "TimeSectorComplete": closed,
                "TimeSectorLastUpdated": at,
            }
        ],
    }
