"""What stands in a file just written, read by another library than the one that wrote it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ledger.amounts import decimal_text, pico_of
from ledger.errors import ExportFailed
from ledger.events import BUCKETS
from ledger.export.cells import Cells
from ledger.export.columns import Column
from ledger.export.opened import Opened, types_in
from ledger.export.sums import Sums

_WHOLE: Final = pa.decimal128(38, 0)
"""Counts are added up in it: sums of them need more than 64 bits."""

_FAULT: Final = "this is a fault of Tollbook or of a library: please report it"


class Found(msgspec.Struct, frozen=True):
    """What a file adds up to. `cost` is the exact sum per currency, without those that are zero."""

    sums: Sums
    cost: dict[str, str]


def read_back(
    path: Path,
    columns: Sequence[Column],
    wrote: Cells,
    *,
    requests: str | None = None,
    cost: tuple[str, str] | None = None,
) -> Found:
    """Add up the file at `path` by pyarrow. `requests` is the column that counts requests, null:
    each row is one; `cost` the columns of an amount and of its currency, where there are such.

    Raises `ExportFailed` if a column is missing, strange, or not of the type it was written as, or
    if any cell is another than the one that `wrote` saw go in.
    """
    try:
        file = Opened(path, types := types_in(path, columns))
        if list(file.types.items()) != list(types.items()):
            raise ExportFailed(
                f"{path} came back with columns {_words(file.types)}, not {_words(types)}; {_FAULT}"
            )
        reading = Reading(columns, requests=requests, cost=cost)
        for batch in file.reader():
            reading.take(batch)
    except (pa.ArrowException, OSError) as wrong:
        raise ExportFailed(f"{path} cannot be read back: {wrong}; {_FAULT}") from wrong
    return reading.found(path, wrote)


def _words(types: dict[str, pa.DataType]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in types.items())


class Reading:
    """Adds up the batches of a file as they go by, exactly, and keeps what its cells were."""

    def __init__(
        self,
        columns: Sequence[Column],
        *,
        requests: str | None = None,
        cost: tuple[str, str] | None = None,
    ) -> None:
        self._requests, self._cost = requests, cost
        self._cells = Cells(columns)
        self._counted = 0
        self._tokens, self._known = dict.fromkeys(BUCKETS, 0), dict.fromkeys(BUCKETS, 0)
        self._pico: dict[str, int] = {}

    def take(self, batch: pa.RecordBatch) -> None:
        """Go on by the rows of `batch`."""
        self._cells.take(batch)
        requests = self._requests
        self._counted += batch.num_rows if requests is None else _sum(batch.column(requests))
        for name in BUCKETS:
            if name in batch.schema.names:
                column = batch.column(name)
                self._tokens[name] += _sum(column)
                self._known[name] += len(column) - column.null_count
        if self._cost is not None:
            amount, currency = self._cost
            table = pa.Table.from_batches([batch.select([amount, currency])])
            for row in table.group_by(currency).aggregate([(amount, "sum")]).to_pylist():
                if (total := row[f"{amount}_sum"]) is not None:
                    known = self._pico.get(row[currency], 0)
                    self._pico[row[currency]] = known + pico_of(f"{total:f}")

    def found(self, path: Path, wrote: Cells) -> Found:
        """What all of them add up to. Raises `ExportFailed` if any cell of the file at `path` is
        another than the one that `wrote` saw go in."""
        if differing := self._cells.differing(wrote):
            raise ExportFailed(
                f"{path} came back with {self._cells.rows} rows of {wrote.rows}, and with other "
                f"cells than were written in {', '.join(differing)}; {_FAULT}"
            )
        cost = {name: decimal_text(pico) for name, pico in sorted(self._pico.items()) if pico}
        return Found(Sums(self._counted, self._tokens, self._known), cost)


def _sum(column: pa.Array) -> int:
    total = pc.sum(column.cast(_WHOLE)).as_py()
    return 0 if total is None else int(total)
