"""The cells of a file by their hashes: what one library was given and another one read are the same
exactly if these are, in whatever batches the rows came and went.
"""

import hashlib
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ledger.export.columns import COUNT, FLAG, INSTANT, LIST, MONEY, TEXT, Column

_BYTES: Final = 16
"""Of a hash: it is held against a fault of a library, and no forger gets to see it."""

_WIDTHS: Final[dict[Any, tuple[Any, int]]] = {
    COUNT: (COUNT, 8),
    FLAG: (pa.uint8(), 1),
    INSTANT: (COUNT, 8),
    MONEY: (MONEY, 16),
    pa.date32(): (pa.int32(), 4),
}
"""Type of a column to the type of the same bytes that Arrow can fill, and how many a cell has."""


class Cells:
    """The rows of a file, seen batch by batch, and hashes over the cells of each column."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self.rows = 0
        # Each kind of bytes has a hash of its own: between them the cut of the batches would show.
        self._hashes = {
            column.name: tuple(hashlib.blake2b(digest_size=_BYTES) for _ in range(3))
            for column in columns
        }

    def take(self, batch: pa.RecordBatch) -> None:
        """Go on by the rows of `batch`, which has each of the columns."""
        self.rows += batch.num_rows
        for name, hashes in self._hashes.items():
            for seen, part in zip(hashes, _bytes_of(batch.column(name)), strict=True):
                seen.update(part)

    def differing(self, other: "Cells") -> list[str]:
        """The columns of both in which a cell or the number of rows differs."""
        return [
            name
            for name, hashes in self._hashes.items()
            if [seen.digest() for seen in hashes] != [s.digest() for s in other._hashes[name]]
        ]


def _bytes_of(column: pa.Array) -> tuple[Any, Any, Any]:
    """The cells of `column` as bytes that add up to the same ones however it is cut: which are
    known, what stands in them, and how long each is where that differs."""
    if column.type == LIST:
        column = pc.binary_join(column, " ")  # as CSV has it
    known = _buffer(pc.is_valid(column).cast(pa.uint8()), 1)
    if column.type == TEXT:
        filled = column.fill_null("")
        _, ends, text = filled.buffers()
        first, last = (
            int.from_bytes(ends[4 * place : 4 * place + 4].to_pybytes(), "little")
            for place in (filled.offset, filled.offset + len(filled))
        )
        lengths = _buffer(pc.binary_length(filled), 4)
        return known, b"" if text is None else text[first:last], lengths
    kind, width = _WIDTHS[column.type]
    zero = Decimal(0) if kind == MONEY else 0
    return known, _buffer(column.cast(kind).fill_null(zero), width), b""


def _buffer(column: pa.Array, width: int) -> Any:
    """What stands in `column`, of which each cell has `width` bytes and none is null."""
    return column.buffers()[1][column.offset * width : (column.offset + len(column)) * width]
