"""What an export says of itself: its files, their hashes, and what they add up to.

The manifest stands beside the files and is the last thing written. Like them it depends on the
month's own facts alone, so the same ledger gives the same bytes. Needs neither DuckDB nor pyarrow,
so that the audit can read it everywhere.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from ledger.errors import ExportFailed
from ledger.folds.months import State

FORMAT: Final = 3
"""Raised when a column or a field changes its meaning; a reader refuses what is newer."""

MANIFEST: Final = "manifest.json"
REQUESTS: Final = "requests.parquet"
BILL: Final = "bill.parquet"
FOCUS: Final = "cost_and_usage.parquet"

PARQUET: Final = "parquet"
"""The kind of export that `exports` gives: what queries and the audit read."""

_HASHED_BYTES = 1 << 20
"""Bytes of a file held in memory while it is hashed."""


class ExportedFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of an export."""

    name: str
    rows: int
    bytes: int
    sha256: str


class LeftOut(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What FOCUS cannot hold, because it has no word for a cost that is not known: tokens without a
    price, and requests whose use nobody knows."""

    unpriced_tokens: int = 0
    unknown_requests: int = 0


class ChainHead(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The head of one source's chain in one topic at a sequence, as 64 hex digits."""

    source: str
    topic: str
    sequence: int
    head: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One month's export in one `kind` of files.

    The month is that of `zone`, from `start` up to, not including, `end` (UTC). `period` is `open`
    while its facts can change. Of a month that was `closed`, `cut` maps each source to its last
    sequence of each topic within it, and `root` is the hash of all sources' chains there. Of others
    both are null, also of one before the first that was closed, which was `settled` with that.

    `requests` counts requests with an end; the `open` ones of the month are in no file. `tokens` is
    the sum per bucket over the `known` rows of that bucket. `corrections` counts the bill's lines
    that correct others. `cost` is the exact sum per currency of all priced lines of the bill,
    `unpriced` counts the requests that have tokens without a price, as a closing counts them (up to
    format 2: the lines of the bill that have none). `position` is the last event in the files per
    source and topic; `prices` are the ids of the prices that had begun before the month's end. An
    event or price beyond these is newer than the export.

    `heads` are the chains' heads of a closed month, by source and topic, of which `root` is the
    hash. Of an archive, `before` and `previous_root` are those of the month closed before. `seal`
    is the hash of all the rest.
    """

    format: int
    kind: str
    month: str
    zone: str
    start: str
    end: str
    period: State
    root: str | None
    cut: dict[str, dict[str, int]] | None
    requests: int
    open: int
    tokens: dict[str, int]
    known: dict[str, int]
    corrections: int
    cost: dict[str, str]
    unpriced: int
    prices: list[str]
    position: dict[str, dict[str, int]]
    left_out: LeftOut | None = None
    heads: list[ChainHead] | None = None
    before: list[ChainHead] | None = None
    previous_root: str | None = None
    files: list[ExportedFile]
    seal: str = ""

    def sealed(self) -> "Manifest":
        """This manifest with the seal that belongs to it: the SHA-256 of its own bytes with an
        empty one."""
        seal = hashlib.sha256(_text(msgspec.structs.replace(self, seal=""))).hexdigest()
        return msgspec.structs.replace(self, seal=seal)

    def encode(self) -> bytes:
        """The bytes of `manifest.json` with its seal: indented, in a fixed order, whole lines."""
        return _text(self.sealed())


def _text(manifest: Manifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest, order="deterministic")) + b"\n"


class _First(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A manifest of format 1: of Parquet files of a month in UTC, none of which was closed."""

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


class _Told(msgspec.Struct, frozen=True):
    format: int


def read_manifest(directory: Path) -> Manifest:
    """The manifest of the export in `directory`. Raises `ExportFailed` if it is none."""
    path = directory / MANIFEST
    try:
        text = path.read_bytes()
        told = msgspec.json.decode(text, type=_Told).format
        if told > FORMAT:
            raise ExportFailed(
                f"{path} is of format {told} and this version reads formats up to {FORMAT}; "
                "upgrade Tollbook, or export that month again"
            )
        if told == 1:
            return _from_first(msgspec.json.decode(text, type=_First))
        return msgspec.json.decode(text, type=Manifest)
    except OSError as wrong:
        raise ExportFailed(
            f"{path} cannot be read ({wrong.strerror}); export that month again"
        ) from wrong
    except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
        raise ExportFailed(
            f"{path} is not a manifest of this version ({wrong}); export that month again"
        ) from wrong


def _from_first(first: _First) -> Manifest:
    """What a manifest of format 1 says, in the words of today."""
    year, _, month = first.month.partition("-")
    after = f"{year}-{int(month) + 1:02d}" if month != "12" else f"{int(year) + 1:04d}-01"
    return Manifest(
        kind=PARQUET,
        zone="UTC",
        start=f"{first.month}-01T00:00:00Z",
        end=f"{after}-01T00:00:00Z",
        period="open",
        root=None,
        cut=None,
        corrections=0,
        **msgspec.structs.asdict(first),
    )


def place_of(out_dir: Path, kind: str, month: str) -> Path:
    """Where the export of `month` in files of `kind` stands below `out_dir`. The last part names
    the month as DuckDB, Spark and dbt read it from a path."""
    return out_dir / kind / f"billing_period={month}"


def exports(out_dir: Path, kind: str = PARQUET) -> Iterator[tuple[Path, Manifest]]:
    """Every month exported below `out_dir` in files of `kind`, with its directory, oldest first.

    What was being written when a process died has a name that begins with a dot and is left out.
    An export of an older version stood in a directory named as its month; it is given unless the
    month was exported again.
    """
    found = {}
    if kind == PARQUET:
        found.update(_manifests(out_dir))
    found.update(_manifests(out_dir / kind))
    yield from (found[month] for month in sorted(found))


def _manifests(directory: Path) -> dict[str, tuple[Path, Manifest]]:
    if not directory.is_dir():
        return {}
    found = {}
    for child in sorted(directory.iterdir()):
        if not child.name.startswith(".") and (child / MANIFEST).exists():
            manifest = read_manifest(child)
            found[manifest.month] = (child, manifest)
    return found


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
