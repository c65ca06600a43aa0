"""Secrets of the data directory: one file each, which only this user can read.

The folder is made by whoever writes first; nothing here ever prints or logs what it holds.
"""

import contextlib
import os
from pathlib import Path
from typing import Final

from ledger.identity import mint_hash_key

FOLDER: Final = "secrets"
HASH_KEY: Final = "hash-key"


def hash_key(data: Path) -> bytes:
    """The key for hashing ids that clients send, made at the first start of this directory."""
    path = _folder(data) / HASH_KEY
    if not path.exists():
        fresh = _written(path, mint_hash_key())
        # Of several processes that start at once, the first to link its file decides for all.
        with contextlib.suppress(FileExistsError):
            os.link(fresh, path)
        fresh.unlink()
    return path.read_bytes()


def known_hash_key(data: Path) -> bytes | None:
    """The key for hashing ids that clients send; null if no gateway has made one here."""
    try:
        return (data / FOLDER / HASH_KEY).read_bytes()
    except FileNotFoundError:
        return None


def put_secret(data: Path, name: str, secret: bytes) -> Path:
    """The file that now holds `secret`; whoever reads it meanwhile finds a whole one."""
    path = _folder(data) / name
    return _written(path, secret).replace(path)


def _folder(data: Path) -> Path:
    folder = data / FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    return folder


def _written(path: Path, content: bytes) -> Path:
    """A file beside `path`, of mode 0600, with `content`."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    return fresh
