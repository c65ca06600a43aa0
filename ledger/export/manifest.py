"""What an export says of itself: its files, their hashes, and what they add up to.

The manifest stands beside the files and is the last thing written. Like them it depends on the
month's own facts alone, so the same ledger gives the same bytes. Needs neither DuckDB nor pyarrow,
so that the audit can read it everywhere.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ledger.errors import ExportFailed

FORMAT = 1
"""Raised when a column or a field changes its meaning; a reader refuses what is newer."""

MANIFEST = "manifest.json"
REQUESTS = "requests.parquet"
BILL = "bill.parquet"

_HASHED_BYTES = 1 << 20
"""Bytes of a file held in memory while it is hashed."""


class ExportedFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of an export."""

    name: str
    rows: int
    bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One month's export.

    `requests` counts requests with an end; the `open` ones of the month are in no file. `tokens` is
    the sum per bucket over the `known` rows of that bucket. `cost` is the exact sum per currency of
    all priced lines of the bill, `unpriced` counts the lines without a price. `position` is the
    last event in the files per source and topic; `prices` are the ids of the prices that had begun
    before the month's end. An event or price beyond these is newer than the export.
    """

    format: int
    month: str
    requests: int
    open: int
    tokens: dict[str, int]
    known: dict[str, int]
    cost: dict[str, str]
    unpriced: int
    prices: list[str]
    position: dict[str, dict[str, int]]
    files: list[ExportedFile]

    def encode(self) -> bytes:
        """The bytes of `manifest.json`: indented, in a fixed order, with a last line feed."""
        return msgspec.json.format(msgspec.json.encode(self, order="deterministic")) + b"\n"


def read_manifest(directory: Path) -> Manifest:
    """The manifest of the export in `directory`. Raises `ExportFailed` if it is none."""
    path = directory / MANIFEST
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except OSError as wrong:
        raise ExportFailed(
            f"{path} cannot be read ({wrong.strerror}); export that month again"
        ) from wrong
    except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
        raise ExportFailed(
            f"{path} is not a manifest of this version ({wrong}); export that month again"
        ) from wrong
    if manifest.format != FORMAT:
        raise ExportFailed(
            f"{path} is of format {manifest.format} and this version reads format {FORMAT}; "
            "upgrade Tollbook, or export that month again"
        )
    return manifest


def exports(out_dir: Path) -> Iterator[tuple[Path, Manifest]]:
    """Every month exported below `out_dir` with its directory, oldest first.

    What was being written when a process died has a name that begins with a dot and is left out.
    """
    if not out_dir.is_dir():
        return
    for directory in sorted(out_dir.iterdir()):
        if directory.name.startswith(".") or not (directory / MANIFEST).exists():
            continue
        yield directory, read_manifest(directory)


def describe(path: Path, rows: int) -> ExportedFile:
    """The entry of a file just written."""
    size, digest = _hashed(path)
    return ExportedFile(name=path.name, rows=rows, bytes=size, sha256=digest)


def damage(directory: Path, manifest: Manifest) -> list[str]:
    """What is wrong with the files themselves, in words; empty if nothing."""
    found = []
    for entry in manifest.files:
        path = directory / entry.name
        try:
            size, digest = _hashed(path)
        except OSError as wrong:
            found.append(f"{path} cannot be read: {wrong.strerror}")
            continue
        if (size, digest) != (entry.bytes, entry.sha256):
            found.append(
                f"{path} has been changed since it was exported: {size} bytes with SHA-256 "
                f"{digest}, its manifest says {entry.bytes} bytes with {entry.sha256}"
            )
    return found


def _hashed(path: Path) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while piece := file.read(_HASHED_BYTES):
            digest.update(piece)
            size += len(piece)
    return size, digest.hexdigest()
