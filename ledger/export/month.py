"""One month of the ledger as files with a manifest: `tollbook export --month`.

The files are made beside their place, read back, held against the ledger itself, and only then put
there. Their bytes depend on the month's facts alone: a second run gives the same ones.
"""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from ledger.errors import BadQuery, ExportFailed
from ledger.export.facts import month_in
from ledger.export.formats import WRITERS, Progress, on_disk, write_format
from ledger.export.manifest import MANIFEST, PARQUET, Manifest, describe, place_of
from ledger.identity import mint_id
from ledger.sql.session import Ledger

_TEMPORARY = ".writing-"
"""Start of the name of a directory in which files are made; what is left of one is removed."""


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """What an export did. `change` says how the files relate to those of an earlier run."""

    directory: Path
    manifest: Manifest
    change: Literal["new", "same", "replaced"]


def export_month(
    ledger: Ledger,
    month: str,
    out_dir: Path,
    *,
    kind: str = PARQUET,
    progress: Progress = lambda done, total: None,
) -> Exported:
    """Export the `month` (2026-11) of `ledger` into `out_dir/<kind>/billing_period=<month>/`.

    The files of an earlier run stay until the new ones are whole and checked; those of other kinds
    are not touched. Raises `BadQuery` for no month or kind, `ExportFailed` if the files do not come
    back as they should, or another export is at work in `out_dir`; `OSError` if the disk refuses.
    """
    if kind not in WRITERS:
        raise BadQuery(f"there is no format {kind!r}; it is one of {', '.join(WRITERS)}")
    with ledger.read() as read:
        found = month_in(read, month)
        out_dir.mkdir(parents=True, exist_ok=True)
        place = place_of(out_dir, kind, month)
        with _alone(out_dir):
            fresh = out_dir / f"{_TEMPORARY}{mint_id()}"
            fresh.mkdir()
            try:
                manifest = write_format(read, found, kind, fresh, progress)
                (fresh / MANIFEST).write_bytes(manifest.encode())
                on_disk(fresh / MANIFEST)
                change = _put(out_dir, fresh, place, manifest)
            finally:
                shutil.rmtree(fresh, ignore_errors=True)
    return Exported(directory=place, manifest=manifest, change=change)


@contextmanager
def _alone(out_dir: Path) -> Iterator[None]:
    """Hold `out_dir` against a second export, and clear away what a killed one left."""
    with (out_dir / ".lock").open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ExportFailed(
                f"another export is writing into {out_dir}; wait for it to end and try again"
            ) from None
        for left in out_dir.glob(f"{_TEMPORARY}*"):
            shutil.rmtree(left)
        yield


def _put(
    out_dir: Path, fresh: Path, place: Path, manifest: Manifest
) -> Literal["new", "same", "replaced"]:
    """Move the whole directory `fresh` to its place."""
    if not place.exists():
        place.parent.mkdir(exist_ok=True)
        on_disk(out_dir)
        fresh.rename(place)
        on_disk(place.parent)
        return "new"
    if _same(place, manifest):
        return "same"
    if not (place / MANIFEST).exists() and any(place.iterdir()):
        raise ExportFailed(
            f"{place} holds something that is no export; move it away, or export elsewhere"
        )
    # A directory cannot be replaced in one step. A crash between these two leaves no export of the
    # month, which the next run makes again; it never leaves a mixture.
    old = out_dir / f"{_TEMPORARY}{mint_id()}"
    place.rename(old)
    fresh.rename(place)
    on_disk(place.parent)
    shutil.rmtree(old)
    return "replaced"


def _same(place: Path, manifest: Manifest) -> bool:
    """True if `place` holds exactly what was just made; its bytes are then left alone."""
    try:
        return (place / MANIFEST).read_bytes() == manifest.encode() and all(
            describe(place / file.name, file.rows) == file for file in manifest.files
        )
    except OSError:
        return False  # a file is missing or unreadable: replace them all
